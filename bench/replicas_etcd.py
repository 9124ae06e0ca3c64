"""Commits to an etcd of three members on this machine: values of as many bytes as a commit's record, one after another.

etcd syncs each to the disks of a majority, as it does by itself, and is asked over one open connection. It is measured where
the program `etcd` is in the PATH (`apt-get install etcd-server`).
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.rows import say
from tests.services.processes import die_with_parent, free_port, stop, wait_until

MEMBERS = 3
WARM = 20
START_SECONDS = 60.0


def measure(below: Path, count: int, size: int, ratios: dict[str, float], peers: dict[str, Any]) -> None:
    """`etcd_ratio`: the commits a second of `single_per_s`, to those of etcd with values of `size` bytes."""
    program = shutil.which("etcd")
    if program is None:
        peers["etcd"] = "absent: apt-get install etcd-server"
        return
    with _cluster(program, below) as port:
        walls = _put_all(port, count, size)
    per_second = len(walls) / sum(walls)
    peers["etcd"] = {
        "commits": len(walls),
        "record_bytes": size,
        "per_s": round(per_second, 1),
        "p50_ms": round(1e3 * statistics.median(walls), 2),
        "p99_ms": round(1e3 * sorted(walls)[int(0.99 * len(walls))], 2),
    }
    ratios["etcd_ratio"] = ratios["single_per_s"] / per_second
    say(f"replicas: etcd: {per_second:.0f} a second; ours {ratios['etcd_ratio']:.2f} times as many")


@contextmanager
def _cluster(program: str, below: Path) -> Iterator[int]:
    """Start the members, and yield the port at which one of them is asked."""
    below.mkdir(parents=True)
    clients, peers = [free_port() for _ in range(MEMBERS)], [free_port() for _ in range(MEMBERS)]
    members = ",".join(f"m{number}=http://127.0.0.1:{port}" for number, port in enumerate(peers))
    with ExitStack() as stack:
        running = []
        for number in range(MEMBERS):
            client, peer = (f"http://127.0.0.1:{ports[number]}" for ports in (clients, peers))
            words = [program, "--name", f"m{number}", "--data-dir", str(below / f"m{number}")]
            words += ["--listen-client-urls", client, "--advertise-client-urls", client]
            words += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
            words += ["--initial-cluster", members, "--initial-cluster-state", "new"]
            log = stack.enter_context((below / f"m{number}.log").open("wb"))
            process = subprocess.Popen(words, stdout=log, stderr=log, preexec_fn=die_with_parent())
            stack.callback(stop, process)
            running.append(process)
        wait_until(lambda: _is_healthy(clients[0]), running[0], START_SECONDS, "etcd")
        yield clients[0]


def _is_healthy(port: int) -> bool:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/health")
        return bool(json.loads(connection.getresponse().read())["health"] == "true")
    except (OSError, ValueError, http.client.HTTPException):
        return False


def _put_all(port: int, count: int, size: int) -> list[float]:
    """Write so many values, one after another; return the seconds of each."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    walls = []
    for number in range(WARM + count):
        pair = {"key": f"log/{number}".encode(), "value": os.urandom(size)}
        body = json.dumps({name: base64.b64encode(data).decode() for name, data in pair.items()})
        began = time.perf_counter()
        connection.request("POST", "/v3/kv/put", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        told = answer.read()
        if answer.status != http.client.OK:
            raise RuntimeError(f"etcd took no value: {told!r}")
        if number >= WARM:
            walls.append(time.perf_counter() - began)
    connection.close()
    return walls
