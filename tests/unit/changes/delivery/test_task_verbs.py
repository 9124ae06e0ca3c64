"""Tasks by the commands that users type: consume, show, rewind, reshard, retain."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.commanded import Said, run_here
from tests.delivery_worlds import expected_changes, fill_store
from tidemark.app import open_app
from tidemark.changes import consume
from tidemark.changes.consume import Consumption, consume_task
from tidemark.changes.delivery.stream import Options
from tidemark.changes.delivery.tasks import Wanted
from tidemark.errors import RetryableError
from tidemark.settings.load import load_settings

LAST = 60


class Typed:
    """A source `orders` with a store, and commands about it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "tidemark.toml"
        self.write_settings()
        fill_store(folder / "store", 1, LAST)

    def write_settings(self, more: str = "") -> None:
        self.config.write_text(f'[ledger]\nurl = "sqlite:///ledger.db"\n[sources.orders]\nstore = "store"\n{more}\n')

    def run(self, *words: str) -> Said:
        return run_here(self.config, "changes", *words)

    def why(self, subject: str) -> dict[str, Any]:
        said = run_here(self.config, "why", subject)
        assert said.code == 0, said
        return said.json

    def consume(self, *words: str) -> dict[str, Any]:
        said = self.run("consume", "billing", "--source", "orders", "--out", str(self.folder / "out"), *words)
        assert said.code == 0, said
        return said.json

    def lines(self) -> list[dict[str, Any]]:
        files = sorted((self.folder / "out").iterdir())
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def rows(self) -> list[tuple[int, int]]:
        return [(line["seq"], line["i"]) for line in self.lines() if line["k"] == "row"]


@pytest.fixture
def typed(tmp_path: Path) -> Typed:
    return Typed(tmp_path)


def test_a_file_a_shard_and_what_is_new_is_appended(typed: Typed) -> None:
    done = typed.consume("--shards", "3")
    assert {one["shard"] for one in done["shards"]} == {0, 1, 2}
    assert sorted(typed.rows()) == sorted(expected_changes(1, LAST))
    assert done["rows"] == len(typed.rows())
    commits = [line for line in typed.lines() if line["k"] == "commit" and line["seq"] == 13]
    assert [line["rows"] for line in commits] == [6, 6, 6]  # each shard is told of the whole transaction
    fill_store(typed.folder / "store", LAST + 1, LAST + 4, fence=2)
    assert typed.consume()["rows"] == len(expected_changes(LAST + 1, LAST + 4))
    assert sorted(typed.rows()) == sorted(expected_changes(1, LAST + 4))
    assert typed.consume()["rows"] == 0


def test_a_torn_line_is_cut_and_comes_again(typed: Typed) -> None:
    typed.consume("--shards", "2", "--limit", "20")
    file = next((typed.folder / "out").iterdir())
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"k":"row","seq":99')
    typed.consume()
    assert set(typed.rows()) == expected_changes(1, LAST)


def test_events_in_the_envelope_of_debezium(typed: Typed) -> None:
    typed.consume("--shards", "1", "--format", "debezium")
    events = typed.lines()
    assert len(events) == len(expected_changes(1, LAST))
    assert events[0]["op"] == "c" and events[0]["before"] is None
    assert events[0]["after"] == {"id": 1, "n": 1000}
    assert (events[0]["source"]["gtid"] or "").endswith(":1")


def test_a_rewind_is_shown_before_it_is_done_and_can_be_undone(typed: Typed) -> None:
    typed.consume("--shards", "3")
    told = typed.run("rewind", "billing", "--to", "seq:41").json
    again = expected_changes(41, LAST)
    assert (told["transactions"], told["rows"], told["applied"]) == (20, len(again), False)
    assert typed.consume()["rows"] == 0
    done = typed.run("rewind", "billing", "--to", "seq:41", "--shard", "1", "--yes").json
    assert done["applied"] and done["undo"] == [f"./tidemark changes rewind billing --to seq:{LAST + 1} --shard 1 --yes"]
    came = typed.consume()
    assert [one["shard"] for one in came["shards"]] == [1]
    assert came["rows"] == done["rows"] == done["shards"][0]["rows"]
    assert set(typed.rows()) == expected_changes(1, LAST)


