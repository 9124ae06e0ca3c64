"""DAG tests run without a scheduler, in an Airflow home of their own."""

from __future__ import annotations

from tests.dags import airflow_env

airflow_env.prepare()
