"""The DAG of a source of changes, run without a scheduler against a server that serves recorded logs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from airflow.sdk.exceptions import AirflowSkipException

from tests.binlog_maker import recorded
from tests.commanded import run_here
from tests.dags.conftest import Centre
from tests.dump_worlds import MYSQL
from tests.services.binlog_source import BinlogSource
from tests.services.processes import descendants_named
from tests.sink_worlds import SinkWorld, inserted, read, updated
from tidemark.changes.binlog.gtid_sets import MysqlGtidSet
from tidemark.changes.sinks.deliver import find_sink, read_sink_table
from tidemark.changes.sources.verify import VERIFIED, VERIFY_SECONDS
from tidemark.changes.store.model import ABSENT, Column, Kind, Rows, Shape
from tidemark.changes.store.write import Writer
from tidemark.engines.java import java_home
from tidemark.engines.spark import close_sessions
from tidemark.errors import BinlogGapError, PartialError, PermanentError, UsageError
from tidemark.ledger.leases import Leases
from tidemark.orchestration.tasks import changes as tasks

pytestmark = pytest.mark.usefixtures("airflow_database")
DAG = "tidemark_changes__orders"
ALL = ("check", "capture", "bootstrap", "retain", "verify", "done")
UUID = "97c7af02-4c50-11ec-acd8-681842034964"
GRANT = "GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO `tide`@`%`"


@pytest.fixture
def server(centre: Centre) -> Iterator[BinlogSource]:
    with BinlogSource({name: recorded(file) for name, file in MYSQL.items()}) as made:
        made.variables |= {"binlog_format": "ROW", "binlog_row_image": "FULL", "binlog_row_metadata": "FULL"}
        made.answers["SHOW GRANTS"] = [{"Grants": GRANT}]
        made.answers["SELECT UNIX_TIMESTAMP"] = _Now()
        host, port = made.address
        centre.write(
            f'[sources.orders]\nurl = "mysql://tide@{host}:{port}"\ntls = "off"\nstore = "orders"\nretain_hours = 300000\n'
            'start = "earliest"\n'
        )
        yield made


class _Now(list[Any]):
    """The server's clock: that of the moment when it is asked."""

    def __iter__(self) -> Iterator[dict[str, object]]:
        import time

        return iter([{"clock": time.time()}])

    def __getitem__(self, _number: Any) -> Any:
        return {"clock": 0}

    def __bool__(self) -> bool:
        return True


def read_rows(centre: Centre) -> list[dict[str, Any]]:
    out = centre.root / "changes.jsonl"
    assert run_here(centre.config, "changes", "read", "orders", "--out", str(out)).code == 0
    return [json.loads(line) for line in out.read_text().splitlines()]


def announced() -> list[dict[str, Any]]:
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        found = select(AssetEvent.extra).join(AssetModel, AssetModel.id == AssetEvent.asset_id)
        return [dict(extra) for extra in session.scalars(found.where(AssetModel.uri == "tidemark://orders/changes"))]


@pytest.mark.full
def test_a_run_captures_all_once_and_tells_of_it_once(centre: Centre, server: BinlogSource, run: Callable[..., Any]) -> None:
    before = len(announced())
    assert run(DAG) == {part: ["success"] for part in ("run", *ALL)}
    lines = read_rows(centre)
    assert [line for line in lines if line["k"] == "row"]
    newest = lines[-1]["seq"]
    last = {"run": ["success"], **{part: ["success"] for part in ALL}, "verify": ["skipped"]}
    assert run(DAG) == last, "nothing new; what was verified today is not verified again"
    assert read_rows(centre) == lines
    told = announced()[before:]
    assert [event["to"] for event in told] == [newest]


