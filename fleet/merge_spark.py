#!/usr/bin/env python3
"""Adds files of evidence with Spark: docs/fleet.md.

    spark-submit fleet/merge_spark.py INPUT OUTPUT

Rows with the same key columns become one row, with the sums of the other columns. A file is refused if it has rows of another
version, or a number that is negative or missing: in a sum, that would not be seen any more.
"""

import argparse
import functools

from pyspark.sql import Column, SparkSession, functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

TEXTS = "kind label source kernel cpu cpus cell cgroup comm hint cell_b cgroup_b comm_b hint_b host".split()
NUMBERS = "version part".split()
SUMS = (
    "runs threads cgroups samples duration_ms lost misses counted lines possible shared spread common contended avoidable "
    "runs_sharing runs_apart"
).split()
KEYS = TEXTS + NUMBERS
# As Spark does not look at the files for it, it need not open one before it begins, and a column of another type is an error.
SCHEMA = StructType(
    [StructField(name, StringType()) for name in TEXTS] + [StructField(name, LongType()) for name in NUMBERS + SUMS]
)


def merge(spark, path, with_hosts):
    """The sums of all files below a directory, or of those that a pattern names."""
    files = spark.read.schema(SCHEMA).option("recursiveFileLookup", True).option("pathGlobFilter", "*.parquet")
    rows = files.parquet(path)
    # One negative number makes the bitwise OR of all of them negative, and one that is missing leaves nothing of it.
    of_all = functools.reduce(Column.bitwiseOR, [F.col(name) for name in SUMS])
    is_right = (F.col("version") == 1) & (of_all >= 0)
    message = F.concat(F.input_file_name(), F.lit(": not evidence of version 1, or a number in it is negative or missing"))
    is_wanted = F.lit(True) if with_hosts else F.col("kind") != "host"
    rows = rows.where(F.when(is_right, is_wanted).otherwise(F.raise_error(message).cast("boolean")))
    return rows.groupBy(KEYS).agg(*[F.sum(name).alias(name) for name in SUMS])


def write(spark, rows, output):
    """Writes one file: Spark writes a directory with files in it."""
    parts = output.rstrip("/") + ".parts"
    rows.coalesce(1).write.option("compression", "snappy").parquet(parts)
    path = spark._jvm.org.apache.hadoop.fs.Path
    files = path(parts).getFileSystem(spark._jsc.hadoopConfiguration())
    [part] = files.globStatus(path(parts + "/part-*"))
    if not files.rename(part.getPath(), path(output)):
        raise SystemExit(f"{output}: it cannot be written; the rows are in {parts}")
    files.delete(path(parts), True)


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Adds files of evidence of scxprof.")
    parser.add_argument("input", help="a directory, or a pattern of files")
    parser.add_argument("output", help="the file to write")
    parser.add_argument("--no-hosts", action="store_true", help="leave out the rows by which hosts are compared")
    arguments = parser.parse_args(arguments)
    builder = SparkSession.builder.appName("scxprof evidence")
    # A sum that is too large is an error.
    builder = builder.config("spark.sql.ansi.enabled", True)
    # Files are small: thousands of them for each task, so that a task adds most of the rows before they are shuffled.
    builder = builder.config("spark.sql.files.openCostInBytes", 64 << 10)
    spark = builder.getOrCreate()
    write(spark, merge(spark, arguments.input, not arguments.no_hosts), arguments.output)
    return spark


if __name__ == "__main__":
    main().stop()
