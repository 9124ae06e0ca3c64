"""The DAG `tidemark_cluster_scale`, if tidemark.toml has a [cluster]. Its page in Airflow says what it does."""

import os

from tidemark.orchestration.dags.cluster import scale_dags
from tidemark.orchestration.settings import load_sound_settings

globals().update(scale_dags(load_sound_settings(os.environ)))
