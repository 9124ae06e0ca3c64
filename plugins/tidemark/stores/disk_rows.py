"""Rows of a listing: which folders to list, which names can be said, how rows travel.

At both ends (see `far_program`): Python 3.6.
"""

from __future__ import annotations

import array
import os
import sys
from collections.abc import Sequence

UNLISTED = "cannot be listed: "
"""How the reason begins where nobody knows what is there: neither that it is, nor that it has gone."""
BAD_NAME = "name is not UTF-8"  # of a file
BAD_FOLDER = "is a folder whose name is not UTF-8"
TOO_MANY = "it holds too many files for the memory that may be used (far_memory)"
DEPTH = 64  # folders below an asked one; IoTDB keeps its files four deep
PATH_BYTES = 2048  # of a folder: behind the root of a store, before a file's name, a system takes 4096 of the whole
_UTF8 = sys.getfilesystemencoding().lower().replace("-", "") == "utf8"


def outermost(folders: Sequence[str]) -> list[str]:
    """`folders` without those that lie below another of them."""
    kept: list[str] = []
    above: set[str] = set()  # the kept ones without a slash at the end
    for folder in sorted(set(folders)):
        if kept[:1] == [""] and not folder.startswith("/"):
            continue
        if not any(char == "/" and folder[:at] in above for at, char in enumerate(folder)):
            kept.append(folder)
            above.add(folder.rstrip("/"))
    return kept


def unreached(folder: str, depth: int) -> str:
    """Why a folder, `depth` below the asked one, is not looked into; else ""."""
    if depth > DEPTH:
        return f"lies more than {DEPTH} folders deep"
    if len(folder) > PATH_BYTES or len(folder.encode()) > PATH_BYTES:
        return f"its path is longer than {PATH_BYTES} bytes"
    return ""


def pack_rows(rows: list[tuple[str, int, int, int]]) -> bytes:
    """The names, each ended by a NUL, then all sizes, mtimes, inodes as little-endian int64."""
    names, sizes, mtimes, inodes = zip(*rows)  # noqa: B905 Python 3.6
    numbers = array.array("q", sizes + mtimes + inodes)
    if sys.byteorder == "big":
        numbers.byteswap()
    return "\0".join(names).encode() + b"\0" + numbers.tobytes()


def show(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def readable(
    rows: list[tuple[str, int, int, int]], prefix: str, odd: list[tuple[str, str]]
) -> list[tuple[str, int, int, int]]:
    """The rows whose names are UTF-8, whatever encoding the process believes in."""
    if _UTF8:
        try:
            "".join([row[0] for row in rows]).encode()
            return rows
        except UnicodeEncodeError:
            pass  # one by one: which is it?
    kept = []
    for row in rows:
        name = os.fsencode(row[0])
        try:
            kept.append((name.decode(), row[1], row[2], row[3]))
        except UnicodeDecodeError:
            odd.append((prefix + show(name), BAD_NAME))
    return kept
