"""Code shared by the Spark workloads: the session, and the line that the bench parses."""

import json
import time

from pyspark.sql import SparkSession


def session(memory, scratch):
    """A local[2] session with a heap of `memory` (for example 700m) and all its files in `scratch`."""
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("canvas-bench")
        .config("spark.driver.memory", memory)
        .config("spark.driver.extraJavaOptions", "-XX:-UsePerfData")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", scratch)
        .config("spark.sql.warehouse.dir", scratch + "/warehouse")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.default.parallelism", "4")
        # Adaptive plans would change the last digits of sums.
        .config("spark.sql.adaptive.enabled", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def unit(*columns):
    """A column of doubles from 0 to 1 that depends only on `columns`: equal in every run."""
    from pyspark.sql import functions as F

    return F.shiftrightunsigned(F.xxhash64(*columns), 11).cast("double") / F.lit(float(1 << 53))


class Timer:
    """Measures the seconds since its creation."""

    def __init__(self):
        self.began = time.monotonic()

    def seconds(self):
        return time.monotonic() - self.began


def finish(spark, answer, seconds):
    """Prints the last line of standard output."""
    spark.stop()
    print(json.dumps({"answer": answer, "seconds": round(seconds, 3)}), flush=True)
