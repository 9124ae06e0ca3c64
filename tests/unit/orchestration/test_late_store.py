"""A remote store costs a connection only when it is used."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.services.sshd import Sshd
from tidemark.errors import HostKeyError, UnreachableError, UsageError
from tidemark.orchestration.tasks import late_store
from tidemark.orchestration.tasks.late_store import LateStore, open_late
from tidemark.stores.local import LocalStore
from tidemark.stores.protocol import Store, StoreAddress
from tidemark.stores.retrying import RetryingStore, without_retries


def test_a_folder_here_is_opened_at_once(tmp_path: Path) -> None:
    assert isinstance(open_late(StoreAddress(f"file://{tmp_path}")), LocalStore)
    with pytest.raises(UsageError, match="ftp://"):
        open_late(StoreAddress("ftp://x/y"))


def test_unused_it_connects_to_nobody() -> None:
    address = StoreAddress("sftp://edge@127.0.0.1:1/nowhere", host_key="SHA256:x")
    store = open_late(address)
    assert isinstance(store, LateStore)
    assert store.url == address.url
    store.close()


def test_used_it_is_the_store(sshd: Sshd) -> None:
    address = StoreAddress(sshd.url(sshd.new_folder()), host_key=sshd.host_key, key=str(sshd.key))
    store = open_late(address)
    store.publish("greeting", b"hello")
    assert store.read("greeting") == b"hello"
    assert not isinstance(without_retries(store), RetryingStore), (
        "a transfer takes the store beneath, and wraps its own tries"
    )
    assert without_retries(store) is without_retries(store)
    store.close()


def test_what_opening_raises_comes_with_the_first_use(sshd: Sshd) -> None:
    store = open_late(StoreAddress(sshd.url(sshd.new_folder()), host_key="SHA256:" + "A" * 43, key=str(sshd.key)))
    for _ in range(2):
        with pytest.raises(HostKeyError):
            store.list_folder("")
    store.close()


def test_one_level_retries_an_end_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def refuse(address: StoreAddress) -> Store:
        opened.append(address.url)
        raise UnreachableError("nobody there")

    monkeypatch.setattr(late_store, "open_store", refuse)
    with pytest.raises(UnreachableError):
        open_late(StoreAddress("sftp://edge@127.0.0.1:1/nowhere")).stat("x")
    assert len(opened) == 1, "opening tries again by itself"