@pytest.mark.full
def test_a_capture_that_died_is_made_good_by_the_next(
    centre: Centre, server: BinlogSource, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    appended = Writer.append_all

    def die(self: Writer, transactions: Iterable[Any]) -> None:
        """Half of them are durable, the others are lost."""
        several = list(transactions)
        appended(self, several[: len(several) // 2])
        self.sync()
        raise PermanentError("the worker dies")

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "append_all", die)
        states = run(DAG)
    assert states["run"] == ["failed"] and states["capture"] == ["failed"] and states["done"] == ["upstream_failed"]
    assert run(DAG)["run"] == ["success"]
    lines = read_rows(centre)
    other = centre.config.read_text().replace('store = "orders"', 'store = "others"')
    centre.config.write_text(other)
    assert run_here(centre.config, "changes", "capture", "orders").code == 0
    assert read_rows(centre) == lines


@pytest.mark.full
def test_it_is_skipped_while_somebody_follows(centre: Centre, server: BinlogSource, run: Callable[..., Any]) -> None:
    app = centre.app()
    with Leases(app.ledger, app.identity).hold_lease("capture:orders", "follow"):
        states = run(DAG)
        assert {states[part][0] for part in ALL[:-1]} == {"skipped"}
        with pytest.raises(AirflowSkipException):
            tasks.capture("orders")
        with pytest.raises(AirflowSkipException):
            tasks.bootstrap("orders")
    app.ledger.close()
    assert run(DAG)["run"] == ["success"]


@pytest.mark.full
def test_a_red_check_stops_no_capture(centre: Centre, server: BinlogSource, run: Callable[..., Any]) -> None:
    server.variables["binlog_format"] = "MIXED"
    states = run(DAG)
    assert (states["run"], states["check"], states["capture"]) == (["failed"], ["failed"], ["success"])
    assert states["done"] == ["upstream_failed"]
    with pytest.raises(PermanentError, match="binlog_format: MIXED") as red:
        tasks.check("orders")
    assert red.value.hint.startswith("SET GLOBAL binlog_format")


@pytest.mark.full
def test_a_purge_is_a_gap(centre: Centre, server: BinlogSource) -> None:
    assert run_here(centre.config, "changes", "capture", "orders", "--until", "seq:3").code == 0
    del server.logs["binlog.000007"]
    server.purged = MysqlGtidSet.parse(f"{UUID}:1-5")
    server.variables |= {"gtid_mode": "ON", "gtid_purged": str(server.purged), "gtid_executed": f"{UUID}:1-9"}
    with pytest.raises(BinlogGapError, match="purged"):
        tasks.check("orders")
    with pytest.raises(BinlogGapError, match="gap 1 of source orders"):
        tasks.capture("orders")


def test_verify_once_a_day(centre: Centre, server: BinlogSource) -> None:
    with pytest.raises(AirflowSkipException):
        tasks.verify("orders")  # there is nothing yet
    assert run_here(centre.config, "changes", "capture", "orders").code == 0
    assert tasks.verify("orders")["transactions"]
    with pytest.raises(AirflowSkipException):
        tasks.verify("orders")
    noted = centre.root / "orders" / VERIFIED
    noted.write_text(str(int(noted.read_text()) - VERIFY_SECONDS))
    assert tasks.verify("orders")["transactions"]
    noted.unlink()  # as a death before it is noted leaves it
    bucket = max((centre.root / "orders" / "data").glob("*/*.data"))
    data = bytearray(bucket.read_bytes())
    data[-30] ^= 1
    bucket.write_bytes(data)
    with pytest.raises(Exception, match="data") as red:
        tasks.verify("orders")
    assert not isinstance(red.value, AirflowSkipException)
    assert not noted.exists()


@pytest.fixture
def java() -> Iterator[None]:
    try:
        java_home()
    except UsageError as missing:
        pytest.skip(missing.message)
    yield
    close_sessions()


@pytest.mark.soak
@pytest.mark.real("spark")
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("java")
def test_sinks_by_spark_of_each_kind_are_tasks_of_their_dags(
    centre: Centre, run: Callable[..., Any], tmp_path: Path
) -> None:
    world = SinkWorld(tmp_path / "world", "history")
    at, n = Column("at", Kind.TEXT, "datetime(3) not null", key=True), Column("n", Kind.INT64, "int")
    ticks = Shape("plant", "ticks", (at, n))
    for number in range(40):
        world.append([inserted(number, "a", "1.00")])
        world.append(Rows.of(ticks, [inserted(f"2026-11-28 10:00:{number:02}.000", number)]))
    tables = {"delta": "shop.*", "history": "**", "catalog": "plant.ticks"}
    sinks = [
        f'[sinks.{kind}]\nsource = "orders"\nkind = "{kind}"\ntarget = "{kind}"\nengine = "spark"\ntables = ["{wanted}"]\n'
        for kind, wanted in tables.items()
    ]
    site = '[sites.plant]\nid = "2b4e28ba-2fa1-41d2-883f-0016d3cca427"\nstore = "catalog"\n'
    centre.write(f'[sources.orders]\nstore = "{world.folder}/store"\n{site}{"".join(sinks)}')
    told = centre.config.read_text(encoding="utf-8")
    centre.config.write_text(told.replace('engine = "pool"', 'engine = "spark"\nmaster = "local[2]"'), encoding="utf-8")
    for kind in tables:
        assert run(f"tidemark_sink__{kind}")["deliver"] == ["success"]
    assert descendants_named(os.getpid(), "spark_jobs/")
    lake = find_sink(centre.app(), "delta")
    assert sum(batch.num_rows for batch in read_sink_table(lake, "shop.orders")) == 40
    assert sum(pq.read_metadata(file).num_rows for file in (centre.root / "history").rglob("*.parquet")) == 80
    assert len(list((centre.root / "catalog").rglob("*.tsfile"))) >= 1


def test_a_sink_is_delivered_and_a_table_that_stops_is_red(centre: Centre, tmp_path: Path) -> None:
    world = SinkWorld(tmp_path / "sink", "delta")
    centre.write(world.config.read_text(encoding="utf-8").replace('"store"', f'"{world.folder}/store"'))
    world.bootstrap(read(1, "a", "1.00"))
    assert tasks.deliver("lake") == {"batches": 1, "rows": 1}
    assert tasks.deliver("lake") == {"batches": 0, "rows": 0}
    world.append([updated((1, "a", "1.00"), (1, ABSENT, "2.00"))])
    with pytest.raises(PartialError, match="not logged whole"):
        tasks.deliver("lake")
    app = centre.app()
    with Leases(app.ledger, app.identity).hold_lease("sink:lake", "another"), pytest.raises(AirflowSkipException):
        tasks.deliver("lake")
