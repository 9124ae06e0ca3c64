"""An Airflow of the test run's own: home, database and folders, set before Airflow is first imported."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def prepare() -> None:
    """Point Airflow at a fresh home. Airflow reads its configuration at import, so a conftest calls this at collection.

    Each process of a test run has a home of its own, also one that was started with the settings of another.
    """
    mine = str(os.getpid())
    if "airflow" in sys.modules or os.environ.get("TIDEMARK_TEST_AIRFLOW") == mine:
        return
    home = tempfile.mkdtemp(prefix="tidemark-airflow-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    os.environ.update(
        TIDEMARK_TEST_AIRFLOW=mine,
        AIRFLOW_HOME=home,
        AIRFLOW__CORE__DAGS_FOLDER=str(ROOT / "dags"),
        AIRFLOW__CORE__PLUGINS_FOLDER=str(ROOT / "plugins"),
        AIRFLOW__CORE__LOAD_EXAMPLES="False",
        AIRFLOW__LOGGING__LOGGING_LEVEL="WARNING",
        AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{home}/airflow.db",
    )
