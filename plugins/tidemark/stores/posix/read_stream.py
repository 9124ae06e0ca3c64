"""Read many files by the far end's tools as one stream: `tar` for bundles of small files, `dd`, `tail`, `head` for ranges.

Source: research/transfer-pull.md, "What to know first" 8.
"""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tidemark.stores.posix.shell import BrokenOutput, FarShell
from tidemark.stores.protocol import Want

AHEAD_BYTES = 8 << 20  # of unread output, with what the tools add to the contents
AHEAD_FILES = 2000  # of any size
AHEAD_COMMANDS = 1 << 19  # bytes: a far end whose output is not read soon reads no more commands
BUNDLE_FILES, BUNDLE_BYTES = 250, 4 << 20
BUNDLE_NAMES = 1 << 16  # bytes of a command: systems limit argument lists
_DD_BLOCK = 1 << 18
_TAR_BLOCK = 512
_NAME_FIELD = 100  # bytes in a header; a longer name has its own header and blocks
_REGULAR, _NAMING = (b"0", b"\0"), (b"L", b"x", b"g", b"K")

Came = tuple[Want, memoryview | bytes, bool]  # the want, bytes of it, whether it is to be read in another way


class _Asked(NamedTuple):
    wants: tuple[Want, ...]
    tar: bool
    command: str
    output: int  # bytes that it outputs


class _Ahead:
    """The commands sent whose output was not read yet."""

    def __init__(self, most: int) -> None:
        self.asked: deque[_Asked] = deque()
        self._most = most
        self._output = self._files = self._commands = 0

    @property
    def is_full(self) -> bool:
        """Whether a limit is reached. Never with fewer than two commands, so that one is always queued."""
        much = self._output >= self._most or self._files >= AHEAD_FILES or self._commands >= AHEAD_COMMANDS
        return much and len(self.asked) >= 2

    def append_asked(self, asked: _Asked) -> None:
        self.asked.append(asked)
        self._count_asked(asked, 1)

    def pop_asked(self) -> _Asked:
        asked = self.asked.popleft()
        self._count_asked(asked, -1)
        return asked

    def _count_asked(self, asked: _Asked, sign: int) -> None:
        self._output += sign * asked.output
        self._files += sign * len(asked.wants)
        self._commands += sign * len(asked.command)


