"""The only file of plugins/ that Airflow imports itself (see .airflowignore): every part of it does, so keep it light."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from tidemark.orchestration.deployment import warm_start


class TidemarkPlugin(AirflowPlugin):
    """Its listener makes the scheduler import what tasks need, once, before it forks the workers that run them."""

    name = "tidemark"
    listeners = [warm_start]  # noqa: RUF012 - Airflow's own way
