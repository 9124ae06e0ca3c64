"""A store on this machine's disk: it conforms, and says what the disk says."""

from __future__ import annotations

import os
import resource
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.stores.store_conformance import DiskConformance, FolderPlace, Place
from tidemark.errors import PermanentError, PermissionDeniedError
from tidemark.stores.agent import durable
from tidemark.stores.local import LocalStore
from tidemark.stores.open import open_store
from tidemark.stores.os_errors import Where, os_error
from tidemark.stores.protocol import Store, StoreAddress, Tier


class TestLocalStore(DiskConformance):
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        folder = tmp_path / "store"
        folder.mkdir()
        return folder

    @pytest.fixture
    def store(self, root: Path) -> Store:
        return open_store(StoreAddress(f"file://{root}"))

    @pytest.fixture
    def place(self, root: Path) -> Place:
        return FolderPlace(root)

    @pytest.fixture
    def elsewhere(self, tmp_path: Path) -> tuple[str, Path]:
        folder = tmp_path / "disk2"
        folder.mkdir()
        return str(folder), folder


def test_a_root_that_does_not_exist_is_made_by_the_first_write(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "not" / "there"))
    assert store.list_files([""]).missing == ("",)
    assert store.free_bytes() is not None
    store.publish("a/b", b"x")
    assert store.read("a/b") == b"x"


def test_a_root_that_is_a_symlink_is_the_operators_choice(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "real")
    store = LocalStore(str(tmp_path / "root"))
    store.publish("a", b"x")
    assert [entry.path for entry in store.list_files([""]).entries] == ["a"]


@pytest.fixture
def small_files_only() -> Iterator[None]:
    """Every write beyond 100 kB of a file fails, in the middle of it, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, ignored)


def test_a_write_the_disk_does_not_take_is_named_and_leaves_no_final_name(tmp_path: Path, small_files_only: None) -> None:
    store = LocalStore(str(tmp_path))
    for act in (
        lambda: store.publish("manifest.json", bytes(200_000)),
        lambda: store.write_part("f.part", 0, [bytes(200_000)]),
        lambda: store.write_parts([("g.part", bytes(200_000))]),
    ):
        with pytest.raises(PermanentError, match=f"{tmp_path}.* larger than a file may be"):
            act()
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".part"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_no_permission_is_named_with_its_path(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "f").write_bytes(b"x")
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents:
        if parent == Path(tempfile.gettempdir()):
            break
        parent.chmod(0o755)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        report = []
        store = LocalStore(str(tmp_path))
        for act in (
            lambda: store.read("closed/f"),
            lambda: store.publish("x", b""),
            lambda: store.stat("closed/f"),
            lambda: store.stat_many(["closed/below/f"]),  # not None: nobody knows that it has gone
        ):
            try:
                act()
                report.append("no error")
            except PermissionDeniedError as error:
                report.append(f"{error.subject}: {error.hint}")
        report.append(repr(store.list_files(["closed"]).odd))
        os.write(writer, "\n".join(report).encode())
        os._exit(0)
    os.waitpid(child, 0)
    said = os.read(reader, 10_000).decode().split("\n")
    assert [line.split(":")[0] for line in said[:4]] == ["closed/f", "x", "closed/f", "closed/below/f"]
    assert all("user id 65534" in line for line in said[:4])
    assert "Permission denied" in said[4]


@pytest.mark.parametrize("number", ["EXDEV", "EMLINK", "EIO", "EISDIR"])
def test_other_troubles_are_permanent_and_keep_the_systems_words(number: str) -> None:
    import errno

    code = getattr(errno, number)
    error = os_error(OSError(code, os.strerror(code), b"/srv/x"), Where("edge@host", "/srv"), "x")
    assert isinstance(error, PermanentError)
    assert error.message.startswith("edge@host:/srv/x") and os.strerror(code) in error.message
    assert error.hint


def test_a_leftover_of_a_killed_publish_does_not_disturb_the_next(tmp_path: Path) -> None:
    (tmp_path / "m.json.00000000.tmp").write_bytes(b"torn")
    durable.publish(os.fsencode(tmp_path / "m.json"), (b"whole",))
    assert (tmp_path / "m.json").read_bytes() == b"whole"


def test_large_bundles_are_synced_once_and_equal_small_ones(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    for count in (durable.SYNC_ONCE - 1, durable.SYNC_ONCE + 5):
        files = [(f"{count}/{number}", bytes([number])) for number in range(count)]
        store.write_parts([(path + ".part", data) for path, data in files])
        store.seal_parts([(path + ".part", path) for path, _ in files])
        assert [(e.path, store.read(e.path)) for e in store.list_files([str(count)]).entries] == sorted(files)


def test_its_properties(tmp_path: Path) -> None:
    properties = LocalStore(str(tmp_path)).properties
    assert (properties.tier, properties.hard_links, properties.inodes) == (Tier.LOCAL, True, True)
