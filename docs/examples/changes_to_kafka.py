"""Changes of a source to Kafka, a shard to a partition: python docs/examples/changes_to_kafka.py SOURCE TOPIC BROKERS

Needs confluent-kafka (Tidemark itself does not), and the settings as the command finds them. Start as many as you like: they
share the shards. It ends where the store ends; without `follow=False` it goes on for good. The project's tests run this file
as it is, on the mock broker of librdkafka.
"""

import json
import sys
from functools import partial

from confluent_kafka import KafkaError, Message, Producer

from tidemark.changes import subscribe
from tidemark.changes.delivery.batches import Batch

source, topic, brokers = sys.argv[1:]
# In order and each once at the broker, also where a request is sent again.
producer = Producer({"bootstrap.servers": brokers, "enable.idempotence": True, "linger.ms": 20})
partitions = len(producer.list_topics(topic, 30).topics[topic].partitions)


def note_failure(failed: list[KafkaError], error: KafkaError | None, _message: Message) -> None:
    if error is not None:
        failed.append(error)


def send(batch: Batch) -> int:
    """Rows of one table and one shard. The point moves only when the broker has them all."""
    failed: list[KafkaError] = []
    key = [column.name for column in batch.schema.columns if column.key]
    for row in batch.to_pylist():
        image = row["after"] or row["before"]
        change = {"table": batch.table, "op": row["op"], "before": row["before"], "after": row["after"]}
        while True:
            try:
                producer.produce(
                    topic,
                    json.dumps(change, default=bytes.hex).encode(),
                    json.dumps([image.get(name) for name in key], default=bytes.hex).encode(),
                    partition=batch.shard,
                    # Names the change: a consumer drops what it has seen. After a death some come again.
                    headers={"seq": str(row["seq"]), "i": str(row["i"])},
                    on_delivery=partial(note_failure, failed),
                )
                break
            except BufferError:  # the producer's queue is full
                producer.poll(0.1)
    if producer.flush(60) or failed:
        raise RuntimeError(f"the broker did not take all of {batch.table}, shard {batch.shard}: {failed[:1]}")
    return len(batch)


with subscribe("kafka", source=source, shards=partitions, follow=False) as stream:
    sent = 0
    for batch in stream:
        sent += send(batch)
        batch.done()
print(sent, "changes in", partitions, "partitions of", topic)
