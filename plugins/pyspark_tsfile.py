"""Makes Spark know the format `tsfile`: it looks on the PYTHONPATH for modules called `pyspark_…` with a `DefaultSource`."""

from tidemark.tsfiles.spark.source import TsFileSource as DefaultSource

__all__ = ["DefaultSource"]
