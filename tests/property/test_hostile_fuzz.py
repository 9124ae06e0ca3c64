"""Whatever an edge writes: no exception but ours, no more than 512 MB, no more than 10 s a file.

By default Hypothesis damages sound files of every kind. `--soak`: an hour of mutations by atheris, guided by the branches of
Tidemark that they reach (`tests/fuzz_reader.py`); FUZZ_SECONDS for another time.
"""

from __future__ import annotations

import json
import os
import random
import re
import select
import subprocess
import sys
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
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'plugins'}"}
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
    "two tsfiles": [SMALL[""]],
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

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        command = [sys.executable, "-m", "tests.hostile_reader"]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT, cwd=ROOT)

    def read(self, kind: str, data: bytes) -> None:
        """Fails where anything but a reading or a refusal came."""
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write(json.dumps({"kind": kind, "size": len(data)}).encode() + b"\n" + data)
        self._child.stdin.flush()
        ready, _, _ = select.select([self._child.stdout], [], [], SECONDS)
        line = self._child.stdout.readline() if ready else b""
        if not line:
            self.close()
            self._start()
            pytest.fail(f"{kind}: it died" if ready else f"{kind}: not done after {SECONDS} s")
        answer = json.loads(line)
        assert not answer["error"], f"{kind}: {answer['error']}"

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


@pytest.mark.full_after(1)
@pytest.mark.parametrize("kind", SEEDS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.data())
def test_damage_of_any_kind_is_refused_as_ours(reader: Reader, kind: str, data: st.DataObject) -> None:
    reader.read(kind, damaged(data.draw(st.sampled_from(SEEDS[kind])), data.draw(st.lists(CUT, max_size=4))))


@pytest.mark.full_after(1)
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


@pytest.mark.full_after(1)
@pytest.mark.parametrize("deep", [b"a = " + b"[" * 20_000, b"a = " + b"{b = " * 20_000, b"[" + b"a." * 20_000 + b"a]"])
def test_settings_nested_too_deep(reader: Reader, deep: bytes) -> None:
    reader.read("settings", deep)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("kind", SEEDS)
def test_an_hour_of_mutations_guided_by_what_they_reach(kind: str, reader: Reader, tmp_path: Path) -> None:
    """What reached something new is read once more without instruments: within 512 MB and 10 s."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, data in enumerate((*SEEDS[kind], *INTERESTING)):
        (corpus / f"seed-{number}").write_bytes(data)
    seconds = max(1, int(SOAK_SECONDS / len(SEEDS)))
    command = [sys.executable, "-m", "tests.fuzz_reader", kind, str(corpus), str(seconds)]
    done = subprocess.run(
        command, cwd=ROOT, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True, errors="replace", check=False
    )
    kept = [path.read_bytes() for path in sorted(corpus.iterdir())]
    said = [line for line in done.stderr.splitlines() if line.startswith(("Done ", "stat::"))]
    print(f"{kind}: {len(kept)} inputs kept; {'; '.join(said)}")
    assert done.returncode == 0, f"{[path.name for path in tmp_path.iterdir()]}\n{done.stderr[-3000:]}"
    assert any(line.startswith("Done ") for line in said), done.stderr[-3000:]
    for data in kept:
        reader.read(kind, data)
