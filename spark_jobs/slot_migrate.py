"""Spark job: migrate slots. Each task sends files from one node to another and reports which were proved there.

python spark_jobs/slot_migrate.py FOLDER MASTER [REPLIES]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # so that `spark_jobs` is found as a package

from spark_jobs.tasks import run_job

if __name__ == "__main__":
    run_job("slot_migrate", *sys.argv[1:])
