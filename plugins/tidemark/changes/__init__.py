"""Capture every change of MySQL and MariaDB tables from their binary logs, and keep them in a store.

    binlog   decode binary logs: events, tables, rows, GTID sets
    store    the indexed change store: append, recover, find, read, retain

Imports `errors`, `native` and `stores.agent.durable`. Nothing here connects to a server, and no command captures yet.
"""
