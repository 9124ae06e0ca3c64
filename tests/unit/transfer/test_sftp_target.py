"""A relay's parts at an SFTP server: however many files are asked ahead, few are open there at once."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from tests.memory_store import MemoryStore
from tidemark.stores.protocol import Entry
from tidemark.stores.sftp.protocol import CLOSE, HANDLE, OPEN, STATUS, Reply
from tidemark.transfer.items import SendItem, SendOptions, Wire
from tidemark.transfer.relay.job import Job
from tidemark.transfer.relay.sftp_target import MOST_OPEN, SftpTarget

OK = Reply(STATUS, struct.pack(">I", 0))
SIZE = 100


class Session:
    """Answers as a server, in order and when asked to."""

    write_size = read_size = 1000

    def __init__(self) -> None:
        self.extensions: dict[str, bytes] = {}
        self.open = self.most_open = self.opened = 0
        self._asked: list[Any] = []

    def post(self, kind: int, payload: bytes, then: Any) -> None:
        self._asked.append((kind, then))

    def post_data(self, kind: int, head: bytes, data: memoryview, then: Any) -> None:
        self._asked.append((kind, then))

    def step(self) -> None:
        kind, then = self._asked.pop(0)
        self.open += {OPEN: 1, CLOSE: -1}.get(kind, 0)
        self.opened += kind == OPEN
        self.most_open = max(self.most_open, self.open)
        then(Reply(HANDLE, struct.pack(">I", 1) + b"h") if kind == OPEN else OK)


class Server(MemoryStore):
    reads_back = False

    def __init__(self, session: Any) -> None:
        super().__init__()
        self.bulk_session = lambda: session

    def locate_path(self, path: str) -> str:
        return f"/{path}"


def begun(small: bool, count: int = 2000) -> tuple[Session, SftpTarget, list[Job]]:
    session: Any = Session()
    store: Any = Server(session)
    wire = Wire(MemoryStore(), store, SendOptions(), lambda _count: None)
    target = SftpTarget(store, wire)
    jobs = [
        Job(number, SendItem(f"{number}", f"l/{number}", SIZE), Entry(f"{number}", SIZE, 1, 1), small)
        for number in range(count)
    ]
    for job in jobs:
        target.begin_job(job, b"")
    return session, target, jobs


def bring(target: SftpTarget, job: Job) -> None:
    target.write_data(job, bytes(SIZE))
    job.receive_data(bytes(SIZE))
    if not job.small:
        job.claim_block()
        target.journal_claim(job)


@pytest.mark.parametrize("small", [True, False])
def test_few_of_many_files_asked_ahead_are_open(small: bool) -> None:
    session, target, jobs = begun(small)
    for job in jobs:
        bring(target, job)
    target._stream.await_parts([*target._parts.values(), *target._journals.values()])
    assert session.most_open <= MOST_OPEN + 1
    assert session.opened == len(jobs) * (1 if small else 2) and session.open == 0


def test_files_that_are_first_in_order_and_come_last_keep_nobody_waiting() -> None:
    """What a bundle does not bring is asked in another way, behind it."""
    session, target, jobs = begun(small=True)
    late, others = jobs[:250], jobs[250:]
    for job in others:
        bring(target, job)
    assert session.most_open <= MOST_OPEN + 250
    target.abandon_jobs(late[:200])
    for job in late[200:]:
        bring(target, job)
    target._stream.await_parts(list(target._parts.values()))
    assert all(part.trouble is None for part in target._parts.values()) and session.most_open <= MOST_OPEN + 250


def test_what_is_given_up_before_its_first_byte_is_never_opened() -> None:
    session, target, jobs = begun(small=True)
    target.abandon_jobs(jobs)
    while session._asked:
        session.step()
    assert session.opened <= MOST_OPEN and session.open == 0
