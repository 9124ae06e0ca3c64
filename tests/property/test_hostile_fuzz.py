"""Whatever an edge writes: no exception but ours, no more than 512 MB, no more than 10 s a file.

By default Hypothesis damages sound files of every kind. `--soak`: an hour of mutations, those kept that reach lines of
Tidemark which no one reached before (`tests/hostile_reader.py cover`); FUZZ_SECONDS for another time.
"""

from __future__ import annotations

import json
import os
import random
import re
import select
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.expected import SITES
from tests.property.test_papers_damage import MANIFEST, RECEIPT
from tests.small_files import deletion, sealed
from tests.unit.tsfiles.test_mods import table, tree
from tests.unit.tsfiles.test_schema_log import TEXT, create, frame
from tidemark.cluster.nodes.formats import KeptDocument, NodeClaim, encode_kept, encode_node
from tidemark.formats.landing import encode_document
from tidemark.settings import template

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 10
SOAK_SECONDS = float(os.environ.get("FUZZ_SECONDS", "3600"))  # here: tests see no settings of ours
SMALL = sealed({"root.sg.d1": {"s": [(t, t * t) for t in range(50)]}}, deletion("root.sg.d1.s", 1, 5))
REAL = sorted((p for site in SITES.values() for p in site.root.rglob("*.tsfile")), key=lambda p: p.stat().st_size)
SEEDS: dict[str, list[bytes]] = {
    "manifest": [encode_document(MANIFEST)],
    "receipt": [encode_document(RECEIPT)],
    "decided": [b'{"format":1}'],
    "settled": [b'{"format":1}'],
    "node": [encode_node(NodeClaim("c", "n1"))],
    "node table": [b"\x01" + zlib.compress(text) for text in (b"{}", b"[" * 100_000, b"0" * (64 << 20))],
    "node kept": [encode_kept(KeptDocument("table", "1", b"x"))],
    "node schema": [b'{"form":1,"database":"root.sg"}\n' + b"[" * 5_000 + b"\n", b'{"form":1,"database":"root.sg"}\n5\n'],
    "resource": [SMALL[".resource"]],
    "mods": [SMALL[".mods"]],
    "mods2": [tree("root.sg.*", 1, 5) + table("t", 1, 5, columns=("a", "b"))],
    "schema text": [TEXT],
    "schema binary": [frame(create("root.sg.d1.s1")) * 3],
    "settings": [template.render_template().encode()],
    "tsfile": [SMALL[""], *(path.read_bytes() for path in REAL[:3])],
}
INTERESTING = (
    b"\0",
    b"\xff",
    b"\x7f\xff\xff\xff",
    b"\x80" * 10,
    b"\xff" * 8,
    b"[" * 3000,
    b'"',
    b"1e999",
    b"-1",
    b"\xc3\x28",
)
CUT = st.tuples(st.integers(0, 1 << 20), st.integers(0, 64), st.sampled_from(INTERESTING) | st.binary(max_size=12))


class Reader:
    """The child; a new one after each that failed."""

    def __init__(self, cover: bool = False) -> None:
        self._words = ["cover"] if cover else []
        self._seconds = SECONDS * (6 if cover else 1)  # watching each line takes its time
        self._start()

    def _start(self) -> None:
        env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'plugins'}"}
        command = [sys.executable, "-m", "tests.hostile_reader", *self._words]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, cwd=ROOT)

    def read(self, kind: str, data: bytes) -> int:
        """Lines that it reached first; fails where anything but a reading or a refusal came."""
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write(json.dumps({"kind": kind, "size": len(data)}).encode() + b"\n" + data)
        self._child.stdin.flush()
        ready, _, _ = select.select([self._child.stdout], [], [], self._seconds)
        line = self._child.stdout.readline() if ready else b""
        if not line:
            self.close()
            self._start()
            pytest.fail(f"{kind}: it died" if ready else f"{kind}: not done after {self._seconds} s")
        answer = json.loads(line)
        assert not answer["error"], f"{kind}: {answer['error']}"
        return int(answer["new"])

    def close(self) -> None:
        self._child.kill()
        self._child.communicate()


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    child = Reader()
    child.read("settings", b"")  # it is up
    yield child
    child.close()


