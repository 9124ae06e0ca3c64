"""Every truncation, flipped bit and lost file of a change store is found by name, or does no harm."""

from __future__ import annotations

import itertools
import shutil
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.change_worlds import HOUR, SMALL, START, gtids_at, make_transaction, without_records
from tidemark.changes.store import read
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.model import Transaction
from tidemark.changes.store.read import Reader
from tidemark.changes.store.verify import verify_store
from tidemark.changes.store.write import Writer
from tidemark.errors import CorruptionError, UnsupportedError

COUNT = 16
BLOCK_FIELDS = [
    ("magic", 4),
    ("version", 2),
    ("flags", 2),
    ("head length", 4),
    ("body length", 4),
    ("position", 8),
    ("fence", 8),
    ("transactions", 4),
    ("rows", 8),
    ("before", 82),
    ("after", 82),
    ("checksum of the head", 4),
    ("checksum of the body", 4),
    ("checksum of the header", 4),
]
INDEX_FIELDS = [("before", 82), ("position", 8), ("fence", 8), ("checksum", 4)]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Transaction]]:
    """A store of two holders and two hours, with a transaction in parts and two groups in the tail."""
    root = tmp_path_factory.mktemp("sound") / "store"
    source = [make_transaction(number, START + HOUR * (number // 6)) for number in range(1, COUNT + 1)]
    many = [record for number in range(1, 22) for record in make_transaction(number).records]
    source[2] = make_transaction(3, START, many)
    for fence, (first, last) in enumerate([(1, 7), (8, COUNT)], 1):
        writer = Writer(Disk(root), fence, SMALL)
        for number in range(first, last + 1):
            transaction = source[number - 1]
            writer.append_large(without_records(transaction), transaction.records, gtids_at(number))
            if number >= COUNT - 1 or number == last:
                writer.sync()
    return root, source


def files_of(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def check_damaged(root: Path, source: list[Transaction], name: str) -> None:
    """What is read is what was written, and what is not is refused by the file's name."""
    try:
        found = [transaction for _, transaction in Reader(Disk(root)).read_whole()]
    except CorruptionError as refused:
        # what the last bucket or the tail lost is told by its numbers, and by the files before and after it
        is_end = name.startswith("tail/") or name == max(other for other in files_of(root) if other.endswith(".data"))
        said = f"{refused.message} {refused.subject}"
        assert name in said or (is_end and ("are missing between" in said or "tail" in said)), said
        return
    if name.startswith("tail/"):  # as if its last groups had never been synced: a capture fetches them again
        assert found == source[: len(found)]
        assert len(found) >= int(name.split("-")[1].removesuffix(".tail")) - 1
        copy = shutil.copytree(root, root.parent / "next", dirs_exist_ok=True)
        assert Writer(Disk(copy), 9, SMALL).state.seq == len(found)
        shutil.rmtree(copy)
        return
    assert found == source
    reader = Reader(Disk(root))
    for number in (1, 3, 4, 9, COUNT):
        for target in (read.at_seq(number), read.at_gtid_offset(number)):
            place = reader.find(target)
            assert place is not None
            assert place.seq == number


@pytest.fixture
def damaged(sound: tuple[Path, list[Transaction]], tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "store"
    shutil.copytree(sound[0], root)
    yield root


def flip(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def list_fields(name: str, data: bytes) -> Iterator[tuple[int, int, str]]:
    """(start, length, kind) of all that a file is made of: what docs/formats/change-store.md has a line for."""
    at = 0
    while name.startswith(("data/", "tail/", "index")) and at < len(data):
        begin = at
        for kind, length in INDEX_FIELDS if name.endswith((".l1", ".l2")) else BLOCK_FIELDS:
            yield at, length, kind
            at += length
        if name.endswith((".data", ".tail")):
            head, body = struct.unpack_from("<II", data, begin + 8)
            yield at, head, "head"
            at, end = at + head, at + head + body
            for section in itertools.chain(["transactions", "records"], itertools.repeat("rows")):
                if at == end:
                    break
                (length,) = struct.unpack_from("<I", data, at)
                yield at, 4, f"length of {section}"
                yield at + 4, length, f"section of {section}"
                at += 4 + length
    for start in range(at, len(data), 9):
        yield start, min(9, len(data) - start), "text"


def damage_places(name: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    """Cut before and flip a bit in the middle of the first, the second and the last field of each kind. The second block
    begins at a seam."""
    kinds: dict[str, list[tuple[int, int]]] = {}
    for start, length, kind in list_fields(name, data):
        kinds.setdefault(kind, []).append((start, length))
    for kind, fields in kinds.items():
        for start, length in fields if kind == "text" else dict.fromkeys([*fields[:2], fields[-1]]):
            yield f"cut before {kind}", data[:start]
            yield f"bit of {kind}", flip(data, (start + length // 2) * 8 + start % 8)


def damage_steps(data: bytes, step: int) -> Iterator[tuple[str, bytes]]:
    for length in range(0, len(data), step):
        yield f"cut at {length}", data[:length]
    for bit in range(step % 8, len(data) * 8, step * 8 + 1):
        yield f"bit {bit}", flip(data, bit)


def check_all(root: Path, source: list[Transaction], name: str, damages: Iterable[tuple[str, bytes]]) -> None:
    """Damage one file in each way in turn, and make it whole again."""
    whole = (root / name).read_bytes()
    for what, data in damages:
        (root / name).write_bytes(data)
        try:
            check_damaged(root, source, name)
        except AssertionError as failed:
            failed.add_note(f"{name}: {what}")
            raise
    (root / name).write_bytes(whole)


@pytest.mark.parametrize("share", [7, pytest.param(1, marks=pytest.mark.full)])
def test_damage_of_every_kind_of_place(damaged: Path, sound: tuple[Path, list[Transaction]], share: int) -> None:
    kinds: dict[str, list[tuple[str, bytes]]] = {}
    for name in files_of(damaged):
        for what, data in damage_places(name, (damaged / name).read_bytes()):
            kinds.setdefault(what, []).append((name, data))
    assert len(kinds) > 40
    for number, (what, places) in enumerate(kinds.items()):
        for name, data in places[number % share :: share] or places[:1]:
            check_all(damaged, sound[1], name, [(what, data)])


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_damage_of_every_file_at_every_place(damaged: Path, sound: tuple[Path, list[Transaction]]) -> None:
    for name in files_of(damaged):
        check_all(damaged, sound[1], name, damage_steps((damaged / name).read_bytes(), 13))


def test_a_lost_file_is_missed_by_name(sound: tuple[Path, list[Transaction]], tmp_path: Path) -> None:
    names = [name for name in files_of(sound[0]) if not name.endswith((".l2", ".l1"))]
    assert len(names) >= 6
    for number, name in enumerate(names):
        root = tmp_path / str(number)
        shutil.copytree(sound[0], root)
        (root / name).unlink()
        said = name.partition("-")[0] if name.startswith("data/") else name.partition("/")[0]
        with pytest.raises(CorruptionError, match=f"{said}|transactions 8 to 11 are missing"):
            list(Reader(Disk(root)).read())


def test_lost_indexes_are_not_missed(damaged: Path, sound: tuple[Path, list[Transaction]]) -> None:
    for name in files_of(damaged):
        if name.endswith((".l2", ".l1")):
            (damaged / name).unlink()
            check_damaged(damaged, sound[1], name)


def test_verify_names_every_damaged_bucket_and_index(damaged: Path) -> None:
    names = [name for name in files_of(damaged) if name.startswith("data/")]
    assert verify_store(Disk(damaged)).problems == ()
    buckets = [name for name in names if name.endswith(".data")]
    for name in buckets[:2]:
        (damaged / name).write_bytes(flip((damaged / name).read_bytes(), 8 * 300))
    index = buckets[2].replace(".data", ".l2")
    (damaged / index).write_bytes(flip((damaged / index).read_bytes(), 9))
    found = verify_store(Disk(damaged))
    for name in buckets[:2]:
        assert any(name in problem for problem in found.problems), found
    assert found.indexes == (index,)


def test_a_newer_record_is_refused(damaged: Path) -> None:
    import json
    import zlib

    (record,) = damaged.glob("holders/*.json")
    body = json.dumps(json.loads(record.read_bytes().split(b"\n")[0]) | {"format": 2}).encode()
    record.write_bytes(body + b"\n%08x\n" % zlib.crc32(body))
    with pytest.raises(UnsupportedError, match="newer format"):
        Reader(Disk(damaged))


def test_a_store_without_a_record_is_not_taken_for_an_empty_one(damaged: Path) -> None:
    shutil.rmtree(damaged / "holders")
    with pytest.raises(CorruptionError, match="no record"):
        Reader(Disk(damaged))
    with pytest.raises(CorruptionError, match="no record"):
        Writer(Disk(damaged), 9)
