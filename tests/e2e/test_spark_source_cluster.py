"""The format `tsfile` on a standalone cluster whose executors know nothing of Tidemark but a zip that the program sends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.expected import SITES
from tests.services import spark as spark_service
from tidemark.engines.java import java_home
from tidemark.errors import UsageError

pytestmark = [pytest.mark.full, pytest.mark.real("spark"), pytest.mark.timeout(600)]
SITE = SITES["2.0.1-beta"]
PROGRAM = """
import json, os, sys
from pyspark.sql import SparkSession
from tidemark.tsfiles.spark.source import register

master, package, folder, out = sys.argv[1:]
builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
spark = builder.getOrCreate()
spark.sparkContext.addPyFile(package)
register(spark)
tall = spark.read.format("tsfile").options(model="tree", layout="tall", rowsPerTask="1000").load(folder)
rows = [list(row) for row in tall.collect()]
wide = spark.read.format("tsfile").options(model="tree").load(folder)
wide.repartition(4, "device").write.format("tsfile").mode("append").save(out)
back = spark.read.format("tsfile").options(layout="tall").load(out)
print(json.dumps({"rows": rows, "back": back.count(), "parts": tall.rdd.getNumPartitions()}))
"""


@pytest.mark.soak
def test_executors_get_the_package_from_the_program(tmp_path: Path) -> None:
    try:
        java = java_home()
    except UsageError as missing:
        pytest.skip(missing.message)
    package = tmp_path / "tidemark.zip"
    with zipfile.ZipFile(package, "w") as archive:
        for path in sorted((spark_service.PLUGINS / "tidemark").rglob("*")):
            if path.suffix in (".py", ".c"):
                archive.write(path, path.relative_to(spark_service.PLUGINS))
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    names = {"PYTHONPATH": str(spark_service.PLUGINS), "PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(java)}
    with spark_service.cluster(java, tmp_path) as running:
        done = subprocess.run(
            [sys.executable, program, running.address, package, SITE.root / "data", tmp_path / "out"],
            env={**os.environ, **names, **spark_service.QUICK_JAVA},
            capture_output=True,
            text=True,
            check=False,
            timeout=500,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    expected = [row for row in SITE.rows() if row[0].startswith("root.")]
    assert sorted(map(tuple, told["rows"])) == sorted(expected)
    assert told["back"] == len(expected) and told["parts"] > 1
