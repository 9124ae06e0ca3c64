"""`why` and `status` of sources of changes: whole, purged, away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.commanded import run_here
from tests.services.binlog_source import BinlogSource
from tests.unit.changes.trust.test_doctor import write_settings
from tidemark.changes.binlog.gtid_sets import MysqlGtidSet

TABLES = "SELECT TABLE_SCHEMA AS db, TABLE_NAME AS tab FROM information_schema.TABLES"
UUID = "97c7af02-4c50-11ec-acd8-681842034964"


def why(config: Path, subject: str) -> dict[str, Any]:
    said = run_here(config, "why", subject)
    assert said.code == 0, said
    return said.json


@pytest.mark.full
def test_what_a_source_its_tables_and_transactions_are(tmp_path: Path, source: BinlogSource) -> None:
    source.answers[TABLES] = [{"db": "shop", "tab": "orders"}]
    source.variables |= {"gtid_mode": "ON", "gtid_executed": f"{UUID}:1-5"}
    config = write_settings(tmp_path, source.address[1])
    assert why(config, "source:orders")["next"] == "./tidemark changes capture orders"
    assert run_here(config, "status").json["sources"][0]["state"] == "new"
    assert run_here(config, "changes", "capture", "orders", "--until", "seq:3").code == 0
    told = why(config, "source:orders")
    assert (told["state"], told["final"]) == ("idle", True)
    assert any("binlog.000007" in line for line in told["evidence"])
    assert why(config, "table:shop.orders")["cause"].endswith("source orders")
    assert why(config, f"{UUID}:2")["cause"] == "source orders has it as seq:2"
    assert why(config, f"{UUID}:4")["state"] == "missing"
    run_here(config, "why", "table:shop.nothing").refused(3, "shop.nothing")
    run_here(config, "why", "source:others").refused(3, "others", "orders")
    run_here(config, "why", "gap:1").refused(3, "gap '1'")

    del source.logs["binlog.000007"]
    source.purged = MysqlGtidSet.parse(f"{UUID}:1-5")
    source.variables["gtid_purged"] = str(source.purged)
    run_here(config, "changes", "capture", "orders").refused(31, "gap 1")
    assert why(config, "source:orders")["next"] == "./tidemark why gap:orders/1"
    for subject in ("gap:1", "gap:orders/1"):
        gap = why(config, subject)
        assert (gap["kind"], gap["state"]) == ("gap", "open")
        assert any("shop.orders" in line for line in gap["evidence"])
    assert why(config, "table:shop.orders")["state"] == "gap"
    source.__exit__()
    assert why(config, "source:orders")["state"] == "gap", "a server that is away hides no gap"
    said = run_here(config, "status")
    assert said.code == 23
    assert said.json["sources"][0]["gaps"] == ["1"] and "source orders" in said.json["error"]
