"""No DAG: shows a broken tidemark.toml as an import error with file, line and key.

Meanwhile the DAGs use the last valid version of the settings (orchestration.settings), so that one mistyped line
neither hides nor stops the other links. Airflow reads this file because it contains the words airflow and dag.
"""

import os

from tidemark.orchestration.dags.link import check_dags
from tidemark.orchestration.settings import read_settings

check_dags(read_settings(os.environ))
