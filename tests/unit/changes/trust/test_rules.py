"""What a server may say, and what is found wrong with it: each rule beside the sound server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tidemark.changes.binlog.gtid_sets import MariaGtidPosition, MysqlGtidSet
from tidemark.changes.connection.facts import Replica, ServerFacts
from tidemark.changes.connection.model import FilePosition
from tidemark.changes.trust.answers import Answers, Cascade, LogStart, StoreEnd
from tidemark.changes.trust.headroom import Headroom, measure_headroom
from tidemark.changes.trust.patterns import Patterns
from tidemark.changes.trust.rules import Finding, Wanted, judge

HOUR, NOW = 3600, 1_790_000_000.0
UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
WANTED = Wanted("orders")
FACTS = ServerFacts(
    is_maria=True,
    version="10.11.6-MariaDB",
    version_numbers=(10, 11, 6),
    server_id=1,
    server_uuid="",
    hostname="db1",
    time=NOW,
    log_bin=True,
    end=FilePosition("b.000003", 500),
    gtids=MariaGtidPosition.parse("0-1-30"),
    purged=MysqlGtidSet({}),
    has_gtids=True,
    logs=(("b.000001", 1000), ("b.000002", 1000), ("b.000003", 500)),
    binlog_format="ROW",
    row_image="FULL",
    row_metadata="FULL",
    row_value_options="",
    checksum="CRC32",
    is_compressed=False,
    is_encrypted=False,
    is_replica=False,
    log_replica_updates=False,
    do_db="",
    ignore_db="",
    expire_seconds=48 * HOUR,
    space_limit=0,
    lower_case_table_names=0,
    grants=("GRANT SELECT, REPLICATION SLAVE, BINLOG MONITOR ON *.* TO `tide`@`%`",),
    replicas=(),
)
SOUND = Answers(
    address="db1:3306",
    facts=FACTS,
    time=NOW,
    tables=("shop.orders", "shop.people"),
    without_key=(),
    without_snapshot=(),
    cascades=(),
    oldest=LogStart("b.000001", NOW - 40 * HOUR, MariaGtidPosition.parse("0-1-10")),
    following=None,
)


def with_facts(**changes: Any) -> Answers:
    return replace(SOUND, facts=replace(FACTS, **changes))


def find(answers: Answers, subject: str, wanted: Wanted = WANTED) -> Finding:
    [found] = [finding for finding in judge(answers, wanted) if finding.subject == subject]
    return found


def mysql(*numbers: int, **changes: Any) -> Answers:
    return with_facts(is_maria=False, version=".".join(map(str, numbers)), version_numbers=numbers, **changes)


def end_in(file: str, gtids: str = "0-1-20") -> Wanted:
    known = MysqlGtidSet.parse(gtids) if ":" in gtids else MariaGtidPosition.parse(gtids)
    return replace(WANTED, end=StoreEnd(FilePosition(file, 400), known))


def test_nothing_is_said_against_a_sound_server() -> None:
    found = judge(SOUND, WANTED)
    assert all(finding.ok for finding in found)
    assert not [finding for finding in found if finding.detail.startswith("warning")]


def test_a_pattern_that_means_no_table_is_named() -> None:
    there = replace(SOUND, names=("billing.Bills", "shop.orders", "shop.people"))
    patterns = Patterns(("**", "shop.*", "Shop.O*", "later.*"), ("billing.bills", "shop.people"))
    found = find(there, "patterns", replace(WANTED, patterns=patterns))
    assert found.ok
    assert found.detail == (
        'warning: tables: "Shop.O*" means no table that is there now; in another case: shop.orders;'
        ' tables: "later.*" means no table that is there now;'
        ' exclude: "billing.bills" means no table that is there now; in another case: billing.Bills'
    )
    of_sink = replace(WANTED, patterns=Patterns(sinks={"lake": ("shop.*", "Shop.*"), "past": ("**",)}))
    assert find(there, "patterns", of_sink).detail == (
        'warning: tables of sink lake: "Shop.*" means no table that is there now; in another case: shop.orders, shop.people'
    )
    sound = replace(WANTED, patterns=Patterns(("shop.*",), ("shop.people",)))
    assert "patterns" not in [one.subject for one in judge(there, sound)]


CASCADES = (Cascade("shop.lines", "of order", "ON DELETE CASCADE"),)


@pytest.mark.parametrize(
    ("answers", "subject", "says", "mends"),
    [
        (with_facts(log_bin=False), "log_bin", "no binary log", "log_bin"),
        (with_facts(binlog_format="MIXED"), "binlog_format", "MIXED", "SET GLOBAL binlog_format = 'ROW'"),
        (with_facts(row_image="MINIMAL"), "binlog_row_image", "MINIMAL", "SET GLOBAL binlog_row_image = 'FULL'"),
        (with_facts(row_metadata="MINIMAL"), "binlog_row_metadata", "names", "SET GLOBAL binlog_row_metadata = 'FULL'"),
        (mysql(5, 7, 44, row_metadata=""), "binlog_row_metadata", "5.7.44", "upgrade"),
        (with_facts(do_db="billing"), "binlog filters", "shop", "binlog_do_db"),
        (with_facts(ignore_db="mail,shop"), "binlog filters", "shop", "binlog_ignore_db"),
        (with_facts(is_replica=True), "replica", "does not log", "log_slave_updates = ON"),
        (mysql(8, 0, 36, is_replica=True), "replica", "does not log", "log_replica_updates = ON"),
        (replace(SOUND, cascades=CASCADES), "foreign keys", "shop.lines ON DELETE CASCADE", "DROP FOREIGN KEY `of order`"),
        (with_facts(grants=("GRANT SELECT ON `shop`.* TO `tide`@`%`",)), "rights", "REPLICATION SLAVE, REPLICATION CLIENT",
         "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO `tide`@`%`"),
        (with_facts(grants=("GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO `tide`@`%`",)), "rights",
         "missing: SELECT", "TO `tide`@`%`"),
        (with_facts(server_id=0), "server_id", "0", "SET GLOBAL server_id"),
        (replace(SOUND, time=NOW - 120), "clock", "120 s ahead", "NTP"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_what_mends_it(answers: Answers, subject: str, says: str, mends: str) -> None:
    found = find(answers, subject)
    assert found.kind == 6
    assert says in found.detail
    assert mends in found.hint


@pytest.mark.parametrize(
    ("answers", "subject", "says"),
    [
        (with_facts(do_db="shop"), "binlog filters", "leave out no table"),
        (with_facts(is_replica=None), "replica", "may not ask"),
        (with_facts(checksum="NONE"), "binlog_checksum", "binlog_checksum = 'CRC32'"),
        (replace(SOUND, without_key=("shop.people",)), "tables", "`shop`.`people` ADD PRIMARY KEY"),
        (replace(SOUND, without_snapshot=("shop.old",)), "locks", "shop.old: ALTER TABLE `shop`.`old` ENGINE = InnoDB"),
        (replace(SOUND, without_snapshot=("shop.old",)), "locks", "GRANT LOCK TABLES"),
        (replace(SOUND, tables=()), "tables", "SELECT is missing"),
        (with_facts(grants=("GRANT `readers` TO `tide`@`%`", "GRANT USAGE ON *.* TO `tide`@`%`")), "rights", "a role"),
        (replace(SOUND, time=NOW + 9), "clock", "9 s behind"),
        (with_facts(expire_seconds=HOUR), "purge", "binlog_expire_logs_seconds = 604800"),
        (with_facts(expire_seconds=HOUR, version_numbers=(10, 5, 1)), "purge", "expire_logs_days = 7"),
        (with_facts(expire_seconds=0), "purge", "only by hand"),
    ],
)
def test_what_loses_nothing_is_a_warning(answers: Answers, subject: str, says: str) -> None:
    found = find(answers, subject)
    assert found.ok
    assert found.detail.startswith("warning: ")
    assert says in found.detail


@pytest.mark.parametrize(
    "answers",
    [
        with_facts(is_replica=True, log_replica_updates=True),
        with_facts(grants=("GRANT ALL PRIVILEGES ON *.* TO `root`@`%` WITH GRANT OPTION",)),
        with_facts(ignore_db=""),
        replace(mysql(9, 6, 0), cascades=CASCADES),
    ],
)
def test_what_is_no_trouble_is_not_told_as_one(answers: Answers) -> None:
    assert all(finding.ok and not finding.detail.startswith("warning") for finding in judge(answers, WANTED))


def test_who_goes_on_at_uncertain_rows_is_warned() -> None:
    goes_on = replace(WANTED, stops=False)
    for answers, subject in (
        (with_facts(binlog_format="MIXED"), "binlog_format"),
        (replace(SOUND, cascades=CASCADES), "foreign keys"),
    ):
        assert find(answers, subject, goes_on).detail.startswith("warning: ")


def test_a_server_id_that_somebody_has_is_named() -> None:
    answers = with_facts(replicas=(Replica(7, "db7", ""), Replica(8, "tidemark-orders", "")))
    assert "db7" in find(answers, "server_id", replace(WANTED, server_id=7)).detail
    assert find(answers, "server_id", replace(WANTED, server_id=1)).kind == 6
    assert find(answers, "server_id", replace(WANTED, server_id=8)).ok, "our own capture runs"
    unknown = with_facts(replicas=None)
    assert find(unknown, "server_id", replace(WANTED, server_id=7)).detail.startswith("warning")
    assert not find(unknown, "server_id").detail.startswith("warning")


@pytest.mark.parametrize(
    ("answers", "wanted", "kind"),
    [
        (SOUND, end_in("b.000001"), 0),
        (SOUND, end_in("b.000000", "0-1-10"), 0),
        (SOUND, end_in("b.000000", "0-1-9"), 31),
        (replace(SOUND, oldest=None), end_in("b.000000", "0-1-10"), 31),
        (mysql(8, 4, 0, purged=MysqlGtidSet.parse(f"{UUID}:1-9")), end_in("b.000000", f"{UUID}:1-9"), 0),
        (mysql(8, 4, 0, purged=MysqlGtidSet.parse(f"{UUID}:1-9")), end_in("b.000000", f"{UUID}:1-8:10"), 31),
    ],
)
def test_what_follows_the_store_is_there_or_is_a_gap(answers: Answers, wanted: Wanted, kind: int) -> None:
    assert find(answers, "position", wanted).kind == kind


@pytest.mark.parametrize(
    ("answers", "wanted", "says"),
    [
        (SOUND, end_in("b.000001", "0-1-30"), ""),
        (SOUND, end_in("b.000001", "0-1-33"), "domain 0: 31 to 33"),
        (SOUND, end_in("b.000001", "0-1-3,5-2-7"), "domain 5: 1 to 7"),
        (SOUND, end_in("b.000001", f"{UUID}:1-9"), "other kind"),
        (mysql(8, 4, 0, gtids=MysqlGtidSet.parse(f"{UUID}:1-9")), end_in("b.000001", f"{UUID}:1-9"), ""),
        (mysql(8, 4, 0, gtids=MysqlGtidSet.parse(f"{UUID}:1-5:8")), end_in("b.000001", f"{UUID}:1-9"), f"{UUID}:6-7:9"),
    ],
)
def test_what_only_the_store_has_is_named(answers: Answers, wanted: Wanted, says: str) -> None:
    found = find(answers, "identity", wanted)
    assert found.kind == (6 if says else 0)
    assert says in found.detail


def test_headroom_is_what_is_left_of_the_purge_time() -> None:
    behind = replace(SOUND, following=LogStart("b.000002", NOW - 30 * HOUR, None))
    assert measure_headroom(SOUND, None) == Headroom(48.0, 48.0)
    assert measure_headroom(SOUND, end_in("b.000003").end) == Headroom(48.0, 48.0)
    assert measure_headroom(behind, end_in("b.000001").end) == Headroom(18.0, 48.0)
    assert measure_headroom(with_facts(expire_seconds=0), end_in("b.000001").end) == Headroom(None, None)
    late = replace(behind, following=LogStart("b.000002", NOW - 60 * HOUR, None))
    assert measure_headroom(late, end_in("b.000001").end).hours == 0
    assert measure_headroom(SOUND, end_in("b.000000", "0-1-9").end) == Headroom(0.0, 48.0), "it is purged"


def test_headroom_counts_the_bytes_that_a_server_keeps() -> None:
    # 2,500 bytes in 40 hours: 62.5 an hour. A limit of 5,000 bytes is 80 hours.
    limited = with_facts(expire_seconds=0, space_limit=5000)
    assert measure_headroom(limited, None) == Headroom(72.0, 80.0)
    assert measure_headroom(limited, end_in("b.000001").end) == Headroom(40.0, 80.0)
    both = with_facts(space_limit=5000)  # the nearer end counts
    assert measure_headroom(both, end_in("b.000001").end).purge_hours == 80.0, "the nearer end counts"


def test_headroom_is_red_below_half_of_the_purge_time() -> None:
    for hours, kind in ((23, 0), (25, 6)):
        answers = replace(SOUND, following=LogStart("b.000002", NOW - hours * HOUR, None))
        found = find(answers, "headroom", end_in("b.000001"))
        assert found.kind == kind
        if kind:
            assert "changes capture orders" in found.hint and "binlog_expire_logs_seconds" in found.hint


def test_where_the_catalog_names_columns_the_log_need_not() -> None:
    wanted = Wanted("orders", needs_names=False)
    [found] = [one for one in judge(with_facts(row_metadata="MINIMAL"), wanted) if one.subject == "binlog_row_metadata"]
    assert found.ok
    assert "parked" in found.detail
