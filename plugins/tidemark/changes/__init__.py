"""Capture every change of MySQL and MariaDB tables from their binary logs, and keep them in a store.

Enter by `sources`: what `./tidemark changes …` does with a source of the settings. Programs enter by `subscribe`.

    binlog      decode binary logs: events, tables, rows, GTID sets
    connection  the events of a server, or of log files
    store       the indexed change store: append, recover, find, read, retain
    mirror      the binary logs themselves, beside the store
    capture     events into the store: whole transactions, each once
    trust       may a server be trusted, how long it keeps what is not captured, and what it purged before that
    bootstrap   the rows that tables have when their capture begins, between the changes
    delivery    what a store holds, given to readers: POINTs, JSON lines, Parquet; tasks of shards
    sources     a source as its commands see it: settings, store, lease; doctor, show, verify
    consume     tasks as programs and commands see them: `subscribe`, rewind, another number of shards
    spark       changes as a data source of Spark
    sinks       tables that follow the changes: Delta tables as they are at the source, or every change in Parquet

Only `sources`, `consume`, `spark` and `sinks` know settings; they and `delivery` know the ledger. Below them: `errors`,
`native`, `progress` and `stores.agent.durable`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemark.changes.consume import subscribe

__all__ = ["subscribe"]


def __getattr__(name: str) -> object:
    """`subscribe`, imported when it is asked for: nothing else here needs all that it needs."""
    if name == "subscribe":
        from tidemark.changes.consume import subscribe

        return subscribe
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
