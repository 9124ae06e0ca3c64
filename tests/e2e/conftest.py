"""One running Airflow for the whole session: it takes ten seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.services.running_airflow import Deployment, RunningAirflow


@pytest.fixture(scope="session")
def running_airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAirflow]:
    """Airflow over two sites with real files; each test leaves every link in step."""
    deployment = Deployment(tmp_path_factory.mktemp("deployment"))
    deployment.make()
    airflow = RunningAirflow(deployment)
    yield airflow
    airflow.stop()