def damaged(data: bytes, cuts: list[tuple[int, int, bytes]]) -> bytes:
    for at, length, other in cuts:
        start = at % (len(data) + 1)
        data = data[:start] + other + data[start + length :]
    return data


@pytest.mark.parametrize("kind", SEEDS)
def test_a_sound_file_is_read(reader: Reader, kind: str) -> None:
    for data in SEEDS[kind]:
        reader.read(kind, data)


@pytest.mark.parametrize("kind", SEEDS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.data())
def test_damage_of_any_kind_is_refused_as_ours(reader: Reader, kind: str, data: st.DataObject) -> None:
    reader.read(kind, damaged(data.draw(st.sampled_from(SEEDS[kind])), data.draw(st.lists(CUT, max_size=4))))


@pytest.mark.parametrize("kind", SEEDS)
def test_anything_at_all_is_refused_as_ours(reader: Reader, kind: str) -> None:
    chance = random.Random(kind)
    for size in (0, 1, 100, 5_000, 1 << 20):
        reader.read(kind, chance.randbytes(size))
        reader.read(kind, b"\0" * size)
        reader.read(kind, b"[" * size)
        reader.read(kind, b"\xff" * size)
        reader.read(kind, SEEDS[kind][0] + b"\0" * size)


@pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"NaN", b"Infinity", b"[" * 100_000])
@pytest.mark.parametrize("kind", ["manifest", "receipt", "decided", "settled", "node", "node kept", "node schema"])
def test_numbers_that_no_integer_is(reader: Reader, kind: str, number: bytes) -> None:
    for part in re.finditer(rb":\s?\d+", SEEDS[kind][0]):
        reader.read(kind, SEEDS[kind][0][: part.start()] + b": " + number + SEEDS[kind][0][part.end() :])


@pytest.mark.parametrize("deep", [b"a = " + b"[" * 20_000, b"a = " + b"{b = " * 20_000, b"[" + b"a." * 20_000 + b"a]"])
def test_settings_nested_too_deep(reader: Reader, deep: bytes) -> None:
    reader.read("settings", deep)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_an_hour_of_mutations_guided_by_what_they_reach() -> None:
    until = time.monotonic() + SOAK_SECONDS
    seed = random.randrange(1 << 32)
    chance, child, judge = random.Random(seed), Reader(cover=True), Reader()
    corpus = {kind: list(seeds) for kind, seeds in SEEDS.items()}
    failures: dict[str, str] = {}
    tried = 0
    while time.monotonic() < until:
        kind = chance.choice(list(corpus))
        data = chance.choice(corpus[kind])
        for _ in range(chance.randint(1, 5)):
            data = _mutated(chance, data, corpus[kind])
        tried += 1
        try:
            judge.read(kind, data)
            if child.read(kind, data):
                corpus[kind].append(data)
        except (AssertionError, pytest.fail.Exception) as failed:
            failures.setdefault(str(failed)[-300:], f"seed {seed}, {kind}, {data[:2000].hex()}")
    child.close()
    judge.close()
    kept = {kind: len(found) for kind, found in corpus.items()}
    assert not failures, f"{tried} tried, kept {kept}: {json.dumps(failures, indent=1)}"
    print(f"{tried} tried, kept {kept}")


def _mutated(chance: random.Random, data: bytes, others: list[bytes]) -> bytes:
    at = chance.randint(0, len(data))
    match chance.randrange(5):
        case 0:  # a bit
            return data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :] if at < len(data) else data
        case 1:
            return data[:at] + chance.choice(INTERESTING) + data[at + chance.randint(0, 9) :]
        case 2:
            return data[:at] + data[at + chance.randint(1, 64) :]
        case 3:  # a piece of another
            other = chance.choice(others)
            start = chance.randint(0, len(other))
            return data[:at] + other[start : start + chance.randint(1, 200)] + data[at:]
        case _:
            return data[:at] + data[at : at + 40] * chance.randint(2, 50) + data[at:]
