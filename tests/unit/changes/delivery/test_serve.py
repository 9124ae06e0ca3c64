"""`changes serve` over a real socket: the seed's state machine, every row once, points, and what hostile clients send."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.change_worlds import ORDERS, START, make_transaction
from tests.commanded import run_here
from tests.wire_client import Client, number, pairs, read_message, text
from tidemark.changes.delivery.http.client import ReaderClient
from tidemark.changes.delivery.http.requests import ARROW, Checkpoint, Subscription
from tidemark.changes.delivery.shards import Divider, Sharding, ShardPiece
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.model import BinlogInfo, Mark, Op, Row, Rows, Transaction
from tidemark.changes.store.read import Reader
from tidemark.changes.store.retain import Rules, retain
from tidemark.changes.store.write import Limits, Writer
from tidemark.errors import BinlogGapError, UnreachableError

UUID = "c055a63d-99c7-11ea-a39c-0a580a24b346"
TOKEN, OTHERS = "billing-token-of-the-tests", "another-token-of-the-tests"
LIMITS = Limits(bucket_bytes=60_000, block_bytes=6_000, index_bytes=1_000, block_seconds=1e9, group_seconds=0.0)
COUNT = 60
ENDS = (13, 14, 16)
ROOT = Path(__file__).parents[4]
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


def start(folder: Path, *words: str) -> tuple[subprocess.Popen[str], str]:
    program = "import sys; from tidemark.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "--config", str(folder / "tidemark.toml"), "changes", "serve", "--port", "0"]
    process = subprocess.Popen([*command, "--json", *words], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert process.stdout is not None
    said = json.loads(process.stdout.readline())
    assert said["pid"] == process.pid
    return process, said["address"]


@contextmanager
def serving(folder: Path, config: str, writer: Writer) -> Iterator[Served]:
    (folder / "tidemark.toml").write_text(config)
    (folder / "changes.tokens").write_text(f"# clients\n{TOKEN} billing mail\n{OTHERS} secret\n")
    process, address = start(folder)
    try:
        yield Served(folder, writer, process, address)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    writer = Writer(Disk(folder / "store"), 1, LIMITS)
    append(writer, *map(make, range(1, COUNT)), make_large(COUNT, 400), *map(make, range(COUNT + 1, COUNT + 4)))
    with serving(folder, '[sources.orders]\nstore = "store"\n', writer) as found:
        yield found


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


# the state machine


def test_the_states_of_the_seed_in_their_order_give_every_row_once(served: Served) -> None:
    client = served.client()
    assert client.fetch().status == 410  # PICK_SERVER
    told = client.connect()  # CONNECT
    assert (told["serverStatus"], told["address"]) == ("AVAILABLE", served.address.removeprefix("http://"))
    assert 0 <= told["loadFactor"] <= 1 and told["inboundBytes"] > 0
    early = client.fetch()
    assert early.status == 409 and text(early.envelope, 5).startswith("NOT_SUBSCRIBED") and number(early.envelope, 2) == 3
    assert client.subscribe().body == b"success"  # SUBSCRIBE
    found = client.fetch_all(events=37)  # FETCH_EVENTS
    assert {shard: rows_of(events) for shard, events in found.items()} == expected(served.disk, Sharding(3))
    ends = {shard: [one for one in events if one["type"] == 16] for shard, events in found.items()}
    for mine in ends.values():
        assert [one["point"]["transactionId"] for one in mine] == list(range(1, COUNT + 4))
    given = Counter(seq for events in found.values() for seq, _ in rows_of(events))
    assert all(int(one["props"]["rows"]) == given[one["point"]["transactionId"]] for one in ends[0])
    assert client.connect()["writerTaskList"] == ["billing"]


def test_subscribing_again_begins_anew_and_a_point_goes_on_behind_its_event(served: Served) -> None:
    client = served.ready()
    whole = client.fetch_all()
    assert not client.fetch().events
    for shard in range(3):
        rows = [one for one in whole[shard] if one["type"] in (1, 2, 3)]
        for event in (rows[len(rows) // 2], [one for one in whole[shard] if one["type"] == 16][20]):
            point = {"checkpointMode": "NORMAL", **event["point"]}
            parts = {"partitionTotal": 3, "partitionSet": [shard]}
            assert client.subscribe(buffaloCheckpoint=point, partitionClusterInfo=parts).status == 200
            place = (event["point"]["transactionId"], event["index"])
            found = client.fetch_all()
            assert list(found) == [shard]
            assert rows_of(found[shard]) == [one for one in rows_of(whole[shard]) if one > place]
            by_offset = {name: value for name, value in point.items() if name not in ("uuid", "transactionId")}
            client.subscribe(buffaloCheckpoint=by_offset, partitionClusterInfo=parts)
            assert rows_of(client.fetch_all()[shard]) == rows_of(found[shard])


def test_the_set_of_a_reply_says_what_comes_next_and_what_it_has_is_empty(served: Served) -> None:
    client = served.ready(shards=1)
    given: list[tuple[int, int]] = []
    while (reply := client.fetch(events=23)).events:
        given += rows_of(reply.events[0])
        other = served.client(shards=1)
        other.connect()
        other.subscribe(buffaloCheckpoint={"checkpointMode": "NORMAL", "gtidSet": pairs(reply.envelope, 7)["gtidSet"]})
        again = other.fetch(events=1).events
        if again:
            last = reply.events[0][-1]["point"]["transactionId"]
            assert again[0][0]["point"]["transactionId"] == last + (reply.events[0][-1]["type"] in ENDS)
    gap = f"{UUID}:1-9:12-20:40"
    client.subscribe(buffaloCheckpoint={"checkpointMode": "NORMAL", "gtidSet": gap})
    has = {*range(1, 10), *range(12, 21), 40}
    assert rows_of(client.fetch_all()[0]) == [one for one in expected(served.disk, Sharding())[0] if one[0] not in has]


def test_tables_ends_and_definitions_are_left_out_where_they_are_not_wanted(served: Served) -> None:
    group = {"taskName": "billing", "serviceGroupName": "orders"}
    only = {**group, "databaseInfoSet": [{"databaseName": "shop", "tableNames": ["ord*"]}]}
    client = served.ready(shards=1, serviceGroupInfo=only, needEndTransaction=False, needDDL=False)
    events = client.fetch_all()[0]
    assert {one["table"] for one in events} == {"orders", ""}
    assert not [one for one in events if one["ddl"] or one["type"] == 16 or one["props"].get("mark") == "schema"]
    wanted = [(piece.seq, record) for piece in Reader(served.disk).read() for record in piece.transaction.records]
    assert len(rows_of(events)) == sum(r.count for _, r in wanted if isinstance(r, Rows) and r.shape == ORDERS)


def test_a_long_poll_ends_with_the_next_transaction_or_with_its_time(served: Served) -> None:
    client = served.ready(shards=1, buffaloCheckpoint={"checkpointMode": "LATEST"})
    begun = time.monotonic()
    assert not client.fetch(milliseconds=300).events
    assert time.monotonic() - begun >= 0.3
    reader = subprocess.Popen(
        [sys.executable, "-c", _WAITER, served.address, TOKEN, client.session],
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    assert reader.stdout is not None and reader.stdout.readline() == "asking\n"
    time.sleep(0.3)
    seq = served.writer.state.seq + 1
    append(served.writer, make(seq))
    assert int(reader.communicate(timeout=30)[0]) == seq


_WAITER = """
import sys
from urllib.parse import urlsplit
from tests.wire_client import Client
place = urlsplit(sys.argv[1])
client = Client(place.hostname, place.port, sys.argv[2], sys.argv[3])
print("asking", flush=True)
[[first, *_]] = client.fetch(milliseconds=20_000).events.values()
print(first["point"]["transactionId"])
"""


@pytest.mark.parametrize(
    ("point", "code"),
    [
        ({"uuid": UUID, "transactionId": 10_000, "eventIndex": 0}, "GREATER_THAN_MAX"),
        ({"binlogFile": 9, "binlogOffset": 4}, "GREATER_THAN_MAX"),
        ({"gtidSet": f"{UUID}:1-9999"}, "GREATER_THAN_MAX"),
        ({"gtidSet": "0-1-5"}, "GREATER_THAN_MAX"),
    ],
)
def test_a_point_that_the_store_does_not_have_is_told_on_which_side(
    served: Served, point: dict[str, Any], code: str
) -> None:
    client = served.client(buffaloCheckpoint={"checkpointMode": "NORMAL", **point})
    told = client.connect()
    assert (told["serverStatus"], told["code"], client.session) == ("UNAVAILABLE", code, "")
    client = served.ready()
    refused = client.subscribe(buffaloCheckpoint={"checkpointMode": "NORMAL", **point})
    assert (refused.status, refused.json["code"]) == (416, code)


# codec ARROW, by the client of Tidemark


@pytest.mark.parametrize("is_undivided", [False, True])
@pytest.mark.parametrize("shards", [(0, 1, 2, 3), (1, 3)])
def test_arrow_blocks_hold_the_same_rows(served: Served, shards: tuple[int, ...], is_undivided: bool) -> None:
    wanted = Subscription(
        "billing", "orders", Sharding(4), shards, checkpoint=Checkpoint("EARLIEST"), codec=ARROW, is_undivided=is_undivided
    )
    client = ReaderClient(served.address, TOKEN, wanted)
    assert client.ask_server()["serverStatus"] == "AVAILABLE"
    client.subscribe()
    found: dict[int, list[tuple[int, int]]] = {shard: [] for shard in shards}
    ends: list[tuple[int, int]] = []
    count = 0
    while (got := client.fetch(milliseconds=0, size=5000)).frames:
        count += got.count
        for shard, frame in got.frames:
            found[shard] += places_of(frame.pieces)
            if shard == 1:
                ends += [(piece.seq, piece.rows) for piece in frame.pieces if piece.ends]
    client.close()
    rows = expected(served.disk, Sharding(4))
    assert found == {shard: rows[shard] for shard in shards}
    given = Counter(seq for places in rows.values() for seq, _ in places)
    assert ends == [(seq, given[seq]) for seq in range(1, served.writer.state.seq + 1)]
    assert count == (sum(map(len, rows.values())) if is_undivided else sum(map(len, found.values())))


def test_a_block_that_fits_goes_out_as_it_is_stored(served: Served) -> None:
    client = served.ready(shards=1, codec="ARROW", undivided=True)
    sent = []
    while entries := read_message(client.fetch(size=1).envelope.get(3, [b""])[0]).get(1, []):
        for entry in map(read_message, entries):
            assert number(entry, 1) == -1
            sent += read_message(entry[2][0])[3]
    stored = b"".join(path.read_bytes() for path in sorted(served.folder.glob("store/data/*/*.data")))
    assert b"".join(sent).startswith(stored) and len(stored) > 20_000


# who is not let in, and what is not sent


@pytest.mark.parametrize("token", ["", "x", TOKEN[:-1], TOKEN + "0", "b" * 100_0])
def test_without_a_token_nothing_is_told(served: Served, token: str) -> None:
    client = served.client(token=token)
    for path in ("/v1/getServerInfo", "/v1/subscribe", "/v1/fetchMessages"):
        answer = client.post(path)
        assert answer.status == 401 and answer.headers["www-authenticate"] == "Bearer"
        assert b"billing" not in answer.body and b"orders" not in answer.body


def test_a_token_of_another_task_learns_and_gets_nothing_of_this_one(served: Served) -> None:
    mine = served.ready()
    other = served.client(token=OTHERS)
    assert (other.post("/v1/getServerInfo").status, other.post("/v1/getServerInfo").json["code"]) == (403, "FORBIDDEN")
    unknown = served.client(token=OTHERS, task="no-such-task")
    assert unknown.post("/v1/getServerInfo").json == other.post("/v1/getServerInfo").json
    other.session = mine.session
    gone, forged = other.fetch(), served.client()
    forged.session = "A" * 32
    assert gone.status == forged.fetch().status == 410 and gone.body == forged.fetch().body
    other.session = ""
    allowed = served.client(token=OTHERS, task="secret")
    assert allowed.connect()["writerTaskList"] == []
    allowed.session = mine.session
    assert allowed.subscribe().status == 410
    assert mine.fetch(events=5).events


def test_a_session_is_of_one_task(served: Served) -> None:
    client = served.ready()
    group = {"taskName": "mail", "serviceGroupName": "orders"}
    assert client.subscribe(serviceGroupInfo=group).json["code"] == "OTHER_TASK"
    assert client.subscribe(serviceGroupInfo={**group, "serviceGroupName": "nothing"}).json["code"] == "NO_SOURCE"


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        {"serviceGroupInfo": {}},
        {"serviceGroupInfo": []},
        {"serviceGroupInfo": {"taskName": ["billing"], "serviceGroupName": "orders"}},
        {"partitionClusterInfo": {"partitionTotal": 10**30}},
        {"partitionClusterInfo": {"partitionTotal": 0}},
        {"partitionClusterInfo": {"partitionTotal": 3, "partitionSet": [3]}},
        {"partitionClusterInfo": {"partitionTotal": 3, "partitionSet": [True]}},
        {"partitionClusterInfo": {"partitionTotal": 3, "columns": {"a.b": "c"}}},
        {"partitionClusterInfo": {"partitionTotal": 3, "hash": "md5"}},
        {"buffaloCheckpoint": {"checkpointMode": "NEXT"}},
        {"buffaloCheckpoint": {"uuid": "nobody"}},
        {"buffaloCheckpoint": {"gtidSet": "a:b:c"}},
        {"buffaloCheckpoint": {"binlogOffset": 1e300}},
        {"codec": "XML"},
        {"undivided": 1},
    ],
    ids=lambda body: str(body)[:60],
)
def test_a_wrong_request_is_told_what_is_wrong(served: Served, body: Any) -> None:
    client = served.ready()
    sent = {**client.body, **body} if isinstance(body, dict) else body
    for path in ("/v1/getServerInfo", "/v1/subscribe"):
        answer = client.post(path, sent)
        assert answer.status == 400 and answer.json["code"] == "BAD_REQUEST" and len(answer.body) < 1000
    assert client.fetch(events=5).events  # the session lives


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/../healthz/x", "/v1/%2e%2e/%2e%2e/etc/passwd", "/v1/fetchMessages/"])
def test_there_are_no_other_paths(served: Served, path: str) -> None:
    answer = served.client().post(path)
    assert answer.status in (404, 405, 307) and b"root:" not in answer.body


def test_a_body_that_is_large_compressed_or_without_end_ends_the_connection(served: Served) -> None:
    client = served.client()
    assert client.post("/v1/subscribe", b" " * 300_000).status == 413
    assert client.post("/v1/subscribe", b"(\xb5/\xfd", {"Content-Encoding": "zstd"}).status == 415
    head = f"POST /v1/subscribe HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
    with served.open_socket() as endless:
        endless.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        sent = 0
        with pytest.raises(OSError):
            while sent < 64 << 20:
                endless.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
                sent += 65536
                if sent > 1 << 20 and endless.recv(1) in (b"", b"H"):
                    raise OSError
        assert sent < 8 << 20
    with served.open_socket() as long_head:
        with pytest.raises(OSError):
            for _ in range(1000):
                long_head.sendall(b"GET /healthz HTTP/1.1\r\nX: " + b"a" * 65536)
                if b"400" in long_head.recv(64):
                    raise OSError
    assert served.ready().fetch(events=5).events


def test_a_session_answers_one_request_at_a_time(served: Served) -> None:
    client = served.ready(shards=1, buffaloCheckpoint={"checkpointMode": "LATEST"})
    with served.open_socket() as waiting:
        body = b'{"timeoutMs": 1500}'
        head = f"POST /v1/fetchMessages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        head += f"Tidemark-Session: {client.session}\r\nContent-Length: {len(body)}\r\n\r\n"
        waiting.sendall(head.encode() + body)
        time.sleep(0.3)
        busy = client.fetch()
        assert busy.status == 409 and text(busy.envelope, 5).startswith("BUSY")
        assert waiting.recv(15) == b"HTTP/1.1 200 OK"
    assert client.fetch().status == 200


def test_metrics_tell_of_the_tasks_of_the_token_alone_and_health_of_nothing(served: Served) -> None:
    served.ready().fetch()
    place = urlsplit(served.address)

    def get(path: str, token: str = "") -> tuple[int, str]:
        connection = http.client.HTTPConnection(place.hostname or "", place.port)
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        response = connection.getresponse()
        found = response.status, response.read().decode()
        connection.close()
        return found

    assert get("/healthz") == (200, "ok\n")
    assert get("/metrics")[0] == 401
    told = get("/metrics", TOKEN)[1]
    assert told.endswith("# EOF\n") and 'tidemark_changes_rows_total{task="billing"}' in told
    others = get("/metrics", OTHERS)[1]
    assert "billing" not in others and 'tidemark_changes_sessions{task="secret"}' in others


def test_a_token_that_is_taken_back_opens_nothing_more(served: Served) -> None:
    tokens = served.folder / "changes.tokens"
    before = tokens.read_text()
    client = served.ready()
    try:
        tokens.write_text(f"{OTHERS} secret\n")
        assert client.fetch().status == 401
    finally:
        tokens.write_text(before)
    assert client.fetch().status == 200


def test_a_client_that_reads_slowly_slows_no_other(served: Served) -> None:
    slow = []
    body = b'{"maxByteSize": 4194304}'
    for _ in range(12):
        client = served.ready(shards=1, codec="ARROW")
        head = f"POST /v1/fetchMessages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        head += f"Tidemark-Session: {client.session}\r\nContent-Length: {len(body)}\r\n\r\n"
        one = served.open_socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        one.sendall(head.encode() + body)
        slow.append(one)
    found = served.ready().fetch_all()
    assert {shard: rows_of(events) for shard, events in found.items()} == expected(served.disk, Sharding(3))
    for one in slow:
        assert one.recv(15) == b"HTTP/1.1 200 OK"
        one.close()


def test_over_tls_and_what_retention_took_is_told_and_never_jumped_over(tmp_path: Path) -> None:
    """Of the transactions that a client has still to get, or where it wants to begin."""
    make_certificate(tmp_path)
    config = '[sources.orders]\nstore = "store"\n[changes]\ncertificate = "c.pem"\nkey = "k.pem"\n'
    disk = Disk(tmp_path / "store")
    writer = Writer(disk, 1, LIMITS)
    for hours in (0, 1, 30):
        for _ in range(40):
            one = make(writer.state.seq + 1)
            late = replace(one.info, timestamp=one.info.timestamp + hours * 3_600_000_000)
            append(writer, replace(one, info=late))
    with serving(tmp_path, config, writer) as served:
        assert served.address.startswith("https://")
        wanted = Subscription("billing", "orders", Sharding(), (0,), checkpoint=Checkpoint("EARLIEST"), codec=ARROW)
        client = ReaderClient(served.address, TOKEN, wanted, ca=str(tmp_path / "c.pem"))
        client.ask_server()
        client.subscribe()
        assert client.fetch(size=1).frames[0][1].pieces[0].seq == 1
        assert retain(disk, Rules(hours=2, grace_seconds=0), (START + 31 * 3_600_000_000) / 1e6).retired
        retain(disk, Rules(hours=2, grace_seconds=0), (START + 32 * 3_600_000_000) / 1e6)
        first, last = Reader(disk).first, 0
        assert first > 40
        point = Checkpoint(uuid=UUID, transaction_id=2)
        told = ReaderClient(
            served.address, TOKEN, replace(wanted, checkpoint=point), ca=str(tmp_path / "c.pem")
        ).ask_server()
        assert (told["serverStatus"], told["code"]) == ("UNAVAILABLE", "LESS_THAN_MIN")
        with pytest.raises(BinlogGapError, match="LESS_THAN_MIN"):
            while (got := client.fetch(milliseconds=0, size=1)).frames:
                last = got.frames[-1][1].pieces[-1].seq
                assert last < first, "it was jumped over"
        with pytest.raises(UnreachableError):
            ReaderClient(served.address, TOKEN, wanted).ask_server()  # a certificate that nobody vouches for


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


# storage points


def test_points_are_told_moved_forward_alone_and_rewound(served: Served) -> None:
    config = served.folder / "tidemark.toml"
    words = ("mail", "--source", "orders", "--shards", "2", "--limit", "1", "--out", str(served.folder / "out"))
    begun = run_here(config, "changes", "consume", *words)
    assert begun.code == 0, begun
    client = served.ready(task="mail", shards=2)
    events = client.fetch_all()[1]
    told = client.post("/v1/points", {"taskName": "mail"}).json
    assert (told["partitionTotal"], told["serviceGroupName"], len(told["points"])) == (2, "orders", 2)
    version = told["points"][1]["versionTs"]

    def commit(event: dict[str, Any], version: int = version) -> Any:
        point = {"checkpointMode": "NORMAL", **event["point"], "versionTs": version}
        return client.post("/v1/commit", {"taskName": "mail", "shard": 1, "buffaloCheckpoint": point})

    middle = next(one for one in events if one["type"] == 16 and one["point"]["transactionId"] == 20)
    row = next(one for one in events if one["type"] < 4 and one["point"]["transactionId"] == COUNT and one["index"] > 30)
    assert (commit(middle).json["seq"], commit(middle).json["eventIndex"]) == (21, 0)
    assert commit(events[0]).json["seq"] == 21  # it stays
    moved = commit(row).json
    assert (moved["seq"], moved["eventIndex"], moved["gtids"]) == (COUNT, row["index"] + 1, f"{UUID}:1-{COUNT - 1}")
    shown = run_here(config, "changes", "show").json["tasks"][0]["points"][1]
    assert (shown["point"], shown["event_index"]) == (f"seq:{COUNT}", row["index"] + 1)

    asked = {"taskName": "mail", "to": "seq:5", "shards": [1]}
    preview = client.post("/v1/rewind", asked).json
    assert not preview["applied"] and preview["shards"][0]["from"] == 5 and preview["rows"] > 0
    assert client.post("/v1/points", {"taskName": "mail"}).json["points"][1]["seq"] == COUNT
    assert client.post("/v1/rewind", {**asked, "apply": True}).json["applied"]
    stale = commit(row)
    assert (stale.status, stale.json["code"]) == (409, "STALE")
    now = client.post("/v1/points", {"taskName": "mail"}).json["points"][1]
    assert now["seq"] == 5 and now["versionTs"] > version
    assert commit(middle, now["versionTs"]).json["seq"] == 21


@pytest.mark.parametrize("path", ["/v1/points", "/v1/commit", "/v1/rewind"])
def test_points_of_another_task_are_not_told_nor_moved(served: Served, path: str) -> None:
    point = {"uuid": UUID, "transactionId": 5, "eventIndex": 0, "versionTs": 1}
    body = {"taskName": "billing", "shard": 0, "buffaloCheckpoint": point, "to": "earliest", "apply": True}
    answers = [served.client(token=OTHERS).post(path, {**body, "taskName": name}) for name in ("billing", "nobody")]
    assert answers[0].status == answers[1].status == 403 and answers[0].body == answers[1].body
    assert served.client().post(path, body).status == 404  # ours, and not begun
    assert served.client().post(path, {"taskName": 5}).status == 400


# the command


@pytest.mark.parametrize(
    ("settings", "tokens", "says"),
    [
        ("", None, "tokens of clients cannot be read"),
        ("", "short billing\n", "line 1 of the tokens"),
        ("", f"\n{TOKEN}\n", "line 2 of the tokens"),
        ("", f"{TOKEN} a\n{TOKEN} b\n", "a second time"),
        ('certificate = "c.pem"\n', f"{TOKEN} a\n", "certificate and key go together"),
        ('certificate = "c.pem"\nkey = "k.pem"\n', f"{TOKEN} a\n", "c.pem"),
        ('listen = "127.0.0.1"\n', f"{TOKEN} a\n", "HOST:PORT"),
        ('listen = "203.0.113.9:1"\n', f"{TOKEN} a\n", "nothing can listen on 203.0.113.9:1"),
    ],
)
def test_a_server_that_cannot_start_says_why(tmp_path: Path, settings: str, tokens: str | None, says: str) -> None:
    config = tmp_path / "tidemark.toml"
    config.write_text(f'[sources.orders]\nstore = "store"\n[changes]\n{settings}')
    if tokens is not None:
        (tmp_path / "changes.tokens").write_text(tokens)
    said = run_here(config, "changes", "serve")
    assert said.code in (2, 6) and says in said.json["error"] and said.json["hint"] and TOKEN not in said.out + said.err