def test_another_number_of_shards_begins_at_the_earliest_point(typed: Typed) -> None:
    typed.consume("--shards", "3")
    assert typed.run("rewind", "billing", "--to", "seq:51", "--shard", "0", "--yes").code == 0
    told = typed.run("reshard", "billing", "--shards", "5", "--yes").json
    assert told["applied"]
    came = typed.consume()
    assert {one["shard"] for one in came["shards"]} <= set(range(5))
    assert came["rows"] == len(expected_changes(51, LAST))
    shard_zero_alone = told["rows"]  # rows of shards 1 and 2 come twice, those of shard 0 do not
    assert 0 < shard_zero_alone < came["rows"]
    refused = typed.run("consume", "billing", "--source", "orders", "--shards", "3", "--out", str(typed.folder / "out"))
    assert refused.code == 2
    assert "reshard" in refused.json["hint"]


def test_what_is_told_of_a_task(typed: Typed) -> None:
    typed.consume("--shards", "2")
    typed.run("rewind", "billing", "--to", "seq:50", "--shard", "1", "--yes")
    [task] = typed.run("show", "orders").json["tasks"]
    assert (task["name"], task["source"], task["shards"]) == ("billing", "orders", 2)
    assert [one["point"] for one in task["points"]] == [f"seq:{LAST + 1}", "seq:50"]
    assert task["points"][0]["lag_seconds"] == 0 < task["points"][1]["lag_seconds"] == task["lag_seconds"]
    assert [one["holder"] for one in task["points"]] == [None, None]
    told = typed.why("task:billing")
    assert (told["kind"], told["state"]) == ("task", "idle")
    assert "shard 1 is at seq:50" in told["evidence"][1]
    typed.consume()
    assert (typed.why("task:billing")["state"], typed.why("task:billing")["final"]) == ("current", True)
    run_here(typed.config, "why", "task:mailing").refused(3, "'mailing'", "billing")


def test_retention_waits_for_a_task_up_to_retain_bytes_and_an_overrun_one_stops(typed: Typed) -> None:
    typed.consume("--shards", "2", "--limit", "40")
    fill_store(typed.folder / "store", LAST + 1, 400, fence=2)
    typed.write_settings("retain_hours = 1")
    assert int(typed.run("retain", "orders").json["oldest"].removeprefix("seq:")) <= min_point(typed) < 60
    typed.write_settings('retain_hours = 1\nretain_bytes = "1 kB"')
    oldest = int(typed.run("retain", "orders").json["oldest"].removeprefix("seq:"))
    assert oldest > min_point(typed)
    said = typed.run("consume", "billing", "--source", "orders", "--out", str(typed.folder / "out"))
    assert said.code == 31
    assert "rewind" in said.json["hint"]
    told = typed.why("task:billing")
    assert told["state"] == "overrun" and told["next"].startswith("./tidemark changes rewind billing --to earliest --shard")
    assert typed.run("rewind", "billing", "--to", "seq:5").code == 31
    assert typed.run("rewind", "billing", "--to", "earliest", "--yes").code == 0
    typed.consume()
    assert {seq for seq, _ in typed.rows()} >= {seq for seq, _ in expected_changes(oldest, 400)}


def min_point(typed: Typed) -> int:
    [task] = typed.run("show", "orders").json["tasks"]
    return min(int(one["point"].removeprefix("seq:")) for one in task["points"])


class FullPipe:
    """A stream with a buffer that nobody takes."""

    def __init__(self) -> None:
        self.waiting = b""

    def write(self, data: bytes) -> None:
        self.waiting += data

    def flush(self) -> None:
        raise RetryableError("nobody reads")


def test_no_point_moves_over_lines_that_wait_in_a_buffer(typed: Typed) -> None:
    app, pipe = open_app(load_settings(typed.config, {})), FullPipe()
    with pytest.raises(RetryableError, match="nobody reads"):
        consume_task(app, Consumption(Wanted("billing", "orders", 1), write=pipe))
    assert pipe.waiting
    assert min_point(typed) == 1


class CountedPipe:
    def __init__(self) -> None:
        self.writes = self.flushes = 0

    def write(self, _data: bytes) -> None:
        self.writes += 1

    def flush(self) -> None:
        self.flushes += 1


def test_points_move_in_time_also_where_batches_are_few(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume, "Options", partial(Options, checkpoint_seconds=0))
    pipe = CountedPipe()
    consume_task(open_app(load_settings(typed.config, {})), Consumption(Wanted("billing", "orders", 3), write=pipe))
    assert pipe.flushes >= pipe.writes > 10
