"""Spark job: merge files. Each task reads its devices from all sources and stages its merged files.

python spark_jobs/merge.py FOLDER MASTER [REPLIES]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # so that `spark_jobs` is found as a package

from spark_jobs.tasks import run_job

if __name__ == "__main__":
    run_job("merge", *sys.argv[1:])
