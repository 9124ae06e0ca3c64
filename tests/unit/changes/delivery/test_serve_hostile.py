"""`changes serve` and who is not let in, what is not sent, what is refused; a command that cannot start."""

from __future__ import annotations

import http.client
import socket
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.commanded import run_here
from tests.served_changes import (
    OTHERS,
    TOKEN,
    Served,
    expected,
    rows_of,
)
from tests.wire_client import text
from tidemark.changes.delivery.shards import Sharding

GROUP = {"taskName": "billing", "serviceGroupName": "orders"}

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
        {"codec": "x" * 16_000},
        b'{"serviceGroupInfo": {"taskName": "billing", "serviceGroupName": "orders"}, "codec": "\\ud800"}',
        {"partitionClusterInfo": {"partitionTotal": 3, "columns": {"a" * 200_000: 5}}},
        {"partitionClusterInfo": {"partitionTotal": 3, "columns": {"a" * 600: ["b"]}}},
        {"serviceGroupInfo": {**GROUP, "databaseInfoSet": [{"databaseName": "*a" * 129}]}},
        {"serviceGroupInfo": {**GROUP, "databaseInfoSet": [{"databaseName": "a", "tableNames": ["?" * 257]}]}},
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


@pytest.mark.full
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
        with waiting.makefile("rb") as reply:  # whole: who leaves before its end has to subscribe again
            assert reply.readline() == b"HTTP/1.1 200 OK\r\n"
            headers = http.client.parse_headers(reply)
            assert len(reply.read(int(headers["content-length"]))) == int(headers["content-length"])
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


def test_while_the_tokens_cannot_be_read_nobody_is_let_in_and_told_where_they_are(served: Served) -> None:
    tokens, away = served.folder / "changes.tokens", served.folder / "tokens.away"
    client = served.ready()
    tokens.rename(away)
    try:
        for one in (client, served.client(token="")):
            told = one.post("/v1/getServerInfo")
            assert (told.status, told.json["code"]) == (503, "CLOSED")
            assert b"changes.tokens" not in told.body and str(served.folder).encode() not in told.body
        tokens.write_text(f"{TOKEN}\n")  # it is being edited
        assert client.post("/v1/getServerInfo").status == 503
    finally:
        away.rename(tokens)
    assert client.fetch(events=5).events


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


# the command


@pytest.mark.full_after(1)
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
