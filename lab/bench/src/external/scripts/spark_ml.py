"""Machine learning and aggregation on Spark, local[2]; data follow from the seed.

spark_ml.py lr|kmeans|bayes|skewed-groupby SCALE SEED MEMORY SCRATCH

Data are made and cached first; the time is that of the algorithm. Figures that are sums of doubles
are printed with few digits, because tasks end in another order each time.
"""

import hashlib
import sys

from pyspark.ml.classification import LogisticRegression, NaiveBayes
from pyspark.ml.clustering import KMeans
from pyspark.ml.feature import CountVectorizerModel, VectorAssembler
from pyspark.sql import functions as F

from spark_common import Timer, finish, session, unit

PARTITIONS = 4


def digest(value):
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def points(spark, rows, columns, seed):
    """Rows with a vector of `columns` numbers from 0 to 1."""
    ids = spark.range(0, rows, 1, PARTITIONS)
    names = [f"x{i}" for i in range(columns)]
    return ids.select("id", *[unit(F.col("id"), F.lit(seed), F.lit(i)).alias(n) for i, n in enumerate(names)]), names


def lr(spark, scale, seed):
    data, names = points(spark, max(2000, int(900_000 * scale)), 20, seed)
    noise = unit(F.col("id"), F.lit(seed), F.lit("noise"))
    data = data.withColumn("label", (F.col("x0") + F.col("x1") * 2 - F.col("x2") + noise > 1.5).cast("double"))
    data = VectorAssembler(inputCols=names, outputCol="features").transform(data).select("label", "features").cache()
    rows = data.count()
    timer = Timer()
    model = LogisticRegression(maxIter=20, regParam=0.01, tol=0.0).fit(data)
    seconds = timer.seconds()
    # The last digit of a sum may decide about a point on the border.
    positive = round(model.transform(data).filter("prediction = 1").count() / rows, 3)
    return f"{rows} rows, coefficients {[round(float(v), 3) + 0.0 for v in model.coefficients[:4]]}, positive {positive}", seconds


def kmeans(spark, scale, seed):
    data, names = points(spark, max(2000, int(1_000_000 * scale)), 20, seed)
    # Ten well-separated centres, so that no point is between two.
    centre = F.pmod(F.col("id"), F.lit(10))
    moved = [(F.col(n) + 4 * F.pmod(F.xxhash64(centre, F.lit(seed), F.lit(n)), F.lit(8))).alias(n) for n in names]
    data = VectorAssembler(inputCols=names, outputCol="features").transform(data.select(*moved))
    data = data.select("features").cache()
    rows = data.count()
    timer = Timer()
    model = KMeans(k=10, maxIter=10, tol=0.0, seed=seed, initMode="k-means||").fit(data)
    seconds = timer.seconds()
    centres = sorted([round(float(v), 2) + 0.0 for v in c] for c in model.clusterCenters())
    return f"{rows} rows, centres {digest(centres)}, first {centres[0][:4]}", seconds


def bayes(spark, scale, seed):
    """Multinomial naive Bayes over bags of words, with Zipf-like word frequencies per class."""
    docs, words, vocabulary, classes = max(1000, int(220_000 * scale)), 60, 20_000, 20
    ids = spark.range(0, docs, 1, PARTITIONS)
    ids = ids.withColumn("label", F.pmod(F.xxhash64("id", F.lit(seed)), F.lit(classes)).cast("double"))

    def word(i):
        u = unit(F.col("id"), F.lit(seed), i)
        rank = F.floor(F.pow(F.lit(float(vocabulary)), u)).cast("long") - 1
        return F.concat(F.lit("w"), F.pmod(rank * 31 + F.col("label").cast("long") * 7, F.lit(vocabulary)))

    docs_of_words = ids.select("label", F.transform(F.sequence(F.lit(1), F.lit(words)), word).alias("words"))
    counter = CountVectorizerModel.from_vocabulary([f"w{i}" for i in range(vocabulary)], "words", "features")
    data = counter.transform(docs_of_words).cache()
    rows = data.count()
    timer = Timer()
    model = NaiveBayes(smoothing=1.0, modelType="multinomial").fit(data)
    right = model.transform(data).filter("prediction = label").count()
    seconds = timer.seconds()
    # Word counts are integers, so their sums do not depend on the order.
    theta = digest([round(float(v), 6) for v in model.theta.toArray()[0][:500]])
    return f"{rows} documents, {right} classified rightly, model {theta}", seconds


def skewed_groupby(spark, scale, seed):
    """groupByKey with one key that has a large part of the rows: all values of a key are collected."""
    rows = max(4000, int(5_000_000 * scale))
    ids = spark.range(0, rows, 1, PARTITIONS)
    u = unit(F.col("id"), F.lit(seed), F.lit("key"))
    data = ids.select(
        F.floor(F.pow(u, F.lit(4.0)) * 1000).cast("long").alias("key"),
        F.xxhash64("id", F.lit(seed), F.lit("value")).alias("value"),
    ).cache()
    count = data.count()
    timer = Timer()
    groups = data.repartition(PARTITIONS, "key").groupBy("key").agg(F.sort_array(F.collect_list("value")).alias("all"))
    each = groups.select("key", F.size("all").alias("n"), F.xxhash64("all").alias("hash")).collect()
    seconds = timer.seconds()
    each = sorted((r.key, r.n, r.hash) for r in each)
    return f"{count} rows, {len(each)} keys, largest {max(n for _, n, _ in each)}, groups {digest(each)}", seconds


WORK = {"lr": lr, "kmeans": kmeans, "bayes": bayes, "skewed-groupby": skewed_groupby}


def main():
    name, scale, seed, memory, scratch = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
    spark = session(memory, scratch)
    answer, seconds = WORK[name](spark, scale, seed)
    finish(spark, answer, seconds)


if __name__ == "__main__":
    main()
