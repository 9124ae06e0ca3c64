"""A consumer at a reader, as a process that is stopped for longer than its lease, and goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import tidemark
from tests.delivery_worlds import changes_of
from tests.reader_worlds import QUICK, TOKEN, RunningReader, join
from tests.services.processes import soon
from tidemark.changes.delivery.http import points
from tidemark.changes.delivery.members import read_seen
from tidemark.ledger.leases import Leases, this_process

LAST, LEASE = 40, 8.0
EVERY = [(seq, row) for seq in range(1, LAST + 1) for row in range(3)]
PROGRAM = """
import os, sys, time
from tidemark.changes import subscribe
from tidemark.changes.delivery.http.client import member
url, token, heard, go = sys.argv[1], sys.argv[2], os.open(sys.argv[3], os.O_WRONLY | os.O_APPEND | os.O_CREAT), sys.argv[4]
member.LEASE_SECONDS = float(sys.argv[5])
with subscribe("billing", source="orders", shards=2, url=url, token=token, rows=3, checkpoint_seconds=6.0) as stream:
    for number, batch in enumerate(stream, 1):
        told = [f"row {row['seq']} {row['i']}" for row in batch.to_pylist()] + (["waits"] if number == 6 else [])
        os.write(heard, "".join(f"{line}\\n" for line in told).encode())
        while number == 6 and not os.path.exists(go):
            time.sleep(0.01)
        os.write(heard, f"done {batch.done()}\\n".encode())
"""


@pytest.mark.full
def test_who_was_stopped_gives_nothing_that_another_did_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has done batches that no point tells of when it is stopped. The other does all, and leaves before it goes on."""
    monkeypatch.setattr(points, "LEASE_SECONDS", LEASE)
    reader, heard, go = RunningReader(tmp_path / "one"), tmp_path / "heard", tmp_path / "go"
    reader.append(range(1, LAST + 1))
    reader.start()
    path = os.pathsep.join([str(Path(tidemark.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    words = [sys.executable, "-c", PROGRAM, reader.url, TOKEN, str(heard), str(go), str(LEASE)]
    process = subprocess.Popen(words, env=os.environ | {"PYTHONPATH": path})
    try:
        assert soon(lambda: heard.exists() and "waits" in heard.read_text(), 60)
        process.send_signal(signal.SIGSTOP)
        assert {point.seq for point in reader.points().values()} == {1}, "a point was written: it has nothing to commit"
        assert soon(lambda: not list_held(reader), 60)
        found = []
        with join([reader], replace(QUICK, rows=50), member="two") as other:
            for batch in other:
                found += changes_of(batch)
                batch.done()
        assert sorted(found) == EVERY
        before = heard.read_text().splitlines()
        process.send_signal(signal.SIGCONT)
        go.touch()
        assert soon(lambda: "done False" in heard.read_text(), 60)
        assert soon(lambda: list_held(reader) == {0, 1}, 60)  # it has the shards again
        reader.append([LAST + 1])
        wanted = {f"row {LAST + 1} {row}" for row in range(3)}
        assert soon(lambda: wanted <= set(heard.read_text().splitlines()), 60)
        after = heard.read_text().splitlines()[len(before) :]
        assert {line for line in after if line.startswith("row")} == wanted
        assert after.count("done False") == 1
    finally:
        process.kill()
        process.wait()
        reader.close()


def list_held(reader: RunningReader) -> set[int]:
    leases = Leases(reader.ledger, this_process())
    with reader.ledger.read() as connection:
        return {*read_seen("", 2, 1, leases.list_named(connection, "task:billing/")).held}
