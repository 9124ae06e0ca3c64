"""Four writers change the tables of a real server at random while a capture reads them, follows, and is killed at random.

At last the tables are as the changes fold, each transaction stands once as its writer noted it, and `verify --deep` finds
nothing. TIDEMARK_TEST_SEED adds to the seed, TIDEMARK_TEST_KILLS says how many kills the long run has.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections import Counter
from contextlib import closing
from decimal import Decimal
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tests.bootstrap_worlds import read, write_settings
from tests.changing_tables import LOOSE, Change, Writer, fold_tables, make_tables, writing
from tests.commanded import run_here
from tests.dump_worlds import MARIADB, MYSQL_SERVER, NEWEST_MARIADB, start_server
from tests.services.command_forks import Forked, start_command
from tests.services.mariadb import MariaDb

pytestmark = pytest.mark.full

SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "0")) + 1
WRITERS = 4


@pytest.mark.parametrize(
    "kind", [MARIADB, pytest.param(*NEWEST_MARIADB.values, marks=[*NEWEST_MARIADB.marks, pytest.mark.soak]), MYSQL_SERVER]
)
def test_a_few_kills(tmp_path: Path, kind: str) -> None:
    live(tmp_path, 8, kind)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("kind", [MARIADB, NEWEST_MARIADB, MYSQL_SERVER])
def test_two_hundred_kills(tmp_path: Path, kind: str) -> None:
    done = live(tmp_path, int(os.environ.get("TIDEMARK_TEST_KILLS", "200")), kind)
    wanted = ("_commit_xa", "_roll_back_xa", "_commit_large", "_commit_larges", "_change_loose", "_add_column", "_rename")
    assert all(deed in done for deed in wanted), done


def live(folder: Path, kills: int, kind: str) -> Counter[str]:
    """Returns how often the writers did what."""
    chance = random.Random(SEED)
    with closing(start_server(kind)) as server:
        make_tables(server, WRITERS)
        config = write_settings(folder, server)
        config.write_text(config.read_text(encoding="utf-8") + "bootstrap_rows = 4000\n", encoding="utf-8")
        writers = [Writer(server, number, SEED) for number in range(WRITERS)]
        kill_captures(config, server, writers, kills, chance)
        for command in ("capture", "bootstrap", "capture"):
            said = run_here(config, "changes", command, "orders")
            assert said.code == 0, (command, said)
        lines = read(config)
        compare_with_record(lines, {gtid: what for writer in writers for gtid, what in writer.record.items()})
        assert fold_tables(lines) == select_tables(server)
        verified = run_here(config, "changes", "verify", "orders", "--deep")
        assert verified.code == 0, verified
        assert verified.json["differences"] == []
    return sum((Counter(writer.done) for writer in writers), Counter())


def kill_captures(config: Path, server: MariaDb, writers: list[Writer], kills: int, chance: random.Random) -> None:
    try:
        with writing(writers):
            for number in range(kills):
                follower = follow(config)
                time.sleep(chance.uniform(0.5, 4))
                check_alive(server)
                assert follower.poll() is None, follower.communicate()[1]
                follower.send_signal(signal.SIGKILL)
                follower.communicate()
                if number % 5 == 4 and has_begun(config):
                    server.run("FLUSH BINARY LOGS")
    finally:
        check_alive(server)


def check_alive(server: MariaDb) -> None:
    """A server that dies by itself may have lost what it committed: nothing can be compared."""
    code = server.process.poll()
    if code is not None:
        told = (server.folder / "log").read_text(encoding="utf-8", errors="replace")[-4000:]
        raise AssertionError(f"the server ended by itself, with {code}; this says nothing of the capture: {told}")


def has_begun(config: Path) -> bool:
    """A new store begins with the newest log: before it has, a newer one would hide what the writers did."""
    [source] = run_here(config, "changes", "show").json["sources"]
    return bool(source["transactions"])


def follow(config: Path) -> Forked:
    return start_command(["--config", str(config), "changes", "capture", "orders", "--follow"], os.environ)


def compare_with_record(lines: list[dict[str, Any]], record: dict[str, list[Change] | str]) -> None:
    """Each transaction once, in the server's order, with the rows in the order in which its writer changed them."""
    found: list[str] = []
    for _, group in groupby(lines, key=lambda line: line["seq"]):
        transaction = list(group)
        if any(line["k"].startswith("bootstrap_") or line.get("op") == "R" for line in transaction):
            continue
        gtid = transaction[0]["gtid"]
        found.append(gtid)
        rows = [
            (f"{line['db']}.{line['table']}", line["op"], line["before"], line["after"])
            for line in transaction
            if line["k"] == "row"
        ]
        ddl = [_plain(line["sql"]) for line in transaction if line["k"] == "ddl"]
        if gtid not in record:
            assert not rows and not ddl and any(line["k"] == "xa_prepare" for line in transaction), transaction
        elif isinstance(what := record[gtid], str):
            assert (ddl, rows) == ([what], []), gtid
        else:
            assert (ddl, rows) == ([], what), gtid
    assert record.keys() <= set(found), sorted(record.keys() - set(found))[:10]
    by_origin: dict[str, list[int]] = {}
    for gtid in found:
        origin, number = re.fullmatch(r"(.*[-:])(\d+)", gtid).groups()  # type: ignore[union-attr]
        by_origin.setdefault(origin, []).append(int(number))
    assert all(numbers == list(range(numbers[0], numbers[0] + len(numbers))) for numbers in by_origin.values())


def _plain(sql: str) -> str:
    return re.sub(r"\s*/\*.*?\*/", "", sql).replace("`", "").strip()


def select_tables(server: MariaDb) -> dict[str, dict[Any, Any]]:
    tables: dict[str, dict[Any, Any]] = {}
    for (table,) in server.run("SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'd'"):
        rows = [[_as_told(value) for value in row] for row in server.run(f"SELECT * FROM d.{table}")]
        if rows and f"d.{table}".startswith(LOOSE):
            tables[f"d.{table}"] = dict(Counter(map(tuple, rows)))
        elif rows:
            tables[f"d.{table}"] = {row[0]: row for row in rows}
    return tables


def _as_told(value: Any) -> Any:
    return {"hex": value.hex()} if isinstance(value, bytes) else str(value) if isinstance(value, Decimal) else value
