"""Open the Spark context of a job: no UI, a small JVM for a local master, the package sent to the executors."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

from pyspark import SparkConf, SparkContext

from tidemark.engines.spark import PACKAGE

_PR_SET_PDEATHSIG = 1


def open_context(name: str, folder: str, master: str) -> SparkContext:
    """Open a context at `master`. `folder` holds the package's zip and receives Spark's scratch files."""
    _end_with_parent()
    conf = SparkConf().setMaster(master).setAppName(f"tidemark {name}")
    conf.set("spark.ui.enabled", "false").set("spark.ui.showConsoleProgress", "false")
    conf.set("spark.pyspark.python", sys.executable)
    conf.set("spark.task.maxFailures", "3")  # for lost executors: Tidemark's tasks return their errors as outcomes
    if master.startswith("local"):
        conf.set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
        conf.set("spark.local.dir", folder)
        conf.set("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
    context = SparkContext(conf=conf)
    context.setLogLevel("ERROR")
    context.addPyFile(str(Path(folder, PACKAGE)))
    return context


def _end_with_parent() -> None:
    """Make the job die with the process that started it. Its JVM ends when this end of its pipe closes."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != int(os.environ.get("TIDEMARK_PARENT", os.getppid())):
        sys.exit(0)
