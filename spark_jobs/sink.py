"""Spark job: work of a sink's batch. Each task decodes blocks of a store, encodes a file, or folds the keys of a table.

python spark_jobs/sink.py FOLDER MASTER [REPLIES]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # so that `spark_jobs` is found as a package

from spark_jobs.tasks import run_job

if __name__ == "__main__":
    run_job("sink", *sys.argv[1:])