class ToolStream:
    """One stream; `read_wants` may be called once. `place` maps a path to its place. `tools`: those found at the far end."""

    def __init__(
        self, open_shell: Callable[[], FarShell], place: Callable[[str], str], tools: frozenset[str], ahead: int = 0
    ) -> None:
        self._open_shell = open_shell
        self._place = place
        self._tools = tools
        self._shell: FarShell | None = None
        self._most = min(ahead or AHEAD_BYTES, AHEAD_BYTES)
        self._ahead = _Ahead(self._most)

    def read_wants(self, wants: Iterator[Want]) -> Iterator[Came]:
        """Yield (want, bytes, False) until a want is complete; (want, b"", True) for one that the tools could not read.
        Bytes are valid until the next item."""
        commands = self._make_commands(wants)
        try:
            while True:
                while not self._ahead.is_full:
                    asked = next(commands, None)
                    if asked is None:
                        break
                    self._send_command(asked)
                if not self._ahead.asked:
                    return
                yield from self._read_output()
        finally:
            if self._shell is not None:
                self._shell.close()

    def _make_commands(self, wants: Iterator[Want]) -> Iterator[_Asked]:
        bundle: list[Want] = []
        size = names = 0
        for want in wants:
            small = want.small and "tar" in self._tools
            member = self._member_name(want)
            name, output = len(member), _in_archive(member, want.length)
            full = len(bundle) == BUNDLE_FILES or names + name > BUNDLE_NAMES
            if bundle and (not small or full or size + output > min(self._most, BUNDLE_BYTES)):
                yield self._archive_command(bundle, size)
                bundle, size, names = [], 0, 0
            if small:
                bundle.append(want)
                size, names = size + output, names + name
            else:
                command = range_command(self._place(want.path), want.offset, want.length, "dd" in self._tools)
                yield _Asked((want,), False, command, want.length)
        if bundle:
            yield self._archive_command(bundle, size)

    def _archive_command(self, bundle: list[Want], output: int) -> _Asked:
        names = " ".join(shlex.quote(self._member_name(want)) for want in bundle)
        return _Asked(tuple(bundle), True, f"cd / && tar -cf - -- {names}", output)

    def _send_command(self, asked: _Asked) -> None:
        self._shell = self._shell or self._open_shell()
        self._ahead.append_asked(asked)
        self._shell.send_command(asked.command)

    def _read_output(self) -> Iterator[Came]:
        """Read the oldest command's output. If it has an unexpected size, sends the later commands again."""
        asked, shell = self._ahead.asked[0], self._shell
        assert shell is not None
        came: set[int] = set()
        try:
            yield from self._read_members(shell, asked, came) if asked.tar else self._read_range(shell, asked.wants[0], came)
        except BrokenOutput:
            self._ahead.pop_asked()
            self._begin_anew()
        else:
            self._ahead.pop_asked()
        for want in asked.wants:
            if want.number not in came:
                yield want, b"", True

    def _begin_anew(self) -> None:
        assert self._shell is not None
        self._shell.close()
        self._shell = None
        left, self._ahead = self._ahead.asked, _Ahead(self._most)
        for asked in left:
            self._send_command(asked)

    def _read_range(self, shell: FarShell, want: Want, came: set[int]) -> Iterator[Came]:
        left = want.length
        if left and shell.has_ended():  # no output; what follows is the next command's
            return
        while left:
            data = shell.read_some(min(left, _DD_BLOCK))
            left -= len(data)
            if not left:
                shell.expect_end()  # before the last bytes are yielded: it proves that they belong to this file
                came.add(want.number)
            yield want, data, False
        if not want.length:
            shell.expect_end()

    def _read_members(self, shell: FarShell, asked: _Asked, came: set[int]) -> Iterator[Came]:
        """Yield the files of one archive, each once it is whole."""
        waiting = {self._member_name(want).encode(): want for want in asked.wants}
        longer = b""
        while any(header := shell.read_exactly(_TAR_BLOCK)):
            kind, size = header[156:157], _parse_octal(header[124:136])
            body = shell.read_exactly(size + -size % _TAR_BLOCK) if kind in _REGULAR or kind in _NAMING else b""
            if kind in _NAMING:
                longer = _long_name(kind, body[:size]) or longer
                continue
            want = waiting.pop(longer or _header_name(header), None)
            longer = b""
            if want is not None and kind in _REGULAR and size >= want.length:
                came.add(want.number)
                yield want, body[: want.length], False
        while not shell.has_ended():
            shell.read_exactly(_TAR_BLOCK)

    def _member_name(self, want: Want) -> str:
        return "./" + self._place(want.path).lstrip("/")


def _in_archive(name: str, length: int) -> int:
    """Return the size of an archive member: its header, its contents in blocks, and the blocks of a long name."""
    size = len(name.encode())
    long = 2 * _TAR_BLOCK + size + -size % _TAR_BLOCK if size > _NAME_FIELD else 0
    return _TAR_BLOCK + length + -length % _TAR_BLOCK + long


def range_command(place: str, offset: int, length: int, dd: bool) -> str:
    """Return a command that outputs `length` bytes of a file from `offset`."""
    name = shlex.quote(place)
    blocks = length // _DD_BLOCK if dd and offset % _DD_BLOCK == 0 else 0
    commands = [f"dd if={name} bs={_DD_BLOCK} skip={offset // _DD_BLOCK} count={blocks}"] if blocks else []
    offset, rest = offset + blocks * _DD_BLOCK, length - blocks * _DD_BLOCK
    if rest:
        commands.append(f"tail -c +{offset + 1} < {name} | head -c {rest}" if offset else f"head -c {rest} < {name}")
    return "; ".join(commands) or ":"


def _parse_octal(octal: bytes) -> int:
    """Parse a header's octal field. Raises BrokenOutput where it is none: then the block is no header."""
    try:
        return int(octal.strip(b" \0") or b"0", 8)
    except ValueError:
        raise BrokenOutput from None


def _header_name(header: bytes) -> bytes:
    name, prefix = header[:100].rstrip(b"\0"), header[345:500].rstrip(b"\0")
    return prefix + b"/" + name if prefix and header[257:263] == b"ustar\0" else name


def _long_name(kind: bytes, body: bytes) -> bytes:
    """Return the next member's name from a GNU (L) or POSIX (x: lines "LENGTH KEY=VALUE") header; b"" where it has none."""
    if kind == b"L":
        return body.rstrip(b"\0")
    while body:
        length = int(body.partition(b" ")[0] or b"0")
        key, _, value = body[:length].partition(b" ")[2].partition(b"=")
        if key == b"path":
            return value.rstrip(b"\n")
        body = body[length:] if length else b""
    return b""
