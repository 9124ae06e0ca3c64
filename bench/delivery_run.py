"""Consumers of `bench delivery`: `ADDRESS CODEC PROCESSES LIMIT`. Prints the rows they got, and the seconds it took."""

from __future__ import annotations

import json
import multiprocessing
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Barrier
from urllib.parse import urlsplit

from tidemark.changes.delivery.http.client.session import SESSION, ReaderClient, Received
from tidemark.changes.delivery.http.requests import ARROW, Checkpoint, Subscription
from tidemark.changes.delivery.shards import Sharding
from tidemark.changes.store.model import Rows

TOKEN = "token-of-the-benchmark"
SHARDS = 8


def open_client(address: str, codec: str, shards: tuple[int, ...]) -> ReaderClient:
    wanted = Subscription(
        "bench",
        "orders",
        Sharding(SHARDS),
        shards,
        checkpoint=Checkpoint("EARLIEST"),
        codec=codec,
        is_undivided=len(shards) == SHARDS,
        is_compressed=False,
    )
    client = ReaderClient(address, TOKEN, wanted)
    if client.ask_server()["serverStatus"] != "AVAILABLE":
        raise RuntimeError("the server is not available")
    return client


def consume(address: str, codec: str, shards: tuple[int, ...], limit: int) -> int:
    """Take everything, or at least `limit` rows, as Arrow rows of a shard or as values. How many they were."""
    client = open_client(address, codec, shards)
    client.subscribe()
    rows = 0
    for got in fetch_ahead(client):
        for _, frame in got.frames:
            for piece in frame.pieces:
                rows += sum(len(record.batch) for record in piece.transaction.records if isinstance(record, Rows))
        for events in (got.events or {}).values():
            for event in events:
                if event.eventType < 4:
                    sides = (event.rowData.before, event.rowData.after)
                    values = [{n: None if c.isNull else c.value for n, c in side.items()} for side in sides]
                    rows += any(map(bool, values))
        if rows >= limit:
            break
    client.close()
    return rows


def fetch_ahead(client: ReaderClient) -> Iterator[Received]:
    """What comes, to the end that the store has. The next reply is asked for while the caller is at the one before."""
    with ThreadPoolExecutor(1) as beside:
        coming = beside.submit(client.fetch, milliseconds=0)
        while (got := coming.result()).frames or got.events:
            coming = beside.submit(client.fetch, milliseconds=0)
            yield got


def _run(wanted: tuple[str, str, tuple[int, ...], int], start: Barrier, told: multiprocessing.Queue[int]) -> None:
    start.wait()
    told.put(consume(*wanted))


def hold_slowly(address: str, ready: threading.Barrier, ended: threading.Event) -> None:
    """Ask for the largest reply, and take 64 KiB of it a second."""
    client = open_client(address, ARROW, tuple(range(SHARDS)))
    client.subscribe()
    place, headers = urlsplit(address), client._connection.headers
    with socket.create_connection((place.hostname, place.port)) as connection:
        body = b'{"maxByteSize": 4194304}'
        head = f"POST /v1/fetchMessages HTTP/1.1\r\nHost: x\r\nAuthorization: {headers['Authorization']}\r\n"
        head += f"{SESSION}: {headers[SESSION]}\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        connection.recv(1)
        ready.wait()
        while not ended.wait(1.0):
            connection.recv(65536)
    client.close()


def main() -> int:
    address, codec, processes, limit = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    start, told = multiprocessing.Barrier(processes + 1), multiprocessing.Queue()
    each = SHARDS // processes
    parts = [tuple(range(first, first + each)) for first in range(0, SHARDS, each)]
    workers = [multiprocessing.Process(target=_run, args=((address, codec, shards, limit), start, told)) for shards in parts]
    for worker in workers:
        worker.start()
    start.wait()
    begun = time.perf_counter()
    rows = sum(told.get() for _ in workers)
    seconds = time.perf_counter() - begun
    for worker in workers:
        worker.join()
    print(json.dumps({"rows": rows, "seconds": seconds}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
