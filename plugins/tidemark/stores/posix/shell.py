"""A shell at the far end that is kept for many commands, and listings by its `find`.

A command costs one round trip and no session of its own. Its output lies between two marks. They are random, so no output
contains them by chance.

A listing is one `find`: with `-printf` for GNU's, with `stat` for busybox and the like. `FindOutput` parses the output.
What the tools could not list is reported as unlisted: files there must not be taken for vanished.
"""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Sequence

from tidemark.errors import UnreachableError
from tidemark.stores.agent.disk import BAD_FOLDER, BAD_NAME, DEPTH, UNLISTED, printable_name, why_unreached
from tidemark.stores.protocol import Entry
from tidemark.stores.ssh.connection import Pipe

_TAKE = 8 << 20  # bytes to receive from the channel at once: all there are


class FarShell:
    """A running `sh`. Commands have no standard input. What a login script prints first is skipped."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        token = secrets.token_hex(16)
        self._begin, self._end = f"<{token}", f"{token}>"

    def run_command(self, command: str) -> bytes:
        """Run a command and return its output. Raises UnreachableError where the shell ends before the command does."""
        script = f"printf '{self._begin}'; {{ {command}; }} </dev/null 2>/dev/null; printf '{self._end}'\n"
        self._pipe.write(script.encode())
        said = bytearray()
        while not said.endswith(self._end.encode()):
            came = self._pipe.read_some(_TAKE)
            if not came:
                raise UnreachableError(f"{self._pipe.host} ended its shell", hint="run again", subject=self._pipe.host)
            said += came
        return bytes(said).partition(self._begin.encode())[2].removesuffix(self._end.encode())

    @property
    def is_open(self) -> bool:
        return self._pipe.is_open

    def close(self) -> None:
        self._pipe.close()


_BROKEN = "*\n*"  # a pattern for paths with a line break, which do not fit in a line
_KINDS = {"l": "is a symlink"}
_TROUBLE = re.compile(rb"(?:find|stat): (?:can(?:not|'t) stat\w* )?(?:'(?P<quoted>.*)'|(?P<bare>/.*)): (?P<why>[^:]+)")
_GONE = b": No such file or directory"  # removed meanwhile


def find_command(places: Sequence[str], printf: bool, maxdepth: bool = True) -> str:
    """NUL-separated records with GNU's -printf, lines without: `f<size> <mtime> <inode> <place>`, `d<place>`, `o<kind> …`

    `maxdepth`: whether find has -maxdepth; then too deep folders are also printed as lines `d<place>`.
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
    """Return a command for what `find_command` without -printf omits: NUL-separated places with a line break in the name."""
    depth = f"-maxdepth {DEPTH + 1}" if maxdepth else ""
    return f"find {' '.join(map(shlex.quote, places))} {depth} -name {shlex.quote(_BROKEN)} -prune -print0"


class FindOutput:
    """Parses records into entries and odd paths, with the store's paths. `folders`: the requested ones."""

    def __init__(self, prefix: str, folders: Sequence[str] = ("",)) -> None:
        self._prefix = prefix.encode()  # the root with its slash, removed from places; "" for absolute folders
        self._asked = [folder.rstrip("/") + "/" if folder else "" for folder in folders]
        self._reached: dict[str, bool] = {}  # folder → whether its files are listed
        self.entries: list[Entry] = []
        self.odd: dict[str, str] = {}

    def parse_records(self, data: bytes, separator: bytes) -> None:
        for record in data.split(separator):
            kind = record[:1]
            if kind == b"f":
                self._add_file(record[1:])
            elif kind == b"d":
                path = self._path_of(record[1:] + b"/")
                if path is not None:
                    self._is_reached(path.rstrip("/"))
            elif kind == b"o":
                path = self._path_of(record[3:])
                if path is not None:
                    self.odd[path] = _KINDS.get(record[1:2].decode(), "is neither file nor folder")

    def note_broken_names(self, data: bytes) -> None:
        for place in data.split(b"\0")[:-1]:
            path = self._path_of(place)
            if path is not None:
                self.odd[path] = "has a line break in its name, and the find there has no -printf to tell of it"

    def note_errors(self, errors: bytes, folders: Sequence[str]) -> None:
        """Mark as unlisted what the tools report errors about. A message without a path marks all of `folders`."""
        for line in errors.splitlines():
            if not line.startswith((b"find: ", b"stat: ")) or b": warning: " in line.lower() or line.endswith(_GONE):
                continue
            match = _TROUBLE.fullmatch(line)
            if match is None:
                self.odd.update(dict.fromkeys(folders, f"{UNLISTED}{line.decode(errors='replace')}"))
                continue
            path = self._path_of(match["quoted"] or match["bare"])
            if path is not None:
                self.odd[path] = f"{UNLISTED}{match['why'].decode(errors='replace')}"

    def _add_file(self, record: bytes) -> None:
        try:
            size, mtime, inode, place = record.split(b" ", 3)
            facts = int(size), int(mtime.partition(b".")[0]), int(inode)
        except ValueError:
            self.odd[printable_name(record)] = "its name cannot be read from the listing"
            return
        path = self._path_of(place)
        if path is not None and self._is_reached(path.rpartition("/")[0]):
            self.entries.append(Entry(path, *facts))

    def _is_reached(self, folder: str) -> bool:
        """Return whether a folder is listed. The outermost folder that is too deep is added to `odd`."""
        known = self._reached.get(folder)
        if known is None:
            asked = next((asked for asked in self._asked if folder.startswith(asked)), folder + "/")
            depth = folder.count("/") - asked.count("/") + 1
            if depth > DEPTH + 1:
                known = self._is_reached("/".join(folder.split("/")[: asked.count("/") + DEPTH + 1]))
            elif why := why_unreached(folder, depth):
                known = False
                if self._is_reached(folder.rpartition("/")[0]):
                    self.odd[folder] = UNLISTED + why
            else:
                known = True
            self._reached[folder] = known
        return known

    def _path_of(self, place: bytes) -> str | None:
        if self._prefix and place.startswith(self._prefix):
            place = place[len(self._prefix) :]
        try:
            return place.decode()
        except UnicodeDecodeError:
            path, is_folder = _first_unreadable(place)
            self.odd[path] = BAD_FOLDER if is_folder else BAD_NAME
            return None


def _first_unreadable(place: bytes) -> tuple[str, bool]:
    """Return the path up to its first component that is not UTF-8, and whether that is a folder (reported only once)."""
    kept: list[str] = []
    parts = place.split(b"/")
    for part in parts:
        kept.append(printable_name(part))
        try:
            part.decode()
        except UnicodeDecodeError:
            break
    return "/".join(kept), len(kept) < len(parts)
