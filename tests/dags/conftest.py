"""DAG tests run without a scheduler, in an Airflow home of their own, over a site with real files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.dags import airflow_env

airflow_env.prepare()
DATA = airflow_env.ROOT / "tests" / "data" / "iotdb" / "2.0.1-beta" / "data" / "datanode"
SITE_ID = "5d0f6a1e-7c5b-4f0e-9a57-2f6f3a1c7e01"


@dataclass
class Centre:
    """A deployment in a folder: one site with the files of a real server, one receiver, one link."""

    root: Path
    link: dict[str, str] = field(default_factory=dict)

    @property
    def config(self) -> Path:
        return self.root / "tidemark.toml"

    @property
    def site(self) -> Path:
        return self.root / "plant1"

    @property
    def receiver(self) -> Path:
        return self.root / "centre"

    def write(self, more: str = "", **link: str) -> None:
        """(Re)write the settings; `link` are lines of the link, `more` further sections."""
        self.link |= link
        lines = "\n".join(f"{key} = {value}" for key, value in self.link.items())
        self.config.write_text(
            f'[ledger]\nurl = "sqlite:///ledger.db"\n\n[spark]\nengine = "pool"\n\n[receivers.centre]\nstore = "centre"\n\n'
            f'[sites.plant1]\nid = "{SITE_ID}"\nstore = "plant1"\ndata = ["data/sequence", "data/unsequence"]\n'
            f'schema = "system/schema"\n\n[links.plant1]\nsite = "plant1"\n{lines}\n\n{more}'
        )

    def app(self) -> Any:
        from tidemark.app import open_app
        from tidemark.settings.load import load_settings

        return open_app(load_settings(self.config, {}))

    def landed(self) -> list[str]:
        """Source paths of the TsFiles in whole landings, once for every time they are there."""
        found = []
        for manifest in sorted(self.receiver.glob("landing/*/*/manifest.json")):
            folder = manifest.parent
            found += [str(path.relative_to(folder)) for path in folder.rglob("*.tsfile")]
        return sorted(found)

    def sealed(self) -> list[str]:
        return sorted(str(path.relative_to(self.site)) for path in (self.site / "data").rglob("*.tsfile"))

    def seal_late(self) -> str:
        """The server seals one more file (a copy of a real one under a later name): its source path."""
        late = next((self.site / "data").rglob("*.tsfile"))
        for companion in ("", ".resource"):
            shutil.copy2(f"{late}{companion}", late.with_name(f"1999999999999-999-0-0.tsfile{companion}"))
        return str(late.with_name("1999999999999-999-0-0.tsfile").relative_to(self.site))


@pytest.fixture
def centre(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Centre:
    made = Centre(tmp_path)
    for folder in ("data", "system"):
        shutil.copytree(DATA / folder, made.site / folder)
    made.write()
    monkeypatch.setenv("TIDEMARK_CONFIG", str(made.config))
    return made


@pytest.fixture(scope="session")
def airflow_database() -> Iterator[None]:
    from airflow.utils import db

    db.initdb()
    yield


@pytest.fixture
def dagbag(centre: Centre) -> Callable[[], Any]:
    """Parse `dags/` as the DAG processor does, with the settings as they are now."""
    from airflow.dag_processing.dagbag import DagBag

    return lambda: DagBag(str(airflow_env.ROOT / "dags"))


@pytest.fixture
def run(dagbag: Callable[[], Any]) -> Callable[..., Any]:
    """Run a DAG to its end in this process; returns {task id: [state a map index]} with the run's own state as "run"."""

    def go(dag_id: str, **conf: Any) -> dict[str, list[str]]:
        bag = dagbag()
        dag = bag.dags[dag_id]
        for task in dag.tasks:  # dag.test() really waits
            if task.is_mapped:
                task.partial_kwargs["retry_delay"] = timedelta(0)
            else:
                task.retry_delay = timedelta(0)
        ended = dag.test(run_conf=conf)
        states: dict[str, list[str]] = {"run": [str(ended.state)]}
        for instance in sorted(ended.get_task_instances(), key=lambda ti: ti.map_index):
            states.setdefault(instance.task_id, []).append(str(instance.state))
        return states

    return go
