"""The programs of docs/examples that read changes, as a user starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.commanded import run_here
from tests.delivery_worlds import KEYS, expected_changes, fill_store, write_store
from tests.services.spark import PLUGINS, QUICK_JAVA
from tidemark.engines.java import java_home
from tidemark.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
LAST, TOPIC = 60, "changes"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_store(tmp_path, LAST)


def run_example(name: str, config: Path, *arguments: str, **names: str) -> str:
    path = os.pathsep.join([str(PLUGINS), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "examples" / name, *arguments],
        env={**os.environ, "PYTHONPATH": path, "TIDEMARK_CONFIG": str(config), **names},
        cwd=config.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=550,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture
def brokers() -> Iterator[str]:
    """The mock broker of librdkafka, as long as its first client lives. A topic of it has four partitions."""
    owner = Producer({"test.mock.num.brokers": 1})
    found = owner.list_topics(TOPIC, 30).brokers.values()
    yield ",".join(f"{one.host}:{one.port}" for one in found)
    owner.flush(1)


def read_topic(brokers: str, count: int) -> dict[int, list[tuple[int, int]]]:
    """The changes of each partition, in its order, as (transaction, row)."""
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "test", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(4)])
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    try:
        while sum(map(len, found.values())) < count:
            message = consumer.poll(30)
            assert message is not None and message.error() is None, (message, found)
            headers = dict(message.headers() or [])
            partition = message.partition()
            assert partition is not None and message.value() is not None
            found[partition].append((int(headers["seq"]), int(headers["i"])))
        assert consumer.poll(0.2) is None
    finally:
        consumer.close()
    return found


def test_shards_go_to_partitions_of_kafka_in_order(config: Path, brokers: str) -> None:
    changes = expected_changes(1, LAST)
    assert run_example("changes_to_kafka.py", config, "orders", TOPIC, brokers) == (
        f"{len(changes)} changes in 4 partitions of {TOPIC}\n"
    )
    found = read_topic(brokers, len(changes))
    for shard, rows in found.items():
        out = config.parent / "shard.jsonl"
        words = ("--shards", "4", "--shard", str(shard), "--out", str(out))
        assert run_here(config, "changes", "read", "orders", *words).code == 0
        lines = map(json.loads, out.read_text().splitlines())
        assert rows == [(line["seq"], line["i"]) for line in lines if line["k"] == "row"]
    fill_store(config.parent / "store", LAST + 1, LAST + 4, fence=2)
    more = expected_changes(LAST + 1, LAST + 4)
    assert run_example("changes_to_kafka.py", config, "orders", TOPIC, brokers).startswith(f"{len(more)} changes")
    again = read_topic(brokers, len(changes | more))
    assert {row for rows in again.values() for row in rows} == changes | more


@pytest.mark.full
@pytest.mark.real("spark")
@pytest.mark.timeout(600)
def test_the_program_of_spark(config: Path) -> None:
    try:
        java = java_home()
    except UsageError as missing:
        pytest.skip(missing.message)
    told = run_example(
        "spark_changes.py", config, str(config), str(config.parent / "out"), JAVA_HOME=str(java), **QUICK_JAVA
    )
    orders = [(n, row) for n in range(1, LAST + 1) for row in range(0, n % 7, 1 if n % 4 else 2)]
    assert f"{len(orders)} changes kept" in told
    assert f"{len({(n + row) % KEYS for n, row in orders})} rows in shop.orders" in told
