"""The log of a command: what was done and said, with times and levels, without secrets, and no line that an edge made."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.commanded import Commanded
from tests.unit.cli.conftest import Command
from tests.unit.cli.test_hostile_names import DEVICE, NASTY, raw
from tidemark.sync.run import STEPS

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (debug|info|warning|error) +tidemark[.\w]*( \[[^]]+\])?: \S.*")
SECRET = "correct-horse"


def test_a_log_file_tells_the_steps_and_the_end_and_grows(tidemark: Command) -> None:
    said = tidemark("sync", "plant1", "--log-file", "run.log")
    assert said.code == 0 and "tidemark.sync" not in said.err
    lines = Path("run.log").read_text().splitlines()
    assert all(LINE.fullmatch(line) for line in lines), lines
    assert "sync plant1 --log-file run.log" in lines[0]
    assert all(f", {step}: " in "".join(lines) for step in STEPS)
    assert any("tidemark.receiver.load.load: landing" in line and "is loaded: 3 files" in line for line in lines)
    assert "result: " in lines[-2] and "files 3" in lines[-2]
    assert re.search(r"ended with 0 after \d+\.\d{3} s$", lines[-1])
    assert tidemark("why", "nothing", "--log-file=run.log").code == 3
    more = Path("run.log").read_text().splitlines()[len(lines) :]
    assert any(" error   tidemark.cli: tidemark: nothing is known by the name 'nothing'" in line for line in more)
    assert any(line.startswith("    Traceback") for line in more)
    assert "ended with 3" in more[-1]


def test_on_stderr_and_as_json(tidemark: Command) -> None:
    said = tidemark("-v", "sync", "plant1", "--json", "--log-json")
    assert said.json["state"] == "loaded"
    logged = [json.loads(line) for line in said.err.splitlines() if line.startswith("{")]
    assert {tuple(one)[:4] for one in logged} == {("time", "level", "from", "message")}
    assert any("transfer_files: 3 files" in one["message"] for one in logged)
    assert tidemark("why", "nothing", "--log-json").err.count('"traceback": "Traceback') == 1
    assert "tidemark.cli" not in tidemark("status").err, "no log where none is asked for"


@pytest.mark.full
def test_a_try_that_failed_is_in_it(tidemark: Command, deployment: Path) -> None:
    place = deployment / "tidemark.toml"
    unreachable = f'store = "sftp://edge@127.0.0.1:1/data"\nhost_key = "SHA256:{"A" * 43}"\nkey = "tidemark.toml"'
    place.write_text(place.read_text().replace('store = "site"', unreachable))
    said = tidemark("sync", "plant1", "--log-file", "run.log")
    assert said.code != 0
    assert said.err.splitlines()[0] in Path("run.log").read_text()


def test_no_secret_is_in_it(tidemark: Command, deployment: Path) -> None:
    place = deployment / "tidemark.toml"
    place.write_text(
        f'[ledger]\nurl = "postgresql+psycopg://t:{SECRET}@127.0.0.1:1/x?password={SECRET}"\n' + place.read_text()
    )
    for words in (
        ("status",),
        ("why", f"sftp://edge:{SECRET}@10.0.0.5/x"),
        ("init", "new", "--site", f"sftp://e:{SECRET}@h/x"),
    ):
        for form in ((), ("--log-json",)):
            assert tidemark(*words, "-v", "--log-file", "run.log", *form).code != 0
    logged = Path("run.log").read_text()
    assert "sftp://edge:***@10.0.0.5/x" in logged and SECRET not in logged


def test_names_of_an_edge_forge_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = Commanded(tmp_path, monkeypatch)
    world.seal(1, device=DEVICE)
    (world.site / "data/sequence/root.sg/0/0" / f"{NASTY}.tsfile").write_bytes(b"TsFile")
    log = tmp_path / "run.log"
    for words in (("sync", "plant1"), ("why", f"{NASTY}\n2026-01-01T00:00:00.000Z info    tidemark.cli: forged")):
        world.run(*words, "--log-file", str(log), "-v")
    text = log.read_text()
    assert not raw(text)
    assert all(LINE.fullmatch(line) or line.startswith("    ") for line in text.splitlines())
    assert not [line for line in text.splitlines() if line.startswith("2026-01-01")]


@pytest.mark.full
def test_a_log_that_cannot_be_written_stops_nothing(tidemark: Command) -> None:
    said = tidemark("sync", "plant1", "--log-file", "no/such/run.log")
    assert said.code == 2 and "no log can be written to no/such/run.log" in said.err and not Path("var").exists()
    if os.path.exists("/dev/full"):  # noqa: PTH110
        full = tidemark("sync", "plant1", "--log-file", "/dev/full")
        assert full.code == 0 and full.err.count("the log /dev/full cannot be written") == 1
