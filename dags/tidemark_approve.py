"""The DAG `tidemark_approve`, if tidemark.toml has a link. Its page in Airflow says what it does."""

import os

from tidemark.orchestration.dags.approve import approve_dags
from tidemark.orchestration.settings import load_sound_settings

globals().update(approve_dags(load_sound_settings(os.environ)))
