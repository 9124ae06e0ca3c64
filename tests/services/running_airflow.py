"""A whole Airflow as a user starts it (`./tidemark up`), over a deployment with real files, driven by its REST interface."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

from tests.services.processes import descendants, descendants_named, die_with_parent

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "iotdb" / "2.0.1-beta" / "data" / "datanode"
SITE_IDS = {"plant1": "5d0f6a1e-7c5b-4f0e-9a57-2f6f3a1c7e01", "plant2": "b1f0c3de-2f64-4a0b-8d0b-6c2f9f0f7a02"}
QUICK = {"AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "5", "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5"}
START_SECONDS = 120.0
RUN_SECONDS = 180.0
ENDED = ("success", "failed")


@dataclass
class Deployment:
    """Sites, receivers and a link each in one folder, and their tidemark.toml. Every site has the same real files."""

    root: Path
    engine: str = "pool"
    lines: dict[str, str] = field(default_factory=dict)  # further lines of a link
    receiver_lines: str = ""  # further lines of every receiver
    stores: dict[str, str] = field(default_factory=dict)  # how a site is reached, where not as a folder here

    def make(self) -> None:
        for site in SITE_IDS:
            for folder in ("data", "system"):
                shutil.copytree(DATA / folder, self.site(site) / folder)
        self.write()

    @property
    def config(self) -> Path:
        return self.root / "tidemark.toml"

    def site(self, name: str) -> Path:
        return self.root / name

    def receiver(self, site: str) -> Path:
        return self.root / f"centre_{site}"

    def write(self, more: str = "") -> None:
        blocks = [f'[spark]\nengine = "{self.engine}"\nmaster = "local[1]"\n']
        for site, site_id in SITE_IDS.items():
            store = self.stores.get(site, f'store = "{site}"')
            # one device name has one owner a receiver, so each has its own
            blocks.append(
                f'[receivers.centre_{site}]\nstore = "centre_{site}"\n{self.receiver_lines}\n\n'
                f'[sites.{site}]\nid = "{site_id}"\n{store}\n'
                'data = ["data/sequence", "data/unsequence"]\nschema = "system/schema"\n\n'
                f'[links.{site}]\nsite = "{site}"\nreceiver = "centre_{site}"\n{self.lines.get(site, "")}\n'
            )
        self.config.write_text("\n".join(blocks) + more)

    def sealed(self, site: str) -> list[str]:
        return sorted(str(path.relative_to(self.site(site))) for path in (self.site(site) / "data").rglob("*.tsfile"))

    def landed(self, site: str) -> list[str]:
        """Source paths of the TsFiles in whole landings, once for every time they are there."""
        manifests = self.receiver(site).glob("landing/*/*/manifest.json")
        return sorted(f["path"] for m in manifests for f in json.loads(m.read_bytes())["files"] if f["tsfile"])

    def seal_another(self, site: str) -> str:
        """The server seals one more file (a copy of a real one under a name that follows it)."""
        newest = sorted((self.site(site) / "data" / "unsequence").rglob("*.tsfile"))[-1]
        created, version, _, _ = newest.name.split("-")
        name = f"{int(created) + 1}-{int(version) + 1000}-0-0.tsfile"
        for companion in ("", ".resource"):
            shutil.copy2(f"{newest}{companion}", newest.with_name(name + companion))
        return name

    def tidemark(self, *words: str, expect: tuple[int, ...] = (0,)) -> dict[str, Any]:
        done = subprocess.run(
            self.command(*words, "--json"), env=self.environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode in expect, done.stderr + done.stdout
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "tidemark.cli", "--config", str(self.config), *words]

    def environment(self, **more: str) -> dict[str, str]:
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "TIDEMARK"))}
        return ours | {"PYTHONPATH": str(ROOT / "plugins")} | more


class RunningAirflow:
    """`./tidemark up` as a child that dies with the test process."""

    def __init__(self, deployment: Deployment, quick_parsing: bool = True, **environ: str) -> None:
        self.deployment = deployment
        self.process = subprocess.Popen(
            deployment.command("up", "--port", "0", "--json"),
            env=deployment.environment(**(QUICK if quick_parsing else {}), **environ),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=die_with_parent(),
        )
        assert self.process.stdout is not None
        answer = json.loads(self.process.stdout.readline() or "{}")  # it says where it is when it answers, or why not
        assert answer.get("ok"), answer
        self.ui = str(answer["ui"])
        self.user = str(answer["user"])
        self.password = str(json.loads(Path(answer["password_file"]).read_text())[self.user])
        self._token = ""

    def __enter__(self) -> RunningAirflow:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def sessions(self) -> set[int]:
        """The session leaders below it: the starter and Airflow's parts."""
        found = set()
        for child in descendants(self.process.pid):
            with contextlib.suppress(ProcessLookupError):  # ended meanwhile
                if os.getsid(child.pid) == child.pid:
                    found.add(child.pid)
        return found

    def part(self, name: str) -> int:
        """The process id of a part of Airflow: "scheduler", "api_server" …"""
        leaders = self.sessions()
        found = [p.pid for p in descendants_named(self.process.pid, f"airflow {name}") if p.pid in leaders]
        assert len(found) == 1, f"{name}: {found}"
        return found[0]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout=120)

    def call(self, method: str, path: str, body: dict[str, Any] | None = None, token: str | None = None) -> dict[str, Any]:
        """One request to Airflow's REST interface; `token` instead of the admin's."""
        if token is None:
            token = self._token = self._token or self.login(self.password)
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Authorization": f"Bearer {token}"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.ui + path, data=data, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=120) as reply:
            return dict(json.load(reply))

    def login(self, password: str) -> str:
        """A token for the admin."""
        asked = {"username": self.user, "password": password}
        return str(self.call("POST", "/auth/token", asked, token="")["access_token"])

    def wait_for_dag(self, dag: str) -> None:
        def known() -> bool:
            try:
                return not self.call("GET", f"/api/v2/dags/{dag}")["is_paused"]
            except urllib.error.HTTPError as missing:
                if missing.code != 404:
                    raise
                return False

        wait(known, f"DAG {dag}", START_SECONDS)

    def tasks(self, dag: str) -> set[str]:
        """The tasks of a DAG as Airflow knows it."""
        return {task["task_id"] for task in self.call("GET", f"/api/v2/dags/{dag}/tasks")["tasks"]}

    def trigger(self, dag: str, **conf: Any) -> str:
        """Begin a run; its id. Asked again under the same id after a 500: `up` keeps Airflow in SQLite, where a writer waits
        five seconds for another one, and then gives up."""
        body = {"dag_run_id": f"manual__{uuid.uuid4().hex}", "logical_date": None, "conf": conf}

        def begun() -> bool:
            try:
                self.call("POST", f"/api/v2/dags/{dag}/dagRuns", body)
            except urllib.error.HTTPError as error:
                if error.code == HTTPStatus.INTERNAL_SERVER_ERROR:
                    return False
                if error.code != HTTPStatus.CONFLICT:  # a conflict: the run began, and its answer was lost
                    raise
            return True

        wait(begun, f"a run of {dag}", RUN_SECONDS, 1.0)
        return str(body["dag_run_id"])

    def wait_for_run(self, dag: str, run: str, poll_seconds: float = 0.5) -> str:
        def state() -> str:
            return str(self.call("GET", f"/api/v2/dags/{dag}/dagRuns/{run}")["state"])

        wait(lambda: state() in ENDED, f"the end of {dag} {run}", RUN_SECONDS, poll_seconds)
        return state()

    def runs(self, dag: str) -> list[dict[str, Any]]:
        return list(self.call("GET", f"/api/v2/dags/{dag}/dagRuns?limit=100")["dag_runs"])

    def instances(self, dag: str, run: str) -> list[dict[str, Any]]:
        return list(self.call("GET", f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances?limit=100")["task_instances"])

    def states(self, dag: str, run: str) -> dict[str, str]:
        return {ti["task_id"]: ti["state"] for ti in self.instances(dag, run)}

    def clear(self, dag: str, run: str, **what: Any) -> None:
        body = {"dry_run": False, "dag_run_id": run, "reset_dag_runs": True, "only_failed": False, **what}
        assert self.call("POST", f"/api/v2/dags/{dag}/clearTaskInstances", body)["total_entries"] > 0

    def log(self, dag: str, run: str, task: str) -> str:
        found = self.call("GET", f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{task}/logs/1?full_content=true")
        return json.dumps(found, ensure_ascii=False)


def wait(ready: Callable[[], bool], what: str, seconds: float = 120.0, poll_seconds: float = 0.5) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain for {what}"
        time.sleep(poll_seconds)
