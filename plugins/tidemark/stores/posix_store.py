"""A store whose far end has a shell with POSIX tools but no python3: SFTP for contents, tools for listing and digests."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from tidemark.errors import PermanentError
from tidemark.stores.far_source import lowered
from tidemark.stores.landing import check_path
from tidemark.stores.posix_listing import FindOutput, find_command
from tidemark.stores.protocol import Entry, Range, Tier
from tidemark.stores.sftp_folders import SftpFolders
from tidemark.stores.sftp_store import SftpStore
from tidemark.stores.ssh import SshConnection

_RANGES = 1000  # an exec

# One answer a range, whatever happens to the file meanwhile. Lines in: offset, length ("-" for to the end), then the place.
_DIGESTS = """while read -r o n && IFS= read -r p; do
if [ "$n" = - ] && [ "$o" = 0 ]; then sha256sum < "$p" || echo -
elif [ "$n" = - ]; then tail -c +$((o+1)) < "$p" | sha256sum
elif [ "$o" = 0 ]; then head -c "$n" < "$p" | sha256sum
else tail -c +$((o+1)) < "$p" | head -c "$n" | sha256sum; fi; done 2>/dev/null"""


class PosixStore(SftpStore):
    """A store whose far end has a shell and POSIX tools, and no python3."""

    tier = Tier.POSIX

    def __init__(self, url: str, root: str, connection: SshConnection, tools: Sequence[str]) -> None:
        self._tools = frozenset(tools)
        super().__init__(url, root, connection)

    def digests(self, ranges: Sequence[Range]) -> Sequence[str | None]:
        if any("\n" in path for path, _, _ in ranges):
            return super().digests(ranges)  # the tools' lists have a path a line
        known = self.stat_many([check_path(path) for path, _, _ in ranges])
        found: list[str | None] = [None] * len(ranges)
        there = [
            number
            for number, ((_, offset, length), entry) in enumerate(zip(ranges, known, strict=True))
            if entry is not None and (length is None or entry.size >= offset + length)
        ]
        for start in range(0, len(there), _RANGES):
            batch = there[start : start + _RANGES]
            for number, digest in zip(batch, self._digest([ranges[n] for n in batch]), strict=True):
                found[number] = digest
        return found

    def _digest(self, ranges: Sequence[Range]) -> list[str | None]:
        with self._at("") as (_, at, _files):
            lines = "".join(
                f"{offset} {'-' if length is None else length}\n{at.place(path)}\n" for path, offset, length in ranges
            )
        answers = [line.split()[0] for line in self._run(_DIGESTS, lines.encode())[0].decode("ascii").splitlines()]
        if len(answers) != len(ranges):
            raise PermanentError(f"sha256sum at {self._connection.login.name} gave {len(answers)} of {len(ranges)} digests")
        return [answer if len(answer) == 64 else None for answer in answers]

    def _has_inodes(self) -> bool:
        return "printf" in self._tools or "stat" in self._tools

    def _fill(self, at: SftpFolders, folders: list[str], entries: list[Entry], odd: list[tuple[str, str]]) -> None:
        if not self._has_inodes():
            super()._fill(at, folders, entries, odd)
            return
        printf = "printf" in self._tools
        relative = [folder for folder in folders if not folder.startswith("/")]
        for group, prefix in ((relative, at.root + "/"), ([f for f in folders if f.startswith("/")], "")):
            if not group:
                continue
            # A root that is a symlink is the operator's choice; find itself follows none.
            places = [at.place(folder) if folder else at.place(folder).rstrip("/") + "/" for folder in group]
            output = FindOutput(prefix)
            data, errors = self._run(find_command(places, printf))
            output.take(data, b"\0" if printf else b"\n")
            output.refused(errors)
            entries += output.entries
            odd += output.odd.items()

    def _sync_folders(self, at: SftpFolders, folders: Sequence[str]) -> None:
        """`sync FOLDER…` where the tool takes names, else `sync` of everything."""
        if "sync" in self._tools and folders:
            places = " ".join(shlex.quote(at.place(folder)) for folder in folders)
            self._run(f"sync {places} 2>/dev/null || sync")

    def remove_tree(self, folder: str) -> None:
        """By `rm -rf`; what it leaves is removed name by name, so that the trouble is named."""
        with self._at(check_path(folder)) as (_, at, _files):
            removable = folder in at.plain([folder]) and folder.strip("/")
        if removable:
            self._run(f"rm -rf -- {shlex.quote(at.place(folder))}")
        super().remove_tree(folder)

    def _run(self, script: str, lines: bytes = b"") -> tuple[bytes, bytes]:
        """Output and errors of a script for `sh`; a failing tool shows in what it did not print."""
        pipe = self._connection.open_pipe(f"sh -c {shlex.quote(lowered(self._connection.nice) + script)}")
        try:
            pipe.write(lines)
            pipe.end_input()
            return pipe.read_all(), pipe.errors().encode()
        finally:
            pipe.close()
