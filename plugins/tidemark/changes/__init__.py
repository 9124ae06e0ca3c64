"""Capture every change of MySQL and MariaDB tables from their binary logs, and keep them in a store.

Enter by `source`: what `./tidemark changes …` does with a source of the settings.

    binlog      decode binary logs: events, tables, rows, GTID sets
    connection  the events of a server, or of log files
    store       the indexed change store: append, recover, find, read, retain
    capture     events into the store: whole transactions, each once
    trust       may a server be trusted, how long it keeps what is not captured, and what it purged before that
    bootstrap   the rows that tables have when their capture begins, between the changes
    delivery    what a store holds, given to readers: POINTs, JSON lines, Parquet
    source      a source as its commands see it: settings, store, lease
    doctor      a source examined: its server, its store
    show        what is known of a source: lag, headroom, gaps

Only `source`, `doctor` and `show` know settings and ledger. Below them: `errors`, `native`, `progress` and
`stores.agent.durable`.
"""
