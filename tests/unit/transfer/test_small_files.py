"""Small files many at a time: in C and in Python the same parts, digests, proofs and names, and the same troubles."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

from tidemark.stores.agent.durable import Proof
from tidemark.transfer.stream import publish as small_files
from tidemark.transfer.stream.publish import Arrived, SmallFiles

SIZES = (0, 1, 20_000, 70_000, 3)
IN_C = pytest.mark.real("C compiler")


@pytest.fixture(params=[pytest.param(False, id="Python"), pytest.param(True, id="C", marks=IN_C)])
def quick(request: pytest.FixtureRequest) -> bool:
    if request.param:
        request.getfixturevalue("built")
    return bool(request.param)


@pytest.fixture
def built() -> None:
    if small_files._load_library() is None:
        pytest.skip("no C compiler")


def frame(folder: Path) -> tuple[memoryview, list[Arrived]]:
    data = memoryview(bytearray(os.urandom(sum(SIZES))))
    files, at = [], 0
    for number, size in enumerate(SIZES):
        files.append(Arrived(bytes(folder / f"{number}.part"), at, size))
        at += size
    return data, files


def bytes_of(data: memoryview, file: Arrived) -> bytes:
    return bytes(data[file.at : file.at + file.size])


def proof(place: bytes) -> Proof:
    return Proof.from_stat(os.lstat(place))


def test_parts_are_whole_and_told_with_digest_and_proof(tmp_path: Path, quick: bool) -> None:
    data, files = frame(tmp_path)
    written = SmallFiles(quick).write_parts(data, files)
    for file, (digest, seen, error) in zip(files, written, strict=True):
        assert Path(os.fsdecode(file.part)).read_bytes() == bytes_of(data, file)
        assert (digest, seen, error) == (hashlib.sha256(bytes_of(data, file)).digest(), proof(file.part), None)


def test_what_keeps_one_from_being_written_is_told_and_the_others_are(tmp_path: Path, quick: bool) -> None:
    data, files = frame(tmp_path)
    Path(os.fsdecode(files[0].part)).write_bytes(b"of an earlier try, and longer")
    Path(os.fsdecode(files[1].part)).symlink_to(tmp_path / "elsewhere")
    files[2] = files[2]._replace(part=bytes(tmp_path / "none" / "2.part"))
    (tmp_path / "3.part").mkdir()
    troubles = [one.error and one.error.errno for one in SmallFiles(quick).write_parts(data, files)]
    assert troubles[0] is None and Path(os.fsdecode(files[0].part)).read_bytes() == bytes_of(data, files[0])
    assert troubles[1] is None and not (tmp_path / "elsewhere").exists()  # the link is replaced, not followed
    assert troubles[2] == errno.ENOENT and troubles[3] in (errno.EISDIR, errno.EPERM, errno.ESTALE)
    assert troubles[4] is None and Path(os.fsdecode(files[4].part)).read_bytes() == bytes_of(data, files[4])


@IN_C
@pytest.mark.usefixtures("built")
def test_names_are_given_in_order_up_to_the_first_that_is_not_what_was_proven(tmp_path: Path) -> None:
    small = SmallFiles(quick=True)
    data, files = frame(tmp_path)
    proofs = [one.proof for one in small.write_parts(data, files)]
    pairs = [(file.part, file.part.removesuffix(b".part")) for file in files]
    Path(os.fsdecode(files[2].part)).write_bytes(b"another one")
    assert small.name_parts(pairs, proofs) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2.part", "3.part", "4.part"]
    assert small.name_parts(pairs[3:], proofs[3:]) == 2
    assert small.name_parts(pairs[:1], proofs[:1]) == 0  # it has its name already
    assert small.name_parts(pairs[2:3], [None]) == 0 and small.name_parts([], []) == 0


def test_without_the_library_no_name_is_given_at_once(tmp_path: Path) -> None:
    data, files = frame(tmp_path)
    small = SmallFiles(quick=False)
    written = small.write_parts(data, files)
    assert small.name_parts([(files[0].part, b"x")], [written[0].proof]) == 0 and Path(os.fsdecode(files[0].part)).exists()


@IN_C
@pytest.mark.usefixtures("built")
def test_files_of_several_folders_in_turn(tmp_path: Path) -> None:
    small = SmallFiles(quick=True)
    data, files = frame(tmp_path)
    files = [file._replace(part=bytes(tmp_path / "ab"[number % 2] / f"{number}.part")) for number, file in enumerate(files)]
    for name in "ab":
        (tmp_path / name).mkdir()
    proofs = [one.proof for one in small.write_parts(data, files)]
    pairs = [(file.part, file.part.removesuffix(b".part")) for file in files]
    elsewhere = [(part, bytes(tmp_path / "b" / "0")) for part, _ in pairs[:1]]
    assert small.name_parts(elsewhere, proofs[:1]) == 0  # of one folder alone
    assert small.name_parts(pairs, proofs) == len(files)
    for (_, final), file in zip(pairs, files, strict=True):
        assert Path(os.fsdecode(final)).read_bytes() == bytes_of(data, file)


@IN_C
@pytest.mark.usefixtures("built")
def test_the_hash_is_the_one_of_the_library_that_python_uses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data, files = frame(tmp_path)
    monkeypatch.setattr(small_files, "_sha256_function", lambda: None)  # a Python that has no libcrypto of its own
    for file, one in zip(files, SmallFiles(quick=True).write_parts(data, files), strict=True):
        assert one.digest == hashlib.sha256(bytes_of(data, file)).digest()
