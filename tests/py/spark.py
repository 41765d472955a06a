"""LogisticRegression and KMeans on pyspark local[2]; prints the models rounded.

Arguments: rows, driver memory (for example 1g).
"""

import sys

from pyspark.ml.classification import LogisticRegression
from pyspark.ml.clustering import KMeans
from pyspark.ml.feature import VectorAssembler
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

rows, memory = int(sys.argv[1]), sys.argv[2]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.driver.memory", memory)
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "4")
    .config("spark.default.parallelism", "4")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
base = spark.range(0, rows, 1, 4)
names = [f"x{i}" for i in range(12)]
columns = [
    ((F.conv(F.substring(F.md5(F.concat_ws("-", F.col("id"), F.lit(i))), 1, 6), 16, 10).cast("double"))
     / F.lit(float(1 << 24))).alias(n)
    for i, n in enumerate(names)
]
data = base.select("id", *columns)
data = data.withColumn("label", (F.col("x0") + F.col("x1") * 2 - F.col("x2") > 1.0).cast("double"))
data = VectorAssembler(inputCols=names, outputCol="features").transform(data)
data = data.select("label", "features").cache()
print("rows", data.count())
lr = LogisticRegression(maxIter=8, regParam=0.01).fit(data)
print("logistic", [round(v, 6) for v in lr.coefficients], round(lr.intercept, 6))
km = KMeans(k=6, maxIter=6, seed=3).fit(data)
print("kmeans", sorted([round(float(v), 5) for v in c] for c in km.clusterCenters()))
print("positive", lr.transform(data).filter("prediction = 1").count())
spark.stop()
