"""Addresses of stores: what is wrong with one is said without its password."""

from __future__ import annotations

import pytest

from tidemark.errors import PermanentError, UsageError
from tidemark.stores.open import open_store
from tidemark.stores.protocol import StoreAddress, without_password
from tidemark.stores.ssh.login import Login, _load_keys


@pytest.mark.parametrize(
    "url",
    [
        "ftp://me:hunter2@host/x",
        "sftp://me:hunter2@/x",
        "sftp://me:hunter2@host:port/x",
        "sftp://me:hunter2@host/a/../b",
        "sftp://me:hun/hunter2@host/x",
        "sftp://me:a@hunter2@host:99999/x",
    ],
)
def test_an_error_repeats_no_password(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_store(StoreAddress(url))
    shown = f"{caught.value} {caught.value.as_json()} {caught.value.__cause__!r}"
    assert "hun" not in shown and "me:***@" in shown


@pytest.mark.parametrize("url", ["sftp://me@host:22/x", "sftp://host/x:y", "file:///a:b@c", "nonsense"])
def test_an_address_without_one_is_shown_as_it_is(url: str) -> None:
    assert without_password(url) == url


def test_a_folder_that_cannot_be_looked_at_is_told() -> None:
    with pytest.raises(PermanentError) as caught:
        open_store(StoreAddress(f"file:///{'long' * 100}"))
    assert "longlong" in caught.value.message and caught.value.hint


def test_keys_in_a_home_that_cannot_be_looked_at_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a service that runs as another user than its HOME belongs to."""
    monkeypatch.setenv("HOME", f"/{'long' * 100}")
    assert list(_load_keys(Login("host", 22, "me", "", ""))) == []
