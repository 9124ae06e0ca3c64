"""The DAGs `tidemark_changes__<source>`: one for each source of tidemark.toml that has a server.

Airflow reads this file because it contains the words airflow and dag.
"""

import os

from tidemark.orchestration.dags.changes import source_dags
from tidemark.orchestration.settings import load_sound_settings

globals().update(source_dags(load_sound_settings(os.environ)))
