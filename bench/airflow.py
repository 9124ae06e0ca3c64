"""`./tidemark bench airflow`: what Airflow adds to a sync run, from the trigger to its end.

The same link is synced in turns by `./tidemark sync --no-load` and by its DAG in a running Airflow (`./tidemark up`),
over a real sshd, each time with the same number of new files of a real IoTDB, or with nothing new. Nothing is loaded
meanwhile.

`added_seconds`, `added_seconds_idle`: the DAG's median seconds less the command's. A DAG run counts from the moment before
its trigger is sent to the end that Airflow gives it. `up_seconds`: the start of that Airflow, its first.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.measure import Contender, Sample, report
from tests.services import sshd
from tests.services.running_airflow import ROOT, Deployment, RunningAirflow, wait

LINK = "plant1"
DAG = f"tidemark_sync__{LINK}"
NEW_FILES = 8


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tidemark bench airflow", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="five rounds instead of fifteen")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    rounds = 5 if asked.quick else 15
    server = sshd.start()
    try:
        with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as folder:
            deployment = Deployment(Path(folder))
            deployment.stores[LINK] = (
                f'store = "{server.url(deployment.site(LINK))}"\nkey = "{server.key}"\nhost_key = "{server.host_key}"'
            )
            deployment.receiver_lines = "max_unloaded_landings = 10000"  # nothing loads while we measure
            deployment.make()
            began = time.monotonic()
            with RunningAirflow(deployment, quick_parsing=False) as airflow:
                up_seconds = time.monotonic() - began
                airflow.wait_for_dag(DAG)
                airflow.wait_for_dag("tidemark_load")
                pause_loads(airflow)
                for contender in (turn := Turns(airflow)).warm_up():
                    contender.samples.clear()
                busy = turn.alternate(rounds, NEW_FILES)
                idle = turn.alternate(rounds, 0)
                steps = turn.steps()
    finally:
        server.close()
    ratios = {
        "added_seconds": busy[1].median_seconds - busy[0].median_seconds,
        "added_seconds_idle": idle[1].median_seconds - idle[0].median_seconds,
        "up_seconds": up_seconds,
    }
    ours = {c.name: c.as_json() for c in (busy[1], idle[1])} | {"seconds_of_the_last_run": steps}
    paper = report("airflow", ratios, ours, {c.name: c.as_json() for c in (busy[0], idle[0])})
    print(json.dumps(paper if asked.json else paper["ratios"], indent=None if asked.json else 1))
    return 0


def pause_loads(airflow: RunningAirflow) -> None:
    """No load begins any more, and none is at work: the tick of its clock may have begun one."""
    airflow.call("PATCH", "/api/v2/dags/tidemark_load", {"is_paused": True})

    def quiet() -> bool:
        running = [run["dag_run_id"] for run in airflow.runs("tidemark_load") if run["state"] == "running"]
        states = {ti["state"] for run in running for ti in airflow.instances("tidemark_load", run)}
        return not states & {"running", "queued", "scheduled"}

    wait(quiet, "the loads' end", 120)


class Turns:
    """The command and the DAG by turns on one link, each over the same amount of work."""

    def __init__(self, airflow: RunningAirflow) -> None:
        self.airflow = airflow
        self.deployment = airflow.deployment
        self.last_run = ""

    def alternate(self, rounds: int, files: int) -> tuple[Contender, Contender]:
        """`rounds` samples of (command, DAG), the order turned each round."""
        work = f"{files} new files" if files else "nothing new"
        words = [str(ROOT / "tidemark"), "--config", str(self.deployment.config), "sync", LINK, "--no-load", "--json"]
        command = Contender(f"tidemark sync, {work}", words)
        dag = Contender(f"DAG run, {work}", ["POST", f"/api/v2/dags/{DAG}/dagRuns"])
        for number in range(rounds):
            for contender in (command, dag) if number % 2 else (dag, command):
                self.prepare(files)
                if contender is command:
                    command.run(ROOT)
                else:
                    dag.samples.append(self.run_dag())
        return command, dag

    def warm_up(self) -> tuple[Contender, Contender]:
        """One round that is not counted: the first run sends the site's own files."""
        return self.alternate(1, 0)

    def prepare(self, files: int) -> None:
        """Let the site seal `files` more."""
        for _ in range(files):
            self.deployment.seal_another(LINK)

    def run_dag(self) -> Sample:
        began = time.time()
        self.last_run = self.airflow.trigger(DAG)
        state = self.airflow.wait_for_run(DAG, self.last_run, poll_seconds=0.25)  # it answers the tasks as well
        if state != "success":
            raise RuntimeError(f"DAG run {self.last_run} ended {state}")
        ended = self.airflow.call("GET", f"/api/v2/dags/{DAG}/dagRuns/{self.last_run}")["end_date"]
        return Sample(
            _seconds(ended) - began, cpu_seconds=0.0, peak_mb=0.0, far_peak_mb=0.0, far_cpu_seconds=0.0, exit_code=0
        )

    def steps(self) -> list[dict[str, Any]]:
        """Where the last DAG run's time went: each task from queued to started to ended, from the run's start."""
        run = self.airflow.call("GET", f"/api/v2/dags/{DAG}/dagRuns/{self.last_run}")
        zero = _seconds(run["queued_at"])
        names = ("scheduled_when", "queued_when", "start_date", "end_date")
        rows = [
            {"task": ti["task_id"]} | {n: round(_seconds(ti[n]) - zero, 2) for n in names if ti.get(n)}
            for ti in self.airflow.instances(DAG, self.last_run)
        ]
        return sorted(rows, key=lambda row: row.get("end_date", 0.0))


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


if __name__ == "__main__":
    sys.exit(main())
