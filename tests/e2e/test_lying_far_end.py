"""A far end that answers what it was not asked: nothing of it gets a final name, and an error says so."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from tests.e2e.store_ends import BLOCK, QUICK, address, write
from tests.services.sshd import Sshd
from tidemark.errors import PermanentError, TidemarkError
from tidemark.stores.local import LocalStore
from tidemark.stores.open_sftp import open_sftp
from tidemark.stores.python import bundle as far_source
from tidemark.transfer.engine import Failed, SendItem, SendOptions, Sent, send_files

pytestmark = [pytest.mark.real("sshd"), pytest.mark.usefixtures("short_pauses")]

SMALL, LARGE = 1000, 3 << 20
LIES = {  # what is said of a piece: number, offset, bytes, kind
    "fewer bytes": "(number, 0, 10, kind)",
    "behind an offset": "(number, offset + 7, size, kind)",
    "without a digest": "(number, offset, size, BARE)",
    "of another file": "(number + 99, offset, size, kind)",
    "far behind its end": "(number, offset + (1 << 50), size, BLOCK)",
    "farther than any disk": "(number, 1 << 63, size, BLOCK)",
    "over its end": "(number, offset + 5, size, BLOCK)",
    "no bytes": "(number, offset, 0, kind)",
    "as if its bytes were here": "(number, offset, size, KEPT)",
}


def lie(monkeypatch: pytest.MonkeyPatch, module: str, more: str) -> None:
    """The far end's `module` has `more` behind it."""
    whole = far_source._strip_module
    monkeypatch.setattr(far_source, "_strip_module", lambda name: whole(name) + (more if name == module else ""))


def brought(sshd: Sshd, site: Path, centre: Path, items: list[SendItem]) -> list[Sent | Failed]:
    store = open_sftp(address(sshd, site), limits=QUICK)
    try:
        return list(send_files(store, LocalStore(str(centre)), items, SendOptions(block_bytes=BLOCK, retries=1)))
    finally:
        store.close()


def refused(outcomes: list[Sent | Failed], said: str = "not asked") -> bool:
    (outcome,) = outcomes
    assert isinstance(outcome, Failed), outcome
    return isinstance(outcome.error, PermanentError) and said in outcome.error.message and bool(outcome.error.hint)


@pytest.mark.full_after(1)
@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("what", LIES)
def test_a_piece_that_was_not_asked(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, size: int
) -> None:
    lie(
        monkeypatch,
        "reader",
        "\ndef _record(self, number, offset, size, kind, total, of):"
        "\n    start = self.filled"
        "\n    self.filled += size"
        f"\n    said = {LIES[what]}"
        "\n    if said[3] != PREFIX or not offset:"
        "\n        total = hashlib.sha256(self.buffer[start:start + said[2]]).digest()"
        "\n    self.records.append(RECORD.pack(said[0], said[1], said[2], 0, said[3], of, total))"
        "\n    if self.filled == len(self.buffer):"
        "\n        self.flush_frame()"
        "\nRangeReader._add_record = _record\n",
    )
    site = sshd.new_folder("far")
    assert refused(brought(sshd, site, tmp_path, write(site, size)))
    assert not list(tmp_path.rglob("*.tsfile"))


def test_torn_records(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lie(
        monkeypatch,
        "reader",
        "\ndef flush(self):\n    self.send(b'torn', self.buffer[:0])\n    self.records = []"
        "\nRangeReader.flush_frame = flush\n",
    )
    site = sshd.new_folder("far")
    assert refused(brought(sshd, site, tmp_path, write(site, SMALL)))


@pytest.mark.parametrize("said", ["number + 99, offset, length", "number, offset, length - 1"])
def test_an_answer_to_a_push_that_was_not_asked(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    lie(
        monkeypatch,
        "writer",
        "\n_honest = FrameReceiver._send_answers\ndef _answer(self, answers):"
        "\n    told = []"
        "\n    for number, offset, length, trouble, kind, size, digest in map(RECORD.unpack, answers):"
        f"\n        told.append(RECORD.pack({said}, trouble, kind, size, digest))"
        "\n    _honest(self, told)"
        "\nFrameReceiver._send_answers = _answer\n",
    )
    items, far = write(tmp_path, SMALL), sshd.new_folder("far")
    store = open_sftp(address(sshd, far), limits=QUICK)
    assert refused(list(send_files(LocalStore(str(tmp_path)), store, items, SendOptions(retries=1))))
    store.close()
    assert not os.path.lexists(far / items[0].target_path)


ENDLESS = {
    "a file without an end": (
        "do_read_many",
        "\n    while True:\n        self.send(DATA, None, bytes(PIECE))",
        lambda store: list(store.read_many(["f"], [5])),
        "more bytes of a file",
    ),
    "a range without an end": (
        "do_read_range",
        "\n    while True:\n        self.send(DATA, None, bytes(PIECE))",
        lambda store: store.read("f", 0, 5),
        "more bytes of a file",
    ),
    "a frame of 4 GB": (
        "do_stat",
        "\n    self.sink.write(HEAD.pack(DONE, 1 << 31, (1 << 32) - 1))\n    self.sink.flush()\n    time.sleep(60)",
        lambda store: store.stat("f"),
        "more than it ever has to say",
    ),
    "a listing that unpacks to 4 GB": (
        "do_list",
        "\n    z = zlib.compressobj(9, wbits=-15)\n    one = z.compress(bytes(1 << 20)) + z.flush(zlib.Z_FULL_FLUSH)"
        "\n    end = b'\\x03\\x00' + ((1 << 32) % 65521 << 16 | 1).to_bytes(4, 'big')"  # no more; the sum of 4 GB of zeros
        "\n    data = b'\\x78\\xda' + one * 4096 + end"
        "\n    self.send(DATA, [['', 1 << 28]], data)\n    return [[], []]",
        lambda store: list(store.list_files([""]).entries),
        "torn",
    ),
}


@pytest.mark.full_after(1)
@pytest.mark.parametrize("what", ENDLESS)
def test_an_answer_without_an_end(sshd: Sshd, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """The near end takes no more of it than it asked for, or than an answer may have."""
    name, body, ask, says = ENDLESS[what]
    lie(monkeypatch, "server", f"\ndef {name}(self, *asked):{body}\nServer.{name} = {name}\n")
    store = open_sftp(address(sshd, sshd.new_folder(), memory=0), limits=QUICK)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TidemarkError, match=says) as caught:
        ask(store)
    assert caught.value.hint
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + (1 << 20), "1 GB more at most, in KB"
    store.close()
