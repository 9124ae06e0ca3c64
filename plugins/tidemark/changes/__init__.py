"""Capture every change of MySQL and MariaDB tables from their binary logs, and keep them in a store.

    binlog      decode binary logs: events, tables, rows, GTID sets
    connection  read the binary logs of a server as a replica does, or log files; ask a server what it is
    store       the indexed change store: append, recover, find, read, retain

Imports `errors`, `native` and `stores.agent.durable`. No command captures yet.
"""
