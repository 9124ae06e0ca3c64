"""A store whose far end has a shell with POSIX tools but no python3: SFTP for contents, tools for listing and digests."""

from __future__ import annotations

import errno
import hashlib
import secrets
import shlex
from collections.abc import Sequence

from tidemark.errors import OutcomeUnknownError, PermanentError, UnreachableError
from tidemark.stores.posix.shell import FarShell, FindOutput, broken_names_command, find_command
from tidemark.stores.protocol import Entry, FileEnd, PendingDigest, Range, Tier, check_path
from tidemark.stores.python.bundle import priority_prefix
from tidemark.stores.sftp.files import SftpFolders
from tidemark.stores.sftp.store import SftpStore
from tidemark.stores.ssh.connection import Pipe, SshConnection

_RANGES, _FILES = 1000, 500  # commands sent at once; files in a command

_DD_BLOCK = 1 << 18
_ESCAPED = "\\\n\r"  # sha256sum escapes names with one of them
_LARGE = 32 << 20  # bytes from which a digest gets its own command, which runs while the file comes


class PosixStore(SftpStore):
    """A store whose far end has a shell and POSIX tools, and no python3."""

    tier = Tier.POSIX
    reads_back = False

    def __init__(self, url: str, root: str, connection: SshConnection, tools: Sequence[str]) -> None:
        self._tools = frozenset(tools)
        self._digester: FarShell | None = None  # for digests, once the first is asked for
        super().__init__(url, root, connection)

    def append_if(self, path: str, data: bytes, end: FileEnd | None) -> bool:
        """Make a new file over SFTP; append to an existing one by a script under `flock`, from a temp file."""
        if end is None or not self._can_append():
            return super().append_if(path, data, end)
        temp = f"{check_path(path)}.{secrets.token_hex(4)}.tmp"
        try:
            self.write_part(temp, 0, [data])
            # CRASH WINDOW: a temp file that nobody reads. The script may break off, as its connection does: then a torn
            # append is there, which the next append cuts.
            said = self._shell_output(_append_command(self.locate_path(path), self.locate_path(temp), end))
        finally:
            self.remove([temp])
        if said not in (b"appended", b"differs"):
            raise OutcomeUnknownError(
                f"{self._where.full_path(path)}: the append broke off at {self._where.host}: is the disk full?",
                hint="look at the disk there, then run again",
                subject=path,
            )
        return said == b"appended"

    def digest_beside(self, path: str, length: int) -> PendingDigest | None:
        if length < _LARGE:
            return None
        return _RunningDigest(
            self._start_script(f"echo; head -c {length} < {shlex.quote(self.locate_path(path))} | sha256sum")
        )

    def digest_ranges(self, ranges: Sequence[Range]) -> Sequence[str | None]:
        known = self.stat_many([check_path(path) for path, _, _ in ranges])
        found: list[str | None] = [None] * len(ranges)
        whole: dict[int, str] = {}
        parts: dict[int, Range] = {}
        for number, ((path, offset, length), entry) in enumerate(zip(ranges, known, strict=True)):
            if entry is not None and offset == 0 and length in (None, entry.size):
                whole[number] = self.locate_path(path)
            elif entry is not None and entry.size >= offset + (length or 0):
                parts[number] = Range(self.locate_path(path), offset, entry.size - offset if length is None else length)
        for numbers, made in (
            (whole, self._digest_files(list(whole.values()))),
            (parts, self._digest_parts(list(parts.values()))),
        ):
            for number, digest in zip(numbers, made, strict=True):
                found[number] = digest
        return found

    def _digest_files(self, places: Sequence[str]) -> list[str | None]:
        """Digest whole files, many by one command. A name that sha256sum would escape gets its own command."""
        odd = [place for place in places if any(character in place for character in _ESCAPED)]
        commands = [f"{{ sha256sum < {shlex.quote(place)} || echo -; }}" for place in odd]
        digests = dict(zip(odd, self._run_digests(commands), strict=True))
        plain = [place for place in places if place not in digests]
        for start in range(0, len(plain), _FILES):
            names = " ".join(map(shlex.quote, plain[start : start + _FILES]))
            for line in self._shell_output(f"sha256sum -- {names}").split(b"\n"):
                digest, _, place = line.partition(b"  ")
                if len(digest) == 64:
                    digests[place.decode("utf-8", "replace")] = digest.decode("ascii")
        return [digests.get(place) for place in places]

    def _digest_parts(self, ranges: Sequence[Range]) -> list[str | None]:
        return self._run_digests(
            [
                f"{{ {_range_command(place, offset, length or 0, 'dd' in self._tools)}; }} | sha256sum"
                for place, offset, length in ranges
            ]
        )

    def _run_digests(self, commands: Sequence[str]) -> list[str | None]:
        """Run commands that print one line each, which begins with a digest or has none. Returns the digests."""
        answers: list[str] = []
        for start in range(0, len(commands), _RANGES):
            lines = self._shell_output("; ".join(commands[start : start + _RANGES])).decode("ascii").splitlines()
            answers += [line.split()[0] for line in lines]
        if len(answers) != len(commands):
            name = self._connection.login.name
            raise PermanentError(f"sha256sum at {name} gave {len(answers)} of {len(commands)} digests")
        return [answer if len(answer) == 64 else None for answer in answers]

    def _shell_output(self, command: str) -> bytes:
        """Run a command in a shell that is kept for the next one. Returns its output."""
        if self._digester is None or not self._digester.is_open:
            self._digester = self._open_shell()
        return self._digester.run_command(command)

    def _open_script_pipe(self) -> Pipe:
        """Open a pipe to an `sh` that reads its script from there, with the niceness of the settings."""
        return self._connection.open_pipe(f"sh -c '{priority_prefix(self._connection.nice)}exec sh'")

    def _open_shell(self) -> FarShell:
        return FarShell(self._open_script_pipe())

    def _start_script(self, script: str) -> Pipe:
        """Run `script` as the input of `sh`. The login shell never parses it: a C shell interprets `!` and newlines in
        quotes, and a command line is limited to 128 KB."""
        pipe = self._open_script_pipe()
        pipe.write(f"{{ {script}; }} </dev/null; exit\n".encode())
        pipe.end_input()
        return pipe

    def _can_append(self) -> bool:
        return {"flock", "dd", "tail", "head", "sha256sum", "sync"} <= self._tools

    def _has_inodes(self) -> bool:
        return "printf" in self._tools or "stat" in self._tools

    def _collect_files(self, at: SftpFolders, folders: list[str], entries: list[Entry], odd: list[tuple[str, str]]) -> None:
        printf = "printf" in self._tools
        if not self._has_inodes() or (not printf and any("\n" in at.place_of(folder) for folder in folders)):
            super()._collect_files(at, folders, entries, odd)
            return
        relative = [folder for folder in folders if not folder.startswith("/")]
        for group, prefix in ((relative, at.root + "/"), ([f for f in folders if f.startswith("/")], "")):
            if not group:
                continue
            # A root that is a symlink is the operator's choice: the slash lets find follow it, and no other.
            places = [at.place_of(folder) if folder else at.place_of(folder).rstrip("/") + "/" for folder in group]
            output = FindOutput(prefix, group)
            data, errors = self._run_script(find_command(places, printf, "maxdepth" in self._tools))
            output.parse_records(data, b"\0" if printf else b"\n")
            if not printf:
                output.note_broken_names(self._run_script(broken_names_command(places, "maxdepth" in self._tools))[0])
            output.note_errors(errors, group)
            entries += output.entries
            odd += output.odd.items()

    def _sync_folders(self, at: SftpFolders, folders: Sequence[str]) -> None:
        """Run `sync FOLDER…` where the tool takes names, else a full `sync`, which reports no errors."""
        if "sync" in self._tools and folders:
            places = [at.place_of(folder) for folder in folders]
            named = " ".join(map(shlex.quote, places))
            script = f'case "$(LC_ALL=C sync --help 2>&1)" in *FILE*) sync {named};; *) sync;; esac && echo synced'
            said, errors = self._run_script(script)
            if not said.endswith(b"synced\n"):
                why = errors.decode("utf-8", "replace").strip()
                raise OSError(errno.EIO, f"its names may not last: {why or 'sync failed'}", places[0])

    def remove_tree(self, folder: str) -> None:
        """Remove a tree by `rm -rf`. Removes what it leaves one by one over SFTP, which gives the reason."""
        with self._session_at(check_path(folder)) as (_, at, _files):
            removable = folder in at.keep_plain_paths([folder]) and folder.strip("/")
        if removable:
            self._run_script(f"rm -rf -- {shlex.quote(at.place_of(folder))}")
        super().remove_tree(folder)

    def close(self) -> None:
        if self._digester is not None:
            self._digester.close()
        self._digester = None
        super().close()

    def _run_script(self, script: str) -> tuple[bytes, bytes]:
        """Run a script. Returns (output, errors). A failing tool is recognized by what it did not print. What a login script
        prints first is skipped.

        Raises UnreachableError where the output ends too early: the connection broke, or a tool was killed, is missing (127)
        or cannot be started (126).
        """
        mark = secrets.token_hex(16)
        pipe = self._start_script(f"echo {mark}; {script}; [ $? -lt 126 ] && echo {mark}")
        try:
            said, errors = pipe.read_all().partition(mark.encode() + b"\n")[2], pipe.read_errors()
            output, ended, _ = said.rpartition(mark.encode())
            if not ended:
                raise UnreachableError(
                    f"a tool at {pipe.host} broke off: {errors.strip() or 'the line was cut, or it was killed'}",
                    hint="run again",
                    subject=pipe.host,
                )
            return output, errors.encode()
        finally:
            pipe.close()


