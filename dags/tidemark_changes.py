"""The DAGs `tidemark_changes__<source>` of sources of tidemark.toml that have a server, and `tidemark_sink__<sink>`.

Airflow reads this file because it contains the words airflow and dag.
"""

import os

from tidemark.orchestration.dags.changes import sink_dags, source_dags
from tidemark.orchestration.settings import load_sound_settings

settings = load_sound_settings(os.environ)
globals().update(source_dags(settings) | sink_dags(settings))
