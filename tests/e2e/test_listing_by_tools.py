"""Listings of a far end with tools of its own kind: what is not listed to its end is no listing, nothing is misread."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.store_ends import QUICK, TIERS, address
from tests.services.sshd import FarEnd, Sshd
from tests.services.wire import Wire
from tidemark.errors import UnreachableError
from tidemark.stores.open import open_store
from tidemark.stores.open_sftp import open_sftp
from tidemark.stores.protocol import Tier

pytestmark = [pytest.mark.real("sshd"), pytest.mark.usefixtures("short_pauses")]
FILES = 3000


@pytest.mark.full_after(1)
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("cut", [20_000, 45_000])
def test_a_listing_whose_line_is_cut_is_no_shorter_listing(sshd: Sshd, tier: Tier, cut: int) -> None:
    """Else what it did not come to would have vanished at the site."""
    folder = sshd.new_folder("far")
    for _ in range(FILES):
        (folder / f"{os.urandom(45).hex()}.tsfile").touch()
    with Wire(sshd.port) as wire:
        store = open_sftp(address(sshd, folder, wire.port), tier, QUICK)
        store.list_folder("none")  # what it needs for it is open
        wire.cut_after(cut)
        with pytest.raises(UnreachableError) as caught:
            store.list_files([""])
        assert caught.value.hint and wire.cuts == 1
        assert len(store.list_files([""]).entries) == FILES
        store.close()


def replaced(server: Sshd, tool: str, script: str) -> None:
    """Another tool of that name at the far end; `REAL` in the script is the one it has."""
    place = server.folder / "tools" / tool
    real = place.readlink()
    place.unlink()
    place.write_text(f"#!/bin/sh\n{script.replace('REAL', str(real))}\n")
    place.chmod(0o755)


def test_a_tool_that_is_killed_while_it_lists_gives_no_listing(start_sshd: Callable[..., Sshd]) -> None:
    server = start_sshd(FarEnd.POSIX)
    (server.files / "a").touch()
    store = open_sftp(address(server), Tier.POSIX, QUICK)
    replaced(server, "find", 'REAL "$@"; kill -9 $$')
    with pytest.raises(UnreachableError, match="broke off"):
        store.list_files([""])
    store.close()


@pytest.mark.parametrize("printf", [True, False])
def test_what_a_tool_could_not_look_at_is_told(start_sshd: Callable[..., Sshd], printf: bool) -> None:
    """A disk that fails below one folder: what lay there has not vanished, though no tool names it."""
    server = start_sshd(FarEnd.POSIX)
    place = f"{server.files}/sick"
    without = "" if printf else 'case "$*" in *-printf*) exit 1;; esac; '
    replaced(server, "find", f'{without}echo "find: \'{place}\': Input/output error" >&2; REAL "$@"; exit 1')
    (server.files / "sound").touch()
    store = open_store(address(server))
    listing = store.list_files([""])
    assert [entry.path for entry in listing.entries] == ["sound"]
    assert list(listing.odd) == [("sick", "cannot be listed: Input/output error")]
    store.close()


def test_a_line_break_in_a_name_makes_no_other_name_where_find_tells_lines(
    start_sshd: Callable[..., Sshd], tmp_path: Path
) -> None:
    """As busybox's does, which has no -printf."""
    server = start_sshd(FarEnd.POSIX)
    replaced(server, "find", 'case "$*" in *-printf*) exit 1;; esac; exec REAL "$@"')
    root = server.files
    for name in (
        "plain",
        "two\nlines",
        f"forged\nf9 9 9 {root}/of nobody",
        "ends\n",
        "broken\nfolder/within",
        "folder/plain",
    ):
        (root / name).parent.mkdir(exist_ok=True, parents=True)
        (root / name).write_text("x")
    (root / "link\nplain").symlink_to(tmp_path)
    store = open_store(address(server))
    assert store.properties.tier is Tier.POSIX
    listing = store.list_files([""])
    assert [entry.path for entry in listing.entries] == ["folder/plain", "plain"]
    odd = dict(listing.odd)
    assert {name.partition("\n")[0] for name in odd} == {"two", "forged", "ends", "broken", "link"} and len(odd) == 5
    assert all("line break" in why for why in odd.values())
    store.close()
