"""Graph algorithms of Spark's GraphX, local[2], over a file of edges.

spark_graph.py pagerank|cc|sssp|triangles EDGES SEED MEMORY SCRATCH

GraphX has no Python interface; its own algorithms are called in the JVM by way of Py4J, which
pyspark itself uses. Vertices with their values are written by the JVM to SCRATCH and read back as
a data frame, to compute the answer. The time is that of the algorithm, without loading the edges.
"""

import sys

from pyspark.sql import functions as F

from spark_common import Timer, finish, session

PARTITIONS = 4
PAGERANK_ROUNDS = 8


class GraphX:
    """A graph with its edges in memory, and the algorithms on it."""

    def __init__(self, spark, path, canonical, seed):
        self.spark, self.jvm, self.seed = spark, spark.sparkContext._jvm, seed
        level = self.jvm.org.apache.spark.storage.StorageLevel.MEMORY_ONLY()
        graphx = self.jvm.org.apache.spark.graphx
        self.lib = graphx.lib
        self.graph = graphx.GraphLoader.edgeListFile(
            spark.sparkContext._jsc.sc(), path, canonical, PARTITIONS, level, level)
        if canonical:
            strategy = getattr(graphx, "PartitionStrategy$RandomVertexCut$")
            self.graph = self.graph.partitionBy(getattr(strategy, "MODULE$"))
        self.tag = self.jvm.scala.reflect.ClassTag.Int()
        self.edges = self.graph.edges().count()
        self.nodes = self.graph.vertices().count()

    def result(self, graph, scratch):
        """Runs the algorithm; returns (id, value as text) of each vertex."""
        path = scratch + "/vertices"
        graph.vertices().toJavaRDD().saveAsTextFile("file://" + path)
        pair = r"^\((\d+),(.*)\)$"
        return self.spark.read.text(path).select(
            F.regexp_extract("value", pair, 1).cast("long").alias("id"),
            F.regexp_extract("value", pair, 2).alias("value"),
        )


def pagerank(g):
    return g.lib.PageRank.run(g.graph, PAGERANK_ROUNDS, 0.15, g.tag, g.tag)


def pagerank_answer(rows):
    """Sums of doubles: the rank of the first ten, with few digits."""
    top = rows.select("id", F.col("value").cast("double").alias("rank")).orderBy(F.desc("rank"), "id").limit(10)
    return "first " + ", ".join(f"{r.id}: {r.rank:.4g}" for r in top.collect())


def cc(g):
    return g.lib.ConnectedComponents.run(g.graph, g.tag, g.tag)


def cc_answer(rows):
    sizes = rows.groupBy("value").count()
    r = sizes.agg(F.count("*").alias("n"), F.max("count").alias("most"), F.sum(F.xxhash64("value", "count") % 1_000_003)
                  .alias("sum")).first()
    return f"{r.n} components, largest {r.most}, check {r.sum}"


def sssp(g):
    """Distances to three vertices, with edges of length one."""
    # Made in the JVM: Py4J would convert each Long into an Integer on its way here and back.
    stream = g.jvm.java.util.stream
    landmarks = stream.LongStream.rangeClosed(0, 2).boxed().collect(stream.Collectors.toList())
    scala = g.jvm.scala.collection.JavaConverters.asScalaBufferConverter(landmarks).asScala().toSeq()
    return g.lib.ShortestPaths.run(g.graph, scala, g.tag)


def sssp_answer(rows):
    """Parses values such as "Map(0 -> 2, 1 -> 1)"; each landmark has its own distance."""
    total = []
    for v in (0, 1, 2):
        d = F.regexp_extract("value", rf"\b{v} -> (\d+)", 1)
        r = rows.filter(d != "").agg(F.count("*").alias("n"), F.sum(d.cast("long")).alias("sum")).first()
        total.append(f"{v}: {r.n} reach it, distances {r['sum']}")
    return "; ".join(total)


def triangles(g):
    return g.lib.TriangleCount.run(g.graph, g.tag, g.tag)


def triangles_answer(rows):
    r = rows.agg(F.sum(F.col("value").cast("long")).alias("sum"), F.max(F.col("value").cast("long")).alias("most")).first()
    return f"{r['sum'] // 3} triangles, at most {r.most} at one vertex"


WORK = {
    "pagerank": (pagerank, pagerank_answer),
    "cc": (cc, cc_answer),
    "sssp": (sssp, sssp_answer),
    "triangles": (triangles, triangles_answer),
}


def main():
    name, path, seed, memory, scratch = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5]
    spark = session(memory, scratch)
    g = GraphX(spark, path, name == "triangles", seed)
    run, answer_of = WORK[name]
    timer = Timer()
    rows = g.result(run(g), scratch)
    seconds = timer.seconds()
    finish(spark, f"{g.nodes} vertices, {g.edges} edges: {answer_of(rows)}", seconds)


if __name__ == "__main__":
    main()
