"""Unit tests of orchestration share the DAG tests' Airflow home."""

from __future__ import annotations

from tests.dags import airflow_env

airflow_env.prepare()
