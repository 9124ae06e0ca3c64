"""The DAG `tidemark_verify`; its page in Airflow says what it does and what to do when a task is red."""

import os

from tidemark.orchestration.dags.receivers import verify_dag
from tidemark.orchestration.settings import load_sound_settings

dag = verify_dag(load_sound_settings(os.environ))
