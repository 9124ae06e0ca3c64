"""Capture every change of MySQL and MariaDB tables from their binary logs.

    binlog   decode binary logs: events, tables, rows, GTID sets

Imports `errors` and `native`. Nothing here connects to a server or stores a change.
"""
