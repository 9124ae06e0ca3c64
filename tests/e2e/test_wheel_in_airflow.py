"""docs/own-airflow.md, word for word, in an Airflow that knows nothing of our lock: a link's DAG sends and announces.

Airflow is installed by the plain resolver. Its constraints files are on a server that these tests do not ask.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess

import pytest

from tests.services.installed_wheel import ROOT, Installed, build_wheel
from tests.services.processes import PartMissing

PAGE = ROOT / "docs" / "own-airflow.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SITE = "plant1=sftp://edge@10.0.0.5:22/opt/iotdb --key /etc/tidemark/edge_key"  # what a reader replaces by a site

pytestmark = [pytest.mark.full, pytest.mark.real("uv"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("airflow")
    try:
        wheel = build_wheel(folder / "wheel")
    except PartMissing as missing:
        pytest.skip(str(missing))
    return Installed(wheel, folder, "apache-airflow==3.3.2")


def test_the_page_brings_the_dags_into_a_standard_airflow(airflow: Installed) -> None:
    home = airflow.home
    shutil.copytree(ROOT / "tests/data/iotdb/2.0.1-beta/data", home / "site")
    blocks = "\n".join(BLOCK.findall(PAGE.read_text(encoding="utf-8")))
    assert SITE in blocks
    script = blocks.replace(SITE, f"plant1={home / 'site'}").replace("/etc/tidemark", str(home / "settings"))
    environment = airflow.environment | {
        "AIRFLOW_HOME": str(home / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        **{name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_")) or "CERT" in name},
        "PIP_FIND_LINKS": f"{os.environ.get('PIP_FIND_LINKS', '')} {airflow.wheel.parent}",
    }
    command = ["bash", "-euc", f"airflow db migrate\n{script}\ntidemark status --json"]
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    [link] = json.loads(done.stdout.splitlines()[-1])["links"]
    assert (link["name"], link["state"], link["backlog_files"]) == ("plant1", "landed", 0)
    for dag in ("sync__plant1", "load", "verify", "housekeep", "approve"):
        assert re.search(rf"^tidemark_{dag} +\| tidemark *$", done.stdout, re.MULTILINE), done.stdout
    print(f"installed: {airflow.size() / 1e6:.0f} MB")


def test_a_folder_of_dags_may_link_to_them(airflow: Installed) -> None:
    program = (
        "import sys, subprocess; from pathlib import Path; from airflow.dag_processing.dagbag import DagBag\n"
        "Path(sys.argv[1]).mkdir(); Path(sys.argv[1], 'tidemark').symlink_to(sys.argv[2])\n"
        "found = DagBag(sys.argv[1]); print(sorted(found.dags), found.import_errors)"
    )
    dags = airflow.run("version", "--dags")[1].strip()
    environment = airflow.environment | {
        "AIRFLOW_HOME": str(airflow.home / "airflow"),
        "TIDEMARK_CONFIG": str(airflow.home / "settings" / "tidemark.toml"),
    }
    command = [str(airflow.folder / "bin" / "python"), "-c", program, str(airflow.home / "mine"), dags]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    found = [f"tidemark_{name}" for name in ("approve", "housekeep", "load", "sync__plant1", "verify")]
    assert done.stdout.splitlines()[-1] == f"{found} {{}}", done.stdout + done.stderr
