"""What `bench changes` runs: `decode LOG ROWS`, `capture STORE COMMAND…`, `library PORT LOG ROWS`."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from tidemark.native import collect_seldom


def decode(log: str, rows: int) -> None:
    """Every value of a log as Arrow, in the form in which it is stored, and away with it."""
    from tidemark.changes.binlog.batches import decode_batches, decode_stretches
    from tidemark.changes.binlog.rows import Rows
    from tidemark.changes.capture.rows import MOST_BYTES
    from tidemark.changes.capture.transactions import Group, Rules, Transactions
    from tidemark.changes.connection.files import open_files

    collect_seldom()
    waiting: dict[object, list[Rows]] = {}
    size = count = 0

    def convert() -> int:
        return sum(len(batch.events) for events in waiting.values() for batch in decode_batches(events))

    transactions = Transactions(open_files([Path(log)]).blocks(), Rules(lambda *_: True), ahead=True)
    transactions.gives_runs = True
    for found in transactions.read():
        if not isinstance(found, Group):
            plain, own = found.stretch.plain, found.stretch.rows
            for number, key in enumerate(plain.keys):
                events = own[own[:, 0] == number]
                if len(events):
                    batches = decode_stretches(key, plain.data, events[:, 1], events[:, 2])
                    count += sum(len(batch.events) for batch in batches)
            continue
        for item in found.items:
            if isinstance(item, Rows):
                waiting.setdefault((item.table, item.operation, item.before, item.after), []).append(item)
                size += len(item.data)
        if size >= MOST_BYTES:
            count += convert()
            waiting, size = {}, 0
    _check(count + convert(), rows)


def library(port: int, log: str, rows: int) -> None:
    """Every row of a log of a server, by mysql-replication."""
    from bench.merge import PEERS  # here: what the others measure is whole processes
    from tests.services.mariadb import PASSWORD, USER

    sys.path.insert(0, str(PEERS.resolve()))
    from pymysqlreplication import BinLogStreamReader  # type: ignore[import-not-found]
    from pymysqlreplication.row_event import (  # type: ignore[import-not-found]
        DeleteRowsEvent,
        UpdateRowsEvent,
        WriteRowsEvent,
    )

    login = {"host": "127.0.0.1", "port": port, "user": USER, "passwd": PASSWORD.encode()}
    wanted = [WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent]
    place = {"log_file": log, "log_pos": 4, "resume_stream": True, "blocking": False}
    stream = BinLogStreamReader(connection_settings=login, server_id=991, only_events=wanted, **place)
    _check(sum(len(event.rows) for event in stream), rows)


def capture(store: str, *command: str) -> None:
    """The command, into a new store if one is named."""
    if store:
        shutil.rmtree(store, ignore_errors=True)
    os.execv(command[0], command)


def _check(count: int, rows: int) -> None:
    if count != rows:
        sys.exit(f"{count} changes, not {rows}")


if __name__ == "__main__":
    word, *words = sys.argv[1:]
    if word == "capture":
        capture(*words)
    elif word == "decode":
        decode(words[0], int(words[1]))
    else:
        library(int(words[0]), words[1], int(words[2]))
