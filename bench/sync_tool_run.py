"""One sync by the original tool: from starting its client until the receiving server answers with every point.

python -m bench.sync_tool_run EDGE_FOLDER RECEIVER_FOLDER RECEIVER_PID RPC_PORT SYNC_PORT PARTITIONS POINTS

Prints {"seconds": …, "receiver_cpu_seconds": …}. The client goes on for ever, so it is ended once all is there. The points
are counted only after every partition has its folder at the receiver: asking earlier would cost the server time.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from bench import sync_tool
from bench.sync_tool_data import GROUPS
from bench.sync_tool_rpc import Session
from tests.services.processes import die_with_parent, stop

LOOK_EVERY = 0.02  # seconds
PATIENCE = 600.0


def run(edge: Path, receiver: Path, *numbers: int) -> int:
    pid, port, sync_port, partitions, points = numbers
    command = sync_tool.client(edge, sync_port)
    session = Session(port)
    cpu = _cpu_seconds(pid)
    with (edge / "sync.out").open("wb") as out:
        began = time.monotonic()
        client = subprocess.Popen(
            command, cwd=edge, stdin=subprocess.DEVNULL, stdout=out, stderr=out, preexec_fn=die_with_parent(signal.SIGKILL)
        )
    try:
        while _partitions(receiver) < partitions or _points(session) < points:
            if client.poll() is not None or time.monotonic() - began > PATIENCE:
                print(f"{_points(session)} of {points} points are there; the client: {client.poll()}", file=sys.stderr)
                return 1
            time.sleep(LOOK_EVERY)
        seconds = time.monotonic() - began
    finally:
        stop(client, signal.SIGKILL)
    print(json.dumps({"seconds": seconds, "receiver_cpu_seconds": _cpu_seconds(pid) - cpu}))
    return 0


def _partitions(receiver: Path) -> int:
    folders = (receiver / "data" / "data" / "sequence" / group / "0" for group in GROUPS)
    return sum(1 for folder in folders if folder.exists() for _ in folder.iterdir())


def _points(session: Session) -> int:
    return sum(session.count(f"{group}.*") for group in GROUPS)


def _cpu_seconds(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:])))
