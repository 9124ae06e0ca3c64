"""The DAGs `tidemark_sync__<link>`: one for every link of tidemark.toml, which Airflow finds by $TIDEMARK_CONFIG."""

import os

from tidemark.orchestration.link_dag import link_dags
from tidemark.orchestration.standing_settings import standing

globals().update(link_dags(standing(os.environ)))
