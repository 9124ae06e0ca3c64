"""Makes Spark know the format `tidemark`: it looks on the PYTHONPATH for modules `pyspark_…` with a `DefaultSource`."""

from tidemark.catalog_source import CatalogSource as DefaultSource

__all__ = ["DefaultSource"]
