"""What an SFTP session tells about names: entries of paths and folders, whole trees, folders made and removed."""

from __future__ import annotations

import errno
import stat as modes
from collections.abc import Callable, Iterable, Sequence

from tidemark.stores.disk_rows import BAD_FOLDER, BAD_NAME, UNLISTED, show, unreached
from tidemark.stores.protocol import Entry
from tidemark.stores.sftp_wire import (
    CLOSE,
    EOF,
    LSTAT,
    MKDIR,
    NO_SUCH_FILE,
    OPENDIR,
    READDIR,
    REMOVE,
    RMDIR,
    Attributes,
    Reply,
    SftpWire,
    mode_attribute,
    text,
)

_FOLDERS = 8  # folders read at a time
_AHEAD = 8  # READDIRs in flight a folder: a large folder must not cost a round trip a hundred names


class SftpFolders:
    """Places are absolute paths at the server; `root` itself is trusted, what lies below it may be no symlink."""

    def __init__(self, wire: SftpWire, root: str) -> None:
        self.wire = wire
        self.root = root.rstrip("/")

    def place(self, path: str) -> str:
        return path if path.startswith("/") else (f"{self.root}/{path}" if path else self.root or "/")

    def attributes(self, places: Sequence[str]) -> list[Attributes | None]:
        """Of each place, symlinks not followed; None where there is nothing."""
        found: list[Attributes | None] = [None] * len(places)
        failed: list[OSError] = []
        left = len(places)

        def note(number: int, reply: Reply) -> None:
            nonlocal left
            left -= 1
            failure = reply.failure((NO_SUCH_FILE,))
            if failure is not None:
                failed.append(OSError(failure.errno, failure.strerror, places[number]))
            elif not reply.is_status(NO_SUCH_FILE):
                found[number] = reply.attributes()

        for number, place in enumerate(places):
            self.wire.post(LSTAT, text(place), lambda reply, number=number: note(number, reply))  # type: ignore[misc]
        while left:  # not for what else is under way: a stream goes on meanwhile
            self.wire.step()
        if failed:
            raise failed[0]
        return found

    def entries(self, paths: Sequence[str]) -> list[Entry | None]:
        """Of each path that is a regular file below real folders."""
        plain = self.plain(paths)
        found = self.attributes([self.place(path) for path in paths])
        return [
            Entry(path, facts.size, facts.mtime) if facts and path in plain and modes.S_ISREG(facts.mode) else None
            for path, facts in zip(paths, found, strict=True)
        ]

    def plain(self, paths: Iterable[str]) -> set[str]:
        """Those of `paths` that have no symlink and no file above them below the root."""
        paths = list(paths)
        above = sorted({folder for path in paths for folder in self._above(path)})
        facts = dict(zip(above, self.attributes([self.place(folder) for folder in above]), strict=True))
        bad = {folder for folder, found in facts.items() if found is not None and not modes.S_ISDIR(found.mode)}
        return {path for path in paths if bad.isdisjoint(self._above(path))}

    def make(self, folders: Iterable[str]) -> None:
        """Make folders and their parents, "" the root. ELOOP where a symlink is in the way, EEXIST where a file is."""
        above = {part for place in map(self.place, folders) for part in (*_parents(place), place)}
        places = sorted(above - {"/"}, key=lambda place: place.count("/"))
        facts = dict(zip(places, self.attributes(places), strict=True))
        for place in places:
            found = facts[place]
            if found is None:
                reply = self.wire.ask(MKDIR, text(place) + mode_attribute(0o755))
                if reply.failure() is not None:
                    self._settle_for_existing(place, reply)
            elif modes.S_ISLNK(found.mode):
                if place.startswith(self.root + "/") and place != self.root:
                    raise OSError(errno.ELOOP, "is a symlink", place)
            elif not modes.S_ISDIR(found.mode):
                raise OSError(errno.EEXIST, "is no folder", place)

    def names(self, folder: str) -> list[bytes]:
        found: list[bytes] = []
        if folder and folder not in self.plain([folder]):
            return found
        facts = self.attributes([self.place(folder)])[0]
        if facts is None or (folder and not modes.S_ISDIR(facts.mode)):
            return found
        self._read_folder(
            self.place(folder), lambda name, _facts: found.append(name), lambda reply: reply.check(), lambda: None
        )
        self.wire.settle()
        return found

    def walk(
        self, folders: Sequence[str], entries: list[Entry], odd: list[tuple[str, str]], deep: bool = False
    ) -> list[str]:
        """All regular files below `folders` into `entries`, what is strange into `odd`; the folders, parents first. `deep`:
        however deep they are."""
        seen: list[str] = []
        waiting = [(folder, 0) for folder in folders]
        active = [0]

        def enter_next() -> None:
            while waiting and active[0] < _FOLDERS:
                active[0] += 1
                enter(*waiting.pop())

        def left() -> None:
            active[0] -= 1
            enter_next()

        def enter(path: str, depth: int) -> None:
            seen.append(path)
            prefix = path + "/" if path and path != "/" else path

            def one(name: bytes, facts: Attributes) -> None:
                try:
                    below = prefix + name.decode()
                except UnicodeDecodeError:
                    odd.append((prefix + show(name), BAD_FOLDER if modes.S_ISDIR(facts.mode) else BAD_NAME))
                    return
                if modes.S_ISREG(facts.mode):
                    entries.append(Entry(below, facts.size, facts.mtime))
                elif modes.S_ISDIR(facts.mode):
                    why = "" if deep else unreached(below, depth + 1)
                    if why:
                        odd.append((below, UNLISTED + why))
                    else:
                        waiting.append((below, depth + 1))
                else:
                    link = modes.S_ISLNK(facts.mode)
                    odd.append((below, "is a symlink" if link else "is neither file nor folder"))

            def refused(reply: Reply) -> None:
                if not reply.is_status(NO_SUCH_FILE):  # else it went away while we looked
                    odd.append((path, f"{UNLISTED}{getattr(reply.failure(), 'strerror', '')}"))

            self._read_folder(self.place(path), one, refused, left)

        enter_next()
        self.wire.settle()
        return seen

    def remove_tree(self, folder: str) -> None:
        facts = self.attributes([self.place(folder)])[0]
        if facts is None:
            return
        if not modes.S_ISDIR(facts.mode):
            self.remove([folder])
            return
        entries: list[Entry] = []
        odd: list[tuple[str, str]] = []
        folders = self.walk([folder], entries, odd, deep=True)
        self.remove([entry.path for entry in entries])
        self.remove([path for path, reason in odd if reason.startswith("is ")])
        for inner in sorted(folders, key=lambda path: -path.count("/")):
            self.wire.post(RMDIR, text(self.place(inner)), lambda reply: reply.check((NO_SUCH_FILE,)))
        self.wire.settle()

    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.wire.post(REMOVE, text(self.place(path)), lambda reply: reply.check((NO_SUCH_FILE,)))
        self.wire.settle()

    def _read_folder(
        self,
        place: str,
        one: Callable[[bytes, Attributes], None],
        refused: Callable[[Reply], None],
        left: Callable[[], None],
    ) -> None:
        """Post what reads one folder: `one` for each name, `refused` for a failure, `left` at the end, in any case."""
        wire = self.wire

        def opened(reply: Reply) -> None:
            if reply.failure() is not None:
                left()
                refused(reply)
                return
            handle = reply.string()
            ahead = [_AHEAD]

            def listed(reply: Reply) -> None:
                if reply.failure() is None:
                    for name, facts in reply.names():
                        if name not in (b".", b".."):
                            one(name, facts)
                    wire.post(READDIR, text(handle), listed)
                    return
                ahead[0] -= 1
                if ahead[0] == 0:
                    wire.post(CLOSE, text(handle), lambda _reply: None)
                    left()
                if not reply.is_status(EOF):
                    refused(reply)

            for _ in range(_AHEAD):
                wire.post(READDIR, text(handle), listed)

        wire.post(OPENDIR, text(place), opened)

    def _settle_for_existing(self, place: str, reply: Reply) -> None:
        """Somebody else may have made it meanwhile."""
        facts = self.attributes([place])[0]
        if facts is None or not modes.S_ISDIR(facts.mode):
            reply.check()

    def _above(self, path: str) -> list[str]:
        if path.startswith("/"):
            return []
        parts = path.split("/")[:-1]
        return ["/".join(parts[: end + 1]) for end in range(len(parts))]


def _parents(place: str) -> list[str]:
    parts = place.strip("/").split("/")[:-1]
    return ["/" + "/".join(parts[: end + 1]) for end in range(len(parts))]
