"""Listing with the far end's `find`: the command for GNU's and for small ones (busybox), and what their output means."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from tidemark.stores.disk_rows import UNLISTED, show
from tidemark.stores.protocol import Entry

_BROKEN = "*\n*"  # a pattern of paths that a line cannot tell
_KINDS = {"l": "is a symlink"}
_TROUBLE = re.compile(rb"(?:find|stat): (?:can(?:not|'t) stat\w* )?(?:'(?P<quoted>.*)'|(?P<bare>/.*)): (?P<why>[^:]+)")
_GONE = b": No such file or directory"  # while it looked


def find_command(places: Sequence[str], printf: bool) -> str:
    """NUL-separated records with GNU's -printf, lines without: `f<size> <mtime> <inode> <place>`, `d<place>`, `o<kind> …`"""
    where = " ".join(shlex.quote(place) for place in places)
    if printf:
        return f"LC_ALL=C find {where} -type f -printf 'f%s %T@ %i %p\\0' -o -type d -printf 'd%p\\0' -o -printf 'o%y %p\\0'"
    whole = f"! -path {shlex.quote(_BROKEN)}"
    return (
        f"export LC_ALL=C; find {where} {whole} -type f -exec stat -c 'f%s %Y %i %n' {{}} +; [ $? -lt 126 ] || exit; "
        f"find {where} {whole} -type l -exec printf 'ol %s\\n' {{}} \\; "
        f"-o {whole} ! -type f ! -type d -exec printf 'oo %s\\n' {{}} \\;"
    )


def broken_names_command(places: Sequence[str]) -> str:
    """What `find_command` without -printf leaves out: NUL-separated places whose names have a line break."""
    return f"find {' '.join(map(shlex.quote, places))} -name {shlex.quote(_BROKEN)} -prune -print0"


class FindOutput:
    """Turns records into entries and odd paths. `relative`: from a place at the server to the store's path."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.encode()  # the root with its slash, taken off; absolute folders keep theirs
        self.entries: list[Entry] = []
        self.odd: dict[str, str] = {}

    def take(self, data: bytes, separator: bytes) -> None:
        for record in data.split(separator):
            kind = record[:1]
            if kind == b"f":
                self._file(record[1:])
            elif kind == b"d":
                self._path(record[1:])
            elif kind == b"o":
                path = self._path(record[3:])
                if path is not None:
                    self.odd[path] = _KINDS.get(record[1:2].decode(), "is neither file nor folder")

    def broken(self, data: bytes) -> None:
        for place in data.split(b"\0")[:-1]:
            path = self._path(place)
            if path is not None:
                self.odd[path] = "has a line break in its name, and the find there has no -printf to tell of it"

    def refused(self, errors: bytes, folders: Sequence[str]) -> None:
        """What the tools could not look at is no listed folder: what is not seen there has not vanished. Words that name no
        path may mean any of `folders`."""
        for line in errors.splitlines():
            if not line.startswith((b"find: ", b"stat: ")) or b": warning: " in line.lower() or line.endswith(_GONE):
                continue
            match = _TROUBLE.fullmatch(line)
            if match is None:
                self.odd.update(dict.fromkeys(folders, f"{UNLISTED}{line.decode(errors='replace')}"))
                continue
            path = self._path(match["quoted"] or match["bare"])
            if path is not None:
                self.odd[path] = f"{UNLISTED}{match['why'].decode(errors='replace')}"

    def _file(self, record: bytes) -> None:
        try:
            size, mtime, inode, place = record.split(b" ", 3)
            facts = int(size), int(mtime.partition(b".")[0]), int(inode)
        except ValueError:
            self.odd[show(record)] = "its name cannot be read from the listing"
            return
        path = self._path(place)
        if path is not None:
            self.entries.append(Entry(path, *facts))

    def _path(self, place: bytes) -> str | None:
        if self._prefix and place.startswith(self._prefix):
            place = place[len(self._prefix) :]
        try:
            return place.decode()
        except UnicodeDecodeError:
            self.odd[_first_unreadable(place)] = "name is not UTF-8"
            return None


def _first_unreadable(place: bytes) -> str:
    """Up to the first component that is not UTF-8: what lies below it is one trouble, not many."""
    kept: list[str] = []
    for part in place.split(b"/"):
        kept.append(show(part))
        try:
            part.decode()
        except UnicodeDecodeError:
            break
    return "/".join(kept)
