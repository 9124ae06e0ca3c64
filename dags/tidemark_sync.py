"""The DAGs `tidemark_sync__<link>`: one for each link of tidemark.toml, which $TIDEMARK_CONFIG names.

Airflow reads this file because it contains the words airflow and dag.
"""

import os

from tidemark.orchestration.dags.link import link_dags
from tidemark.orchestration.settings import load_sound_settings

globals().update(link_dags(load_sound_settings(os.environ)))