def _append_command(place: str, temp: str, end: FileEnd) -> str:
    """Return a command that does what `agent.appender.append_after` does with the bytes of `temp`."""
    file, start = shlex.quote(place), end.offset - len(end.tail)
    digest = hashlib.sha256(end.tail).hexdigest()
    same = (
        f"[ \"$(wc -c <&9 | tr -d ' ')\" = {end.size} ] && "
        f'[ "$(tail -c +{start + 1} {file} | head -c {len(end.tail)} | sha256sum | head -c 64)" = {digest} ]'
    )
    cut = f"dd if=/dev/null of={file} bs={end.offset} seek=1 count=0 && " if end.offset < end.size else ""
    sync = f'{{ case "$(LC_ALL=C sync --help 2>&1)" in *FILE*) sync {file};; *) sync;; esac; }}'
    append = f"{cut}cat {shlex.quote(temp)} >>{file} && {sync} && printf appended"
    return (
        f"( if [ -f {file} ] && [ ! -L {file} ]; then exec 9<{file} && flock 9 && "
        f"if {same}; then {append}; else printf differs; fi; else printf differs; fi )"
    )


def _range_command(place: str, offset: int, length: int, dd: bool) -> str:
    """Return a command that outputs `length` bytes of a file from `offset`."""
    name = shlex.quote(place)
    blocks = length // _DD_BLOCK if dd and offset % _DD_BLOCK == 0 else 0
    commands = [f"dd if={name} bs={_DD_BLOCK} skip={offset // _DD_BLOCK} count={blocks}"] if blocks else []
    offset, rest = offset + blocks * _DD_BLOCK, length - blocks * _DD_BLOCK
    if rest:
        commands.append(f"tail -c +{offset + 1} < {name} | head -c {rest}" if offset else f"head -c {rest} < {name}")
    return "; ".join(commands) or ":"


class _RunningDigest:
    """A sha256sum that runs in the background."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def await_digest(self) -> str | None:
        said = self._pipe.read_all().decode("ascii", "replace").rstrip("\n")  # a login script may print before it
        digest = said.rpartition("\n")[2].partition(" ")[0]
        return digest if len(digest) == 64 else None

    def close(self) -> None:
        self._pipe.close()
