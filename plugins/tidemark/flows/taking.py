"""Whose are the bytes of a landing? Those that a run of this ledger carried here are ours; all others are copied first.

Who may write to a landing may keep a hard link or an open file of what is in it, and write to that when the landing is long
loaded; neither mode nor owner stops an open file. So only inodes that were never anybody else's are checked, placed and
read: a landing that somebody else carried is copied to `taken/<site id>/<landing>/`, where no edge writes, and all that
follows works on the copy. Source: docs/decisions/0021.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tidemark.app import App
from tidemark.errors import CorruptionError
from tidemark.flows.admitting import CheckedFile
from tidemark.formats.landing import LandedFile
from tidemark.formats.layout import TAKEN, landed_path, landing_folder, taken_folder
from tidemark.ledger.sender import holds as hold_rows
from tidemark.load.admit import Origin
from tidemark.load.check import landed_file, parts
from tidemark.load.manifests import Paper
from tidemark.stores.local import copy_files
from tidemark.stores.os_errors import Where, translated
from tidemark.stores.protocol import Store


def is_ours(app: App, origin: Origin, paper: Paper, root: Path) -> bool:
    """Whether a run of this ledger wrote the landing here, and nobody else may write to its folder."""
    with app.ledger.read() as connection:
        if not hold_rows.carried(connection, origin.receiver, origin.site_id, origin.landing, paper.sha256):
            return False
    site, _, _ = origin.folder.rpartition("/")
    return all(_ours_alone(root / folder) for folder in ("landing", site, origin.folder))


def _ours_alone(folder: Path) -> bool:
    info = folder.lstat()
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid() and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def take_in(store: Store, root: Path, origin: Origin, files: Iterable[LandedFile], logs: Iterable[str] = ()) -> Origin:
    """Copy these files with their companions, and pieces of schema `logs`, from where they lie to a folder of our own.

    Returns the origin of the copies. What is no regular file is not copied. Raises DiskFullError, PermissionDeniedError.
    """
    folder = _folder(origin)
    store.remove_tree(folder)
    paths = [landed_path(path) for path in (*(part.path for file in files for part in parts(file)), *logs)]
    try:
        with translated(Where("", str(root)), folder):
            copy_files(root, ((f"{origin.folder}/{path}", f"{folder}/{path}") for path in paths))
    except BaseException:
        # CRASH WINDOW: half of it copied: the next load removes the folder before anything else.
        store.remove_tree(folder)
        raise
    return replace(origin, folder=folder)


def leave(store: Store, origin: Origin) -> None:
    """Remove the copies that nobody placed, where there are any."""
    if origin.folder == _folder(origin):
        store.remove_tree(origin.folder)


def sweep_taken(store: Store) -> None:
    """Remove what a load that died had copied."""
    store.remove_tree(TAKEN)


def called_as_landed(root: Path, checked: Sequence[CheckedFile]) -> list[CheckedFile]:
    """The same; what was no regular file where it landed is called that, where its copy is only missing."""
    return [
        _as_landed(root, one) if one.examined.trouble and one.origin.folder == _folder(one.origin) else one
        for one in checked
    ]


def _as_landed(root: Path, one: CheckedFile) -> CheckedFile:
    folder = landing_folder(one.origin.site_id, one.origin.landing)
    try:
        for part in parts(one.file):
            with suppress(FileNotFoundError):
                landed_file(root, folder, part).opened().close()
    except CorruptionError as odd:
        return replace(one, examined=replace(one.examined, trouble=odd.message))
    return one


def _folder(origin: Origin) -> str:
    return taken_folder(origin.site_id, origin.landing)
