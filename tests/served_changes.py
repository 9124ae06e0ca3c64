"""A store, and `changes serve` before it as its operator starts it: for tests over a real socket."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.change_worlds import ORDERS, START, make_transaction
from tests.wire_client import Client
from tidemark.changes.delivery.shards import Divider, Sharding, ShardPiece
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.model import BinlogInfo, Mark, Op, Row, Rows, Transaction
from tidemark.changes.store.read import Reader
from tidemark.changes.store.write import Limits, Writer

UUID = "c055a63d-99c7-11ea-a39c-0a580a24b346"
TOKEN, OTHERS = "billing-token-of-the-tests", "another-token-of-the-tests"
LIMITS = Limits(bucket_bytes=60_000, block_bytes=6_000, index_bytes=1_000, block_seconds=1e9, group_seconds=0.0)
COUNT = 60
ENDS = (13, 14, 16)
ROOT = Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT / 'plugins'}{os.pathsep}{ROOT}"}


def make(seq: int) -> Transaction:
    """As `make_transaction`, with GTIDs of MySQL, and a commit at the end of each."""
    plain = make_transaction(seq)
    place = BinlogInfo(1, 7, 3, 100 * seq, bytes.fromhex(UUID.replace("-", "")), seq, 0, START + seq * 1_000_000)
    return Transaction(place, f"{UUID}:{seq}", seq, (*plain.records, Mark("commit", "xid")))


def make_large(seq: int, rows: int) -> Transaction:
    images = [Row(Op.INSERT, None, (number, 1, 0.5, "x" * 50, b"")) for number in range(rows)]
    return Transaction(make(seq).info, f"{UUID}:{seq}", seq, (Rows.of(ORDERS, images), Mark("commit", "xid")))


def append(writer: Writer, *transactions: Transaction) -> None:
    for one in transactions:
        writer.append(one, f"{UUID}:1-{writer.state.seq + 1}")
    writer.sync()


@dataclass
class Served:
    """A server as its operator starts it, and the store behind it."""

    folder: Path
    writer: Writer
    process: subprocess.Popen[str]
    address: str

    @property
    def disk(self) -> Disk:
        return Disk(self.folder / "store")

    def client(self, token: str = TOKEN, task: str = "billing", shards: int = 3, **more: Any) -> Client:
        place = urlsplit(self.address)
        body = {
            "serviceGroupInfo": {"taskName": task, "serviceGroupName": "orders"},
            "partitionClusterInfo": {"partitionTotal": shards, "partitionSet": list(range(shards))},
            **more,
        }
        return Client(place.hostname or "", place.port or 0, token, body=body)

    def ready(self, **more: Any) -> Client:
        client = self.client(**more)
        assert client.connect()["serverStatus"] == "AVAILABLE"
        assert client.subscribe().body == b"success"
        return client

    def open_socket(self) -> socket.socket:
        place = urlsplit(self.address)
        return socket.create_connection((place.hostname, place.port), timeout=30)


def start(folder: Path, *words: str, before: str = "") -> tuple[subprocess.Popen[str], str]:
    program = f"{before}\nimport sys; from tidemark.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "--config", str(folder / "tidemark.toml"), "changes", "serve", "--port", "0"]
    process = subprocess.Popen([*command, "--json", *words], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert process.stdout is not None
    said = json.loads(process.stdout.readline())
    assert said["pid"] == process.pid
    return process, said["address"]


def make_certificate(folder: Path) -> None:
    """A key, and a certificate of 127.0.0.1 that it signs itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(days=1))
    made = made.add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
    (folder / "c.pem").write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "k.pem").write_bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))


@contextmanager
def serving(folder: Path, config: str, writer: Writer, before: str = "") -> Iterator[Served]:
    """`before`: lines of Python that the server's process runs first, such as shorter times."""
    (folder / "tidemark.toml").write_text(config)
    (folder / "changes.tokens").write_text(f"# clients\n{TOKEN} billing mail\n{OTHERS} secret\n")
    process, address = start(folder, before=before)
    try:
        yield Served(folder, writer, process, address)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def expected(disk: Disk, sharding: Sharding, first: int = 1) -> dict[int, list[tuple[int, int]]]:
    """(transaction, number) of each row of each shard."""
    divider, found = Divider(sharding), {shard: [] for shard in range(sharding.shards)}  # type: ignore[var-annotated]
    for stretch in Reader(disk).read_stretches(1):
        for shard, pieces in divider.divide(stretch.pieces).items():
            found[shard] += places_of(pieces)
    return {shard: [one for one in places if one[0] >= first] for shard, places in found.items()}


def places_of(pieces: Sequence[ShardPiece]) -> list[tuple[int, int]]:
    return [
        (piece.seq, index)
        for piece in pieces
        for record in piece.transaction.records
        if isinstance(record, Rows)
        for index in record.batch.column("i").to_pylist()
    ]


def rows_of(events: Sequence[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(one["point"]["transactionId"], one["index"]) for one in events if one["type"] in (1, 2, 3)]
