"""The source `orders` of a real MariaDB, its tables read in chunks, and what a reader makes of its changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.commanded import run_here
from tests.dump_worlds import settings_for
from tests.services import mariadb
from tidemark.changes.bootstrap.run import Pace, bootstrap_tables
from tidemark.changes.bootstrap.state import read_state, write_state
from tidemark.changes.bootstrap.tables import list_tables
from tidemark.changes.capture.identity import read_origin
from tidemark.changes.capture.run import Job, Place, capture_into, open_writer
from tidemark.changes.capture.transactions import Rules
from tidemark.changes.connection.dump import open_dump
from tidemark.changes.connection.login import Server, open_server
from tidemark.changes.connection.model import FilePosition
from tidemark.changes.delivery.export import Exported, Query, make_lines
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.read import Reader


def write_settings(folder: Path, server: mariadb.MariaDb) -> Path:
    (folder / "password").write_text(mariadb.PASSWORD, encoding="utf-8")
    config = folder / "tidemark.toml"
    config.write_text(
        f'[sources.orders]\nurl = "mariadb://{mariadb.USER}@127.0.0.1:{server.port}"\ntls = "off"\n'
        'store = "store"\npassword_file = "password"\ntables = ["d.*"]\n'
    )
    return config


def read(config: Path) -> list[dict[str, Any]]:
    out = config.parent / "out.jsonl"
    assert run_here(config, "changes", "read", "orders", "--out", str(out)).code == 0
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def fold(lines: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """A table with a key in its first column, as the changes leave it. A known row is as the next line of it says."""
    rows: dict[Any, tuple[Any, ...]] = {}
    for line in lines:
        if line["k"] == "row":
            before, after = (tuple(line[side] or ()) for side in ("before", "after"))
            if before:
                assert rows.pop(before[0], before) == before, line
            if after:
                assert line["op"] == "R" or after[0] not in rows, line
                assert rows.setdefault(after[0], after) == after, line
    return sorted(rows.values())


Answer = list[dict[str, Any]]


def read_in_chunks(
    root: Path,
    server: mariadb.MariaDb,
    chunk_rows: int,
    fence: int = 1,
    *,
    before: Callable[[str], None] = lambda _: None,
    answer: Callable[[str, Answer], Answer] = lambda _, found: found,
) -> list[dict[str, Any]]:
    """Bootstrap every table of `d`, and return the lines of the store. `before` each question that a reading asks; `answer`:
    what it gets."""
    login = settings_for(("127.0.0.1", server.port), user=mariadb.USER, password=mariadb.PASSWORD)
    first = FilePosition(server.logs[-1].name)

    def open_logs(end: Place | None) -> tuple[Any, bool]:
        return open_dump(open_server(login), end.position if end else first), end is not None

    job = Job(Disk(root), fence, Rules(lambda *_: True), open_logs)

    def open_asked() -> Server:
        asked = open_server(login)
        ask = asked.ask

        def ask_it(question: str, *values: object) -> list[dict[str, Any]]:
            before(question)
            return answer(question, ask(question, *values))

        asked.ask = ask_it  # type: ignore[method-assign]
        return asked

    with open_server(login) as asked:
        write_state(job.disk, read_state(job.disk).with_waiting(list_tables(asked)))
    with open_writer(job) as writer:
        bootstrap_tables(job, writer, open_asked, Pace(chunk_rows=chunk_rows))
        capture_into(job, writer)
    reader = Reader(job.disk)
    query = Query(reader.first, reader.view.end.seq + 1, lambda *_: True)
    return list(make_lines(reader, read_origin(job.disk), query, Exported()))
