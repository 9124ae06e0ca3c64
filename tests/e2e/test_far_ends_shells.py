"""Login shells of other kinds, which read the command that sshd hands them before our `sh` does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.engine_world import World
from tests.e2e.store_ends import QUICK, address
from tests.services.sshd import FarEnd, Sshd
from tidemark.errors import UnreachableError
from tidemark.stores.open_sftp import open_sftp
from tidemark.stores.protocol import Tier

pytestmark = pytest.mark.real("sshd")
ODD = "why!not, {a,b} $HOME"
C_SHELL = """#!/bin/sh
case "$SSH_ORIGINAL_COMMAND" in
    *"
"*) echo "Unmatched '''." >&2; exit 1;;
    *![!\\ ]*) echo "Event not found." >&2; exit 1;;
esac
exec {shell}
"""


@pytest.fixture
def behind_csh(start_sshd: Callable[..., Sshd]) -> Sshd:
    """As tcsh: no line may end inside quotes, and `!` asks for an old command there, too. With busybox's `find`."""
    server = start_sshd(FarEnd.POSIX)
    login = server.folder / "c_shell"
    login.write_text(C_SHELL.format(shell=server.folder / "posix_shell"))
    login.chmod(0o755)
    find = server.folder / "tools" / "find"
    real = find.readlink()
    find.unlink()
    find.write_text(f'#!/bin/sh\ncase "$*" in *-printf*) exit 1;; esac\nexec {real} "$@"\n')
    find.chmod(0o755)
    config = server.folder / "sshd_config"
    server.stop()
    config.write_text(config.read_text().replace(str(server.folder / "posix_shell"), str(login)))
    server.restart()
    return server


def test_a_c_shell_sees_no_line_break_and_no_exclamation_mark_of_ours(behind_csh: Sshd) -> None:
    root = behind_csh.new_folder(ODD)
    store = open_sftp(address(behind_csh, root), Tier.POSIX, QUICK)
    store.publish(f"{ODD}/f.tsfile", b"content")
    assert [(entry.path, entry.size) for entry in store.list_files([""]).entries] == [(f"{ODD}/f.tsfile", 7)]
    store.remove_tree(ODD)
    assert not list(root.iterdir())
    store.close()


def test_a_tool_that_is_taken_away_gives_no_empty_listing(start_sshd: Callable[..., Sshd]) -> None:
    server = start_sshd(FarEnd.POSIX)
    (server.files / "a").touch()
    store = open_sftp(address(server), Tier.POSIX, QUICK)
    (server.folder / "tools" / "find").unlink()
    with pytest.raises(UnreachableError, match="not found"):
        store.list_files([""])
    store.close()


@pytest.mark.full_after(1)
@pytest.mark.parametrize("way", ["pull", "push"])
def test_files_go_both_ways_behind_a_c_shell(behind_csh: Sshd, tmp_path: Path, way: str) -> None:
    world = World.of(behind_csh, tmp_path, way, Tier.POSIX)
    items = [world.put(f"{ODD}/{number}.tsfile", size) for number, size in enumerate([0, 20_000, 33 << 20])]
    assert world.arrived(world.move(items))


@pytest.mark.full
def test_a_folder_a_file_is_not_too_much_for_one_command(sshd_posix: Sshd, tmp_path: Path) -> None:
    """As time partitions are; Linux lets no argument have more than 128 KB."""
    world = World.of(sshd_posix, tmp_path, "push", Tier.POSIX)
    items = [world.put(f"{'long' * 50}/{number:0200}/f.tsfile", 10) for number in range(400)]
    assert world.arrived(world.move(items))
    store = open_sftp(address(sshd_posix, world.centre), Tier.POSIX, QUICK)
    folders = [item.target_path.rpartition("/")[0] for item in items]
    assert len(store.list_files(folders).entries) == len(items)
    store.close()
