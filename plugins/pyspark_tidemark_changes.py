"""Makes Spark know the format `tidemark_changes`: it looks on the PYTHONPATH for `pyspark_…` with a `DefaultSource`."""

from tidemark.changes.spark.source import ChangesSource as DefaultSource

__all__ = ["DefaultSource"]
