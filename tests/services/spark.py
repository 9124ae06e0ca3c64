"""A local Spark session of two threads that finds the format `tsfile` as any user's would: by its PYTHONPATH."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.services.processes import PartMissing
from tidemark.errors import UsageError
from tidemark.flows.java import java_home

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"


@contextmanager
def session(folder: Path) -> Iterator[Any]:
    """A new session whose scratch files lie in `folder`. PartMissing without Java."""
    try:
        java = java_home()
    except UsageError as missing:
        raise PartMissing(missing.message) from missing
    before = dict(os.environ)
    os.environ |= {"JAVA_HOME": str(java), "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(PLUGINS)}
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    builder = builder.config("spark.local.dir", str(folder)).config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    builder = builder.config("spark.sql.session.timeZone", "UTC").config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
    spark = builder.getOrCreate()
    try:
        spark.sparkContext.setLogLevel("OFF")
        yield spark
    finally:
        spark.stop()
        os.environ.clear()
        os.environ.update(before)
