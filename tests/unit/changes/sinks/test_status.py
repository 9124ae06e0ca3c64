"""What `status` tells of sinks: how far they are, which one failed, and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.request import Request as Get
from urllib.request import urlopen

import jsonschema

from tests.served_changes import OTHERS, TOKEN, start
from tests.sink_worlds import ORDERS, SinkWorld, inserted
from tidemark.changes.sinks.deliver import Request
from tidemark.changes.store.model import Column, Kind, Rows, Shape

SCHEMA = Path(__file__).parents[4] / "docs" / "schemas" / "status.json"


def told(world: SinkWorld) -> tuple[int, dict[str, Any]]:
    """The exit code, and what is told of the sink."""
    said = world.run_status()
    jsonschema.validate(said.json, json.loads(SCHEMA.read_text(encoding="utf-8")))
    [sink] = said.json["sinks"]
    assert (sink["name"], sink["source"]) == ("lake", "orders")
    assert ("error" in said.json) == sink["failed"]
    return said.code, sink


def test_new_late_and_current(tmp_path: Path) -> None:
    world = SinkWorld(tmp_path, "history")
    world.append(*[[inserted(number, "a", "1.00")] for number in range(1, 11)])
    code, sink = told(world)
    assert (code, sink["state"], sink["batch"], sink["behind_transactions"]) == (0, "new", None, 10)
    assert (sink["behind_seconds"], sink["next"]) == (None, "./tidemark changes deliver lake")
    world.deliver(Request(to="seq:5"))
    code, sink = told(world)
    assert (code, sink["state"], sink["point"], sink["batch"]) == (0, "late", "seq:5", 1)
    assert (sink["behind_transactions"], sink["behind_seconds"]) == (6, 6.0)
    world.deliver()
    code, sink = told(world)
    assert (code, sink["state"], sink["behind_transactions"], sink["behind_seconds"]) == (0, "current", 0, 0.0)
    assert (sink["why"], sink["next"]) == ("", "")


def test_tables_that_are_not_whole_and_not_written(tmp_path: Path) -> None:
    world = SinkWorld(tmp_path, "delta")
    world.append([inserted(1, "a", "1.00")])
    world.deliver()
    code, sink = told(world)
    assert (code, sink["state"], sink["next"]) == (0, "partial", "./tidemark why sink:lake")
    other = Shape("shop", "orders", (ORDERS.columns[0], Column("name", Kind.INT64, "int")))
    world.append(Rows.of(other, [inserted(2, 5)]))
    world.deliver()
    code, sink = told(world)
    assert (code, sink["state"], sink["failed"]) == (23, "stopped", True)
    assert sink["why"].startswith("shop.orders: ") and sink["next"] == "./tidemark why sink:lake"
    said = world.run_status()
    assert said.json["error"] == f"sink lake (stopped): {sink['why']}"


def test_metrics_of_a_server_tell_of_the_sinks_of_the_token(tmp_path: Path) -> None:
    world = SinkWorld(tmp_path, "history")
    world.append(*[[inserted(number, "a", "1.00")] for number in range(1, 11)])
    world.deliver(Request(to="seq:5"))
    world.config.write_text(world.config.read_text() + '[changes]\ntokens = "changes.tokens"\n')
    (tmp_path / "changes.tokens").write_text(f"{TOKEN} billing\n{OTHERS} lake\n")
    process, address = start(tmp_path)
    try:
        told = {token: read_metrics(address, token) for token in (TOKEN, OTHERS)}
    finally:
        process.terminate()
        process.wait()
    assert not any(line.startswith("tidemark_changes_sink") for line in told[TOKEN])
    for word, value in (("batch", 1), ("behind_transactions", 6), ("behind_seconds", 6.0), ("stopped_tables", 0)):
        assert f'tidemark_changes_sink_{word}{{sink="lake"}} {value}' in told[OTHERS]
        assert f"# TYPE tidemark_changes_sink_{word} gauge" in told[OTHERS]
    assert any(line.startswith('tidemark_changes_sink_batch_rows{sink="lake"} ') for line in told[OTHERS])


def read_metrics(address: str, token: str) -> list[str]:
    request = Get(f"{address}/metrics", headers={"Authorization": f"Bearer {token}"})
    with urlopen(request) as answer:
        return str(answer.read().decode()).splitlines()
