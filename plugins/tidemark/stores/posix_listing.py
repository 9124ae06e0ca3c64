"""Listing with the far end's `find`: the command for GNU's and for small ones (busybox), and what their output means."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from tidemark.stores.disk_rows import BAD_FOLDER, BAD_NAME, DEPTH, UNLISTED, show, unreached
from tidemark.stores.protocol import Entry

_BROKEN = "*\n*"  # a pattern of paths that a line cannot tell
_KINDS = {"l": "is a symlink"}
_TROUBLE = re.compile(rb"(?:find|stat): (?:can(?:not|'t) stat\w* )?(?:'(?P<quoted>.*)'|(?P<bare>/.*)): (?P<why>[^:]+)")
_GONE = b": No such file or directory"  # while it looked


def find_command(places: Sequence[str], printf: bool, maxdepth: bool = True) -> str:
    """NUL-separated records with GNU's -printf, lines without: `f<size> <mtime> <inode> <place>`, `d<place>`, `o<kind> …`

    `maxdepth`: whether find knows of it; then folders that are too deep come as `d<place>` in lines, too.
    """
    where = " ".join(shlex.quote(place) for place in places)
    depth = f"-maxdepth {DEPTH + 1}" if maxdepth else ""
    if printf:
        return (
            f"LC_ALL=C find {where} {depth} -type f -printf 'f%s %T@ %i %p\\0' -o -type d -printf 'd%p\\0' "
            "-o -printf 'o%y %p\\0'"
        )
    whole = f"{depth} ! -path {shlex.quote(_BROKEN)}"
    deep = f"find {where} -mindepth {DEPTH + 1} {whole} -type d -exec printf 'd%s\\n' {{}} \\;; " if maxdepth else ""
    return (
        f"export LC_ALL=C; find {where} {whole} -type f -exec stat -c 'f%s %Y %i %n' {{}} +; [ $? -lt 126 ] || exit; "
        f"{deep}find {where} {whole} -type l -exec printf 'ol %s\\n' {{}} \\; "
        f"-o ! -path {shlex.quote(_BROKEN)} ! -type f ! -type d -exec printf 'oo %s\\n' {{}} \\;"
    )


def broken_names_command(places: Sequence[str], maxdepth: bool = True) -> str:
    """What `find_command` without -printf leaves out: NUL-separated places whose names have a line break."""
    depth = f"-maxdepth {DEPTH + 1}" if maxdepth else ""
    return f"find {' '.join(map(shlex.quote, places))} {depth} -name {shlex.quote(_BROKEN)} -prune -print0"


class FindOutput:
    """Turns records into entries and odd paths: from places at the server to the store's. `folders`: the asked ones."""

    def __init__(self, prefix: str, folders: Sequence[str] = ("",)) -> None:
        self._prefix = prefix.encode()  # the root with its slash, taken off; absolute folders keep theirs
        self._asked = [folder.rstrip("/") + "/" if folder else "" for folder in folders]
        self._reached: dict[str, bool] = {}  # folders of files
        self.entries: list[Entry] = []
        self.odd: dict[str, str] = {}

    def take(self, data: bytes, separator: bytes) -> None:
        for record in data.split(separator):
            kind = record[:1]
            if kind == b"f":
                self._file(record[1:])
            elif kind == b"d":
                path = self._path(record[1:] + b"/")
                if path is not None:
                    self._reaches(path.rstrip("/"))
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
        if path is not None and self._reaches(path.rpartition("/")[0]):
            self.entries.append(Entry(path, *facts))

    def _reaches(self, folder: str) -> bool:
        """Whether a folder is looked into; the outermost that is not is told."""
        known = self._reached.get(folder)
        if known is None:
            asked = next((asked for asked in self._asked if folder.startswith(asked)), folder + "/")
            depth = folder.count("/") - asked.count("/") + 1
            if depth > DEPTH + 1:
                known = self._reaches("/".join(folder.split("/")[: asked.count("/") + DEPTH + 1]))
            elif why := unreached(folder, depth):
                known = False
                if self._reaches(folder.rpartition("/")[0]):
                    self.odd[folder] = UNLISTED + why
            else:
                known = True
            self._reached[folder] = known
        return known

    def _path(self, place: bytes) -> str | None:
        if self._prefix and place.startswith(self._prefix):
            place = place[len(self._prefix) :]
        try:
            return place.decode()
        except UnicodeDecodeError:
            path, is_folder = _first_unreadable(place)
            self.odd[path] = BAD_FOLDER if is_folder else BAD_NAME
            return None


def _first_unreadable(place: bytes) -> tuple[str, bool]:
    """Up to the first component that is not UTF-8, and whether that is a folder: all below it is one trouble."""
    kept: list[str] = []
    parts = place.split(b"/")
    for part in parts:
        kept.append(show(part))
        try:
            part.decode()
        except UnicodeDecodeError:
            break
    return "/".join(kept), len(kept) < len(parts)
