"""The DAG `tidemark_replica_recover`, if tidemark.toml has a [cluster]. Its page in Airflow says what it does."""

import os

from tidemark.orchestration.dags.replicas import recover_dags
from tidemark.orchestration.settings import load_sound_settings

globals().update(recover_dags(load_sound_settings(os.environ)))
