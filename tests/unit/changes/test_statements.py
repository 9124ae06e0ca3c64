"""What a statement of a log does, however it is written."""

from __future__ import annotations

import pytest

from tidemark.changes.binlog.events import Query
from tidemark.changes.capture.statements import Sort, find_savepoint, sort_statement

SORTS = {
    "BEGIN": Sort.BEGIN,
    "CREATE TABLE a (id INT COMMENT 'SELECT')": Sort.DEFINITION,
    "CREATE TABLE a (`select` INT) PARTITION BY LIST (id) (PARTITION p VALUES IN (1))": Sort.DEFINITION,
    "CREATE VIEW a AS SELECT 1": Sort.DEFINITION,
    "CREATE TABLE a LIKE b": Sort.DEFINITION,
    "CREATE TABLE a (PRIMARY KEY (id)) SELECT id FROM b": Sort.FILLED_TABLE,
    "create or replace /* x */ table a as (select 1)": Sort.FILLED_TABLE,
    "CREATE TABLE a AS WITH x AS (SELECT 1) SELECT * FROM x": Sort.FILLED_TABLE,
    "CREATE TABLE a TABLE b": Sort.FILLED_TABLE,
    "CREATE TABLE a VALUES ROW(1)": Sort.FILLED_TABLE,
    "ANALYZE TABLE a": Sort.DEFINITION,
    "ANALYZE LOCAL TABLES a": Sort.DEFINITION,
    "ANALYZE UPDATE a SET n = 5": Sort.CHANGE,
    "ANALYZE FORMAT=JSON DELETE FROM a": Sort.CHANGE,
    "SET STATEMENT max_statement_time=9 FOR INSERT INTO a VALUES (3)": Sort.CHANGE,
    "SET STATEMENT sql_mode=' FOR ALTER TABLE b', lock_wait_timeout=9 FOR UPDATE a SET n = 1": Sort.CHANGE,
    "SET STATEMENT lock_wait_timeout=9 FOR ALTER TABLE a ADD x INT": Sort.DEFINITION,
    "SET PASSWORD FOR x = 'insert'": Sort.DEFINITION,
    "/*!40000 UPDATE */ a SET n = 1": Sort.CHANGE,
    "-- it's told\nUPDATE a SET n = 1": Sort.CHANGE,
}


@pytest.mark.parametrize("sql", SORTS)
def test_what_it_does(sql: str) -> None:
    assert sort_statement(_query(sql)) is SORTS[sql]


def test_a_savepoint_behind_a_comment() -> None:
    assert find_savepoint("/* x */ SAVEPOINT `A#b`") == "a#b"


def _query(sql: str) -> Query:
    return Query("shop", sql)
