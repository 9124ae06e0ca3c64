"""Tidemark as its users have it: a folder with a `tidemark.toml`, and the command as a process of its own."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.commanded import Said, run_here
from tests.expected import RealSite, Row
from tests.services.command_forks import Forked, start_command
from tests.services.sshd import Sshd

ROOT = Path(__file__).parents[2]
SITE_ID = "0f8e3c1a-2b4d-4c6e-8f10-213243546576"
HOUSEKEEP = ("housekeep",)  # a DAG's task, no verb: run as a program of its own, without the grace of a day


def run_housekeep() -> int:
    """The task: housekeeping by the settings file that the last word names. Returns the exit code."""
    from tidemark.app import open_app
    from tidemark.errors import TidemarkError
    from tidemark.operations import housekeeping
    from tidemark.settings.load import load_settings

    housekeeping.GRACE_DAYS = 0.0
    app = open_app(load_settings(sys.argv[-1], os.environ))
    try:
        print(json.dumps(housekeeping.housekeep(app, app.receiver_settings()).as_json()))
    except TidemarkError as error:
        print(json.dumps({"ok": False, "error": error.message}))
        return error.kind
    return 0


@dataclass
class Deployed:
    """One site, one receiver, one link `plant1`, each end a folder of this machine or reached through an sshd.

    `site_through`, `receiver_through`: the server in front of that end, None: `file://`.
    """

    folder: Path
    site: RealSite  # what its data folders are called
    site_root: Path
    receiver_root: Path
    site_through: Sshd | None = None
    receiver_through: Sshd | None = None
    ledger: str = "sqlite:///var/ledger.db"
    link: str = ""  # further lines of the link
    more: str = ""  # further lines of the site
    name: str = "plant1"
    environ: dict[str, str] = field(default_factory=dict)
    here: bool = False  # verbs run in this process: a test that kills none starts none

    def write(self) -> Deployed:
        self.folder.mkdir(parents=True, exist_ok=True)
        data = ", ".join(f'"{path}"' for path in self.site.data)
        self.config.write_text(
            f'[ledger]\nurl = "{self.ledger}"\n\n'
            f"[receivers.centre]\n{_store(self.receiver_root, self.receiver_through)}\n\n"
            f'[sites.{self.name}]\nid = "{SITE_ID}"\n{_store(self.site_root, self.site_through)}\n'
            f'data = [{data}]\nschema = "{self.site.schema}"\n{self.more}\n\n'
            f'[links.{self.name}]\nsite = "{self.name}"\n{self.link}\n'
        )
        return self

    @property
    def config(self) -> Path:
        return self.folder / "tidemark.toml"

    def run(self, *words: str, expect: tuple[int, ...] = (0,)) -> dict[str, Any]:
        """Run a verb to its end; the JSON it ends with."""
        said = run_here(self.config, *words) if self.here else self._run_apart(words)
        assert said.code in expect, f"{words} ended with {said.code}\n{said.out}\n{said.err}"
        return said.json

    def _run_apart(self, words: tuple[str, ...]) -> Said:
        process = self.start(*words)
        out, err = process.communicate()
        return Said(process.wait(), out.decode(), err.decode())

    def start(self, *words: str) -> Forked:
        """Start a verb in a process group of its own, as a shell does."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "TIDEMARK"))}
        environment = ours | {"PYTHONPATH": str(ROOT / "plugins")} | self.environ
        if words == HOUSEKEEP:
            return start_command([str(self.config)], environment, f"{__name__}:{run_housekeep.__name__}")
        return start_command(["--config", str(self.config), *words, "--json"], environment)

    def killed(self, after: float, *words: str) -> bool:
        """Start a verb and kill its whole process group after so many seconds; False where it had ended by then."""
        process = self.start(*words)
        try:
            out, err = process.communicate(timeout=after)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return True
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode in ENDS, f"{words} ended with {process.returncode}\n{out.decode()}\n{err.decode()}"
        return False

    def read(self, out: str = "points.csv", *words: str) -> list[Row]:
        """What `read --tall` writes, as rows."""
        place = self.folder / out
        answer = self.run("read", "--tall", "--out", str(place), *words)
        rows = read_csv(place) if place.suffix == ".csv" else read_parquet(place)
        assert answer["rows"] == len(rows) and answer["devices"] == len({row[0] for row in rows})
        return rows


ENDS = (0, 5, 20, 22, 23)  # how a run may end that comes after a kill: done, wait, told what is not done yet


def read_csv(place: Path) -> list[Row]:
    with place.open(newline="", encoding="utf-8") as file:
        header, *lines = csv.reader(file)
    assert header == ["device", "measurement", "time", "type", "value"]
    return [(line[0], line[1], int(line[2]), line[3], line[4]) for line in lines]


def read_parquet(place: Path) -> list[Row]:
    import pyarrow.parquet as pq

    table = pq.read_table(place)
    assert table.column_names == ["device", "measurement", "time", "type", "value"]
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _store(root: Path, through: Sshd | None) -> str:
    if through is None:
        return f'store = "file://{root}"'
    return f'store = "{through.url(root)}"\nhost_key = "{through.host_key}"\nkey = "{through.key}"'
