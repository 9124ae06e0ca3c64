"""What `runs` lists, and how long and how fast `sync` and `load` say that they were."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.commanded import Commanded
from tidemark.cli.main import main
from tidemark.errors import UnreachableError
from tidemark.proof.runs import list_runs
from tidemark.proof.status import LinkFacts, LinkStatus
from tidemark.sync import steps

ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=[pytest.mark.full, pytest.mark.real("postgresql")])])
def edge(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commanded:
    url = "" if request.param == "sqlite" else request.getfixturevalue("postgres_ledger_url")
    return Commanded(tmp_path, monkeypatch, ledger=url)


def runs(edge: Commanded, *words: str) -> list[dict[str, Any]]:
    said = edge.run("runs", *words)
    assert said.code == 0, said
    return list(said.json["runs"])


def test_runs_newest_first_with_how_they_ended(edge: Commanded) -> None:
    assert runs(edge) == []
    edge.seal(1)
    landed = edge.sync("--no-load").json
    [first] = runs(edge)
    assert (first["name"], first["link"], first["outcome"]) == (landed["run"], "plant1", "landed")
    assert (first["files"], first["bytes"], first["sent_bytes"]) == (1, landed["bytes"], landed["sent_bytes"])
    assert ISO.fullmatch(first["started"]) and ISO.fullmatch(first["ended"]) and first["duration_seconds"] >= 0
    assert edge.run("load").code == 0
    assert [run["outcome"] for run in runs(edge)] == ["loaded"], "before the sender has read the receipt"
    nothing = edge.sync().json["run"]
    assert [(run["name"], run["outcome"]) for run in runs(edge)] == [(nothing, "nothing"), (landed["run"], "loaded")]
    assert [run["name"] for run in runs(edge, "plant1", "--limit", "1")] == [nothing]
    edge.run("runs", "nope").refused(3, "no link named 'nope'")


def test_a_run_that_stopped_says_why_and_is_as_fast_as_what_its_last_process_sent(
    edge: Commanded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    edge.seal(1)

    def break_off(_work: object) -> None:
        raise UnreachableError("the line is cut", hint="look at the line")

    with monkeypatch.context() as cut:
        cut.setitem(steps._ACTS, "finish", break_off)
        assert edge.sync().code == 5
    [run] = runs(edge)
    assert (run["outcome"], run["ended"], run["duration_seconds"]) == ("failed", None, None)
    assert "the line is cut" in run["error"] and run["next"]
    time.sleep(2.0)  # the pause
    told = edge.sync().json
    assert told["sent_bytes"] > 0 and told["duration_seconds"] > 0
    assert told["bytes_per_second"] == 0
    cut_off = run["name"]
    [run] = [run for run in runs(edge) if run["name"] == cut_off]
    assert run["outcome"] == "loaded"
    assert run["duration_seconds"] > 2.0, "from its start to its end"
    assert 0 < run["worked_seconds"] <= run["duration_seconds"] - 2.0, "by both processes, without the pause"
    slowest, fastest = (run["sent_bytes"] / (run["worked_seconds"] + rounded) for rounded in (0.006, -0.006))
    assert slowest <= run["bytes_per_second"] <= fastest
    capsys.readouterr()
    assert main(["--config", str(edge.folder / "tidemark.toml"), "runs"]) == 0
    assert " worked " in capsys.readouterr().out


def test_a_load_says_how_long_and_how_fast_it_was(edge: Commanded) -> None:
    edge.seal(1)
    assert edge.sync("--no-load").code == 0
    told = edge.run("load").json
    assert told["duration_seconds"] > 0 and told["files_per_second"] > 0


def test_a_duration_lasts_until_the_end_or_until_now_and_a_rate_is_by_the_time_worked() -> None:
    row = {
        "run_id": "r1",
        "link": "plant1",
        "state": "finished",
        "started": 100.0,
        "ended": 110.0,
        "worked": 10.0,
        "error": None,
        "hint": None,
    }
    row |= {
        "files": 1,
        "bytes": 5000,
        "sent_bytes": 5000,
        "dropped": 0,
        "pending": 0,
        "landings": 1,
        "answered": 1,
        "external": None,
    }
    paused = {**row, "run_id": "r4", "ended": 1100.0}
    older = {**paused, "run_id": "r5", "worked": None}
    working = {**row, "run_id": "r2", "state": "running", "ended": None, "worked": 24.5}
    dead = {**row, "run_id": "r3", "state": "failed", "ended": None, "error": "broken", "hint": "mend it"}
    link = LinkStatus(LinkFacts("plant1", "plant1", "centre", run="r2"), "running", "", "", 0.0)
    told = [run.as_json() for run in list_runs([row, paused, older, working, dead], [link], 125.0)]
    assert [(one["outcome"], one["duration_seconds"], one["bytes_per_second"]) for one in told] == [
        ("loaded", 10.0, 500),
        ("loaded", 1000.0, 500),
        ("loaded", 1000.0, 5),
        ("running", 25.0, 204),
        ("failed", None, 500),
    ]
    assert (told[-1]["error"], told[-1]["next"]) == ("broken", "mend it")
