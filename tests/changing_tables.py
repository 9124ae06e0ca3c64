"""Writers that change the tables of a real server at once, and the record that they keep of each transaction, by its GTID.

A writer changes only rows that are its own, so it knows what stood before. MariaDB tells the GTID of what it did
(`@@last_gtid`); at MySQL a writer gives its transactions GTIDs of its own. The record is made without the binary log.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pymysql

from tests.services.mariadb import PASSWORD, USER, MariaDb
from tests.services.mysql import MySql

Row = list[Any]
Change = tuple[str, str, Row | None, Row | None]  # table, operation, before, after
OLD_ROWS, LOOSE_ROWS, KEYS = 3_000, 300, 1_000_000
TOGETHER, COUNTER = "d.together", "d.counter"
LOOSE = "d.loose"
"""Tables without a key, one of each writer. Rows of one are changed by `n`, those that are equal together."""
LARGE, MOST_LARGE = "d.large", 2
"""A table of values of a megabyte and more, and how often a writer writes to it."""
_COLUMNS = "(id INT PRIMARY KEY, n INT, note LONGTEXT, paid DECIMAL(10,2))"


def make_tables(server: MariaDb, writers: int) -> None:
    """Tables with rows that are older than the newest log."""
    server.run("CREATE DATABASE d CHARACTER SET utf8mb4", f"CREATE TABLE {TOGETHER} {_COLUMNS}")
    server.run(f"CREATE TABLE {COUNTER} (id INT PRIMARY KEY, n INT)")
    server.run(f"INSERT INTO {COUNTER} VALUES (1, 0)")
    server.run(f"CREATE TABLE {LARGE} (id INT PRIMARY KEY, data LONGBLOB, doc JSON)")
    for number in range(writers):
        rows = f"SELECT {number * KEYS} + seq, seq, CONCAT('ü', seq), seq + 0.25 FROM {numbers(server, OLD_ROWS)}"
        server.run(
            f"INSERT INTO {TOGETHER} {rows}", f"CREATE TABLE d.own{number} {_COLUMNS}", f"INSERT INTO d.own{number} {rows}"
        )
        server.run(f"CREATE TABLE {LOOSE}{number} (n INT, note LONGTEXT)")
        server.run(f"INSERT INTO {LOOSE}{number} SELECT seq % 50, 'old' FROM {numbers(server, LOOSE_ROWS)}")
    server.run("FLUSH BINARY LOGS")


def numbers(server: MariaDb, last: int) -> str:
    return server.numbers(last) if isinstance(server, MySql) else f"d.{server.numbers(last)}"


@dataclass
class Writer:
    """One connection. `record`: by GTID what was committed, or the DDL; `done`: how often each kind of deed was done."""

    server: MariaDb
    number: int
    seed: int
    record: dict[str, list[Change] | str] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)
    rows: dict[str, dict[int, Row]] = field(default_factory=dict)
    trouble: list[BaseException] = field(default_factory=list)
    added: int = 0
    renamed: int = 0
    named: int = 1  # at MySQL: the number of the next GTID
    larges: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed * 100 + self.number)
        self.own, self.next_key = f"d.own{self.number}", self.number * KEYS + OLD_ROWS + 1
        first = self.number * KEYS
        for table in (TOGETHER, self.own):
            self.rows[table] = {first + n: [first + n, n, f"ü{n}", f"{n}.25"] for n in range(1, OLD_ROWS + 1)}
        self.loose = f"{LOOSE}{self.number}"
        self.rows[self.loose] = {n: [n % 50, "old"] for n in range(1, LOOSE_ROWS + 1)}
        self.rows[LARGE] = {}
        self.is_mysql = isinstance(self.server, MySql)
        self.uuid = f"{self.number + 1:08}-0000-0000-0000-000000000000"
        self.connection = pymysql.connect(
            host="127.0.0.1",
            port=self.server.port,
            user=USER,
            password=PASSWORD.encode(),
            autocommit=True,
            charset="utf8mb4",
            max_allowed_packet=1 << 28,
        )

    def write_until(self, ended: threading.Event) -> None:
        deeds = {self._commit: 60, self._roll_back: 6, self._commit_xa: 8, self._roll_back_xa: 3, self._commit_large: 2}
        deeds |= {self._change_loose: 8, self._commit_larges: 1}
        deeds |= {self._add_column: 3, self._drop_column: 3, self._truncate: 1, self._make_again: 1, self._rename: 2}
        try:
            while not ended.is_set():
                [deed] = self.chance.choices(list(deeds), list(deeds.values()))
                deed()
                self.done[deed.__name__] = self.done.get(deed.__name__, 0) + 1
                time.sleep(self.chance.uniform(0, 0.15))
        except BaseException as trouble:
            self.trouble.append(trouble)
        finally:
            self.connection.close()

    def _run(self, *statements: str) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def _name(self) -> None:
        """What begins now has a GTID of ours, where the server does not tell which one it gave."""
        if self.is_mysql:
            self._run(f"SET gtid_next = '{self.uuid}:{self.named}'")

    def _end_name(self, *, is_used: bool) -> str:
        gtid = f"{self.uuid}:{self.named}"
        if self.is_mysql:
            self._run("SET gtid_next = AUTOMATIC")
            self.named += is_used
        return gtid

    def _note(self, what: list[Change] | str) -> None:
        gtid = self._end_name(is_used=True) if self.is_mysql else self._run("SELECT @@last_gtid")[0][0]
        assert gtid and gtid not in self.record, f"{what} has no GTID of its own: {gtid}"
        self.record[gtid] = what

    # transactions

    def _commit(self) -> None:
        self._name()
        self._run("BEGIN")
        changes = self._change()
        if self.chance.random() < 0.3:
            self._run("SAVEPOINT s")
            kept = {table: dict(rows) for table, rows in self.rows.items()}
            self._change()
            self._run("ROLLBACK TO s")
            self.rows = kept
        if self.chance.random() < 0.5:
            [[n]] = self._run(f"SELECT n FROM {COUNTER} WHERE id = 1 FOR UPDATE")
            self._run(f"UPDATE {COUNTER} SET n = {n + 1} WHERE id = 1")
            changes.append((COUNTER, "U", [1, n], [1, n + 1]))
        self._run("COMMIT")
        self._note(changes)

    def _roll_back(self) -> None:
        kept = {table: dict(rows) for table, rows in self.rows.items()}
        self._name()
        self._run("BEGIN")
        self._change()
        self._run("ROLLBACK")
        self._end_name(is_used=False)
        self.rows = kept

    def _commit_xa(self) -> None:
        changes = self._prepare_xa()
        self._run(f"XA COMMIT 'x{self.number}'")
        self._note(changes)

    def _roll_back_xa(self) -> None:
        kept = {table: dict(rows) for table, rows in self.rows.items()}
        self._prepare_xa()
        self._run(f"XA ROLLBACK 'x{self.number}'")
        self._note([])
        self.rows = kept

    def _prepare_xa(self) -> list[Change]:
        self._name()
        self._run(f"XA START 'x{self.number}'")
        changes = self._change()
        self._run(f"XA END 'x{self.number}'", f"XA PREPARE 'x{self.number}'")
        self._end_name(is_used=True)
        time.sleep(self.chance.uniform(0, 0.5))
        self._name()
        return changes

    def _commit_large(self) -> None:
        """A megabyte or more."""
        count, first = self.chance.randrange(1_000, 4_000), self.next_key
        self.next_key += count
        long = "lang" * 100
        self._name()
        self._run(f"INSERT INTO {TOGETHER} SELECT {first - 1} + seq, seq, '{long}', 1 FROM {numbers(self.server, count)}")
        rows = [[first - 1 + n, n, long, "1.00"] for n in range(1, count + 1)]
        self.rows[TOGETHER] |= {row[0]: row for row in rows}
        self._note([(TOGETHER, "I", None, row) for row in rows])

    def _commit_larges(self) -> None:
        """Some rows of a megabyte or more each: together more than a block of the store."""
        if self.larges >= MOST_LARGE:
            return
        self.larges += 1
        changes: list[Change] = []
        self._name()
        self._run("BEGIN")
        for _ in range(self.chance.randint(2, 4)):
            size = self.chance.randrange(1_000_000, 1_800_000)
            data, doc = self.chance.randbytes(size), '{"a": "' + "doc" * (size // 3) + '"}'
            there = self.rows[LARGE]
            key = self.chance.choice([*there, self.next_key, self.next_key])
            before, after = there.get(key), [key, {"hex": data.hex()}, doc]
            if before:
                self._run(f"UPDATE {LARGE} SET data = X'{data.hex()}', doc = '{doc}' WHERE id = {key}")
            else:
                self._run(f"INSERT INTO {LARGE} VALUES ({key}, X'{data.hex()}', '{doc}')")
                self.next_key += 1
            there[key] = after
            changes.append((LARGE, "U" if before else "I", before, after))
        self._run("COMMIT")
        self._note(changes)

    def _change_loose(self) -> None:
        """Rows of a table without a key. Those with one `n` come in the order in which they were inserted."""
        n, rows = self.chance.randrange(50), self.rows[self.loose]
        chosen = [number for number, row in rows.items() if row[0] == n]
        deed = self.chance.choice(("insert", "insert", "update", "delete"))
        self._name()
        if deed == "insert" or not chosen:
            new = [[n, self.chance.choice(("a", "b"))] for _ in range(self.chance.choice((1, 2, 20)))]
            self._run(f"INSERT INTO {self.loose} VALUES " + ", ".join(f"({row[0]}, '{row[1]}')" for row in new))
            rows |= dict(enumerate(new, max(rows, default=0) + 1))
            self._note([(self.loose, "I", None, row) for row in new])
        elif deed == "update":
            self._run(f"UPDATE {self.loose} SET note = CONCAT(note, '+') WHERE n = {n}")
            changed = {number: [n, rows[number][1] + "+"] for number in chosen}
            self._note([(self.loose, "U", rows[number], row) for number, row in changed.items()])
            rows |= changed
        else:
            self._run(f"DELETE FROM {self.loose} WHERE n = {n}")
            self._note([(self.loose, "D", rows.pop(number), None) for number in chosen])

    def _change(self) -> list[Change]:
        """One to four statements in the open transaction. At least one changes a row."""
        changes: list[Change] = []
        for _ in range(self.chance.randint(1, 4)):
            table = self.chance.choice((TOGETHER, self.own))
            change = self.chance.choice((self._insert, self._update, self._delete))
            changes += change(table)
        return changes or self._insert(TOGETHER)

    def _insert(self, table: str) -> list[Change]:
        rows: list[Row] = []
        for _ in range(self.chance.choice((1, 1, 5, 40))):
            n = self.chance.randrange(1_000)
            rows.append([self.next_key, n, f"neu {n} 人", f"{n}.50"])
            self.next_key += 1
        self._run(
            f"INSERT INTO {table} (id, n, note, paid) VALUES "
            + ", ".join(f"({row[0]}, {row[1]}, '{row[2]}', {row[3]})" for row in rows)
        )
        if table == self.own:
            rows = [row + list(range(1, self.added + 1)) for row in rows]
        self.rows[table] |= {row[0]: row for row in rows}
        return [(table, "I", None, row) for row in rows]

    def _update(self, table: str) -> list[Change]:
        changes: list[Change] = []
        for key in self._choose(table):
            before = self.rows[table][key]
            after = [key, before[1] + 1, *before[2:]]
            self.rows[table][key] = after
            changes.append((table, "U", before, after))
        if changes:
            self._run(f"UPDATE {table} SET n = n + 1 WHERE id IN ({_list(changes)})")
        return changes

    def _delete(self, table: str) -> list[Change]:
        changes: list[Change] = [(table, "D", self.rows[table].pop(key), None) for key in self._choose(table)]
        if changes:
            self._run(f"DELETE FROM {table} WHERE id IN ({_list(changes)})")
        return changes

    def _choose(self, table: str) -> list[int]:
        there = list(self.rows[table])
        return sorted(self.chance.sample(there, min(len(there), self.chance.choice((1, 1, 5, 40)))))

    # definitions of its own table

    def _define(self, statement: str) -> None:
        self._name()
        self._run(statement)
        self._note(statement)

    def _add_column(self) -> None:
        if self.added < 5:
            self.added += 1
            self._define(f"ALTER TABLE {self.own} ADD COLUMN c{self.added} INT NOT NULL DEFAULT {self.added}")
            self.rows[self.own] = {key: [*row, self.added] for key, row in self.rows[self.own].items()}

    def _drop_column(self) -> None:
        if self.added:
            self._define(f"ALTER TABLE {self.own} DROP COLUMN c{self.added}")
            self.added -= 1
            self.rows[self.own] = {key: row[:-1] for key, row in self.rows[self.own].items()}

    def _truncate(self) -> None:
        self._define(f"TRUNCATE TABLE {self.own}")
        self.rows[self.own] = {}

    def _make_again(self) -> None:
        self._define(f"DROP TABLE {self.own}")
        self._define(f"CREATE TABLE {self.own} {_COLUMNS}")
        self.rows[self.own], self.added = {}, 0

    def _rename(self) -> None:
        self.renamed += 1
        new = f"d.own{self.number}_{self.renamed}"
        self._define(f"RENAME TABLE {self.own} TO {new}")
        self.rows[new] = self.rows.pop(self.own)
        self.own = new


@contextmanager
def writing(writers: list[Writer]) -> Iterator[None]:
    """They write meanwhile, each in a thread. Whatever went wrong with one fails the test."""
    ended = threading.Event()
    threads = [threading.Thread(target=writer.write_until, args=(ended,)) for writer in writers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert not [trouble for writer in writers for trouble in writer.trouble]


def _list(changes: list[Change]) -> str:
    return ", ".join(str(before[0]) for _, _, before, _ in changes if before)


def fold_tables(lines: list[dict[str, Any]]) -> dict[str, dict[Any, Any]]:
    """The tables as rows, changes and definitions leave them. A known row is as the next line of it says. Of a table without
    a key: how often each row is there."""
    tables: dict[str, dict[Any, Any]] = {}
    whole: set[str] = set()
    for line in lines:
        if line["k"] == "bootstrap_begin" and line["text"].startswith(LOOSE):
            tables[line["text"]] = {}
            whole.add(line["text"])
        elif line["k"] == "row" and f"{line['db']}.{line['table']}".startswith(LOOSE):
            _count_row(tables, whole, line)
        elif line["k"] == "row":
            rows = tables.setdefault(f"{line['db']}.{line['table']}", {})
            before, after = line["before"], line["after"]
            if before:
                assert rows.pop(before[0], before) == before, line
            if after:
                assert line["op"] == "R" or after[0] not in rows, line
                assert rows.setdefault(after[0], after) == after, line
        elif line["k"] == "ddl":
            _define(tables, line["sql"])
    return {name: rows for name, rows in tables.items() if rows}


def _count_row(tables: dict[str, dict[Any, Any]], whole: set[str], line: dict[str, Any]) -> None:
    """A row of a table without a key. What was there before the capture is known from where its rows were read on."""
    name = f"{line['db']}.{line['table']}"
    if name in whole:
        rows = tables[name]
        for row, step in ((line["before"], -1), (line["after"], 1)):
            if row is not None:
                left = rows.pop(tuple(row), 0) + step
                assert left >= 0, line
                rows |= {tuple(row): left} if left else {}


def _define(tables: dict[str, dict[Any, Any]], sql: str) -> None:
    if found := re.fullmatch(r"ALTER TABLE (\S+) ADD COLUMN \S+ INT NOT NULL DEFAULT (\d+)", sql):
        tables[found[1]] = {key: [*row, int(found[2])] for key, row in tables.get(found[1], {}).items()}
    elif found := re.fullmatch(r"ALTER TABLE (\S+) DROP COLUMN \S+", sql):
        tables[found[1]] = {key: row[:-1] for key, row in tables.get(found[1], {}).items()}
    elif found := re.match(r"(?:TRUNCATE|DROP) TABLE [`]?(\w+)[`]?\.[`]?(\w+)[`]?", sql):
        tables.pop(f"{found[1]}.{found[2]}", None)
    elif found := re.fullmatch(r"RENAME TABLE (\S+) TO (\S+)", sql):
        tables[found[2]] = tables.pop(found[1], {})
    else:
        assert sql.startswith("CREATE TABLE "), sql
