"""The DAG `tidemark_housekeep`; its page in Airflow says what it does and what to do when a task is red."""

import os

from tidemark.orchestration.receiver_dags import housekeep_dag
from tidemark.orchestration.standing_settings import standing

dag = housekeep_dag(standing(os.environ))
