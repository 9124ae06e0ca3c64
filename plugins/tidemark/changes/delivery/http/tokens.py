"""Bearer tokens: a server's file with a line `TOKEN TASK…` for each, a client's file with one token.

The server's is read again when it changes, so a token is taken back at once.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from pathlib import Path

from tidemark.errors import UsageError

LEAST = 16
"""Characters of a token."""


def parse_tokens(text: str) -> dict[bytes, frozenset[str]]:
    """By the digest of a token, the tasks that it is for. Raises UsageError that names the line, and not the token."""
    found: dict[bytes, frozenset[str]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) < 2 or len(words[0]) < LEAST:
            raise UsageError(
                f"line {number} of the tokens is no TOKEN of {LEAST} characters with its TASKs",
                hint="a line: TOKEN TASK…; `openssl rand -hex 24` makes a token",
            )
        digest = _digest(words[0])
        if digest in found:
            raise UsageError(
                f"line {number} of the tokens has a token a second time", hint="one line a token, all its tasks"
            )
        found[digest] = frozenset(words[1:])
    return found


def read_token(path: Path) -> str:
    """The token of a client's file. UsageError: it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as wrong:
        raise UsageError(
            f"the token cannot be read: {path}: {getattr(wrong, 'strerror', 'no text')}",
            hint="make a file with the token alone, one of the reader's changes.tokens",
            subject=str(path),
        ) from wrong


class Tokens:
    """The tokens of a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._tasks: Mapping[bytes, frozenset[str]] = {}
        self.find_tasks("")

    def find_tasks(self, header: str) -> frozenset[str] | None:
        """The tasks of an Authorization header; None: it has no token of ours. UsageError: the file is not as it must be."""
        self._read_again()
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer":
            return None
        digest, found = _digest(token.strip()), None
        for known, tasks in self._tasks.items():  # as long for each token
            if hmac.compare_digest(known, digest):
                found = tasks
        return found

    def _read_again(self) -> None:
        try:
            state = self._path.stat()
            seen = (state.st_mtime_ns, state.st_size, state.st_ino)
            if seen != self._seen:
                self._tasks, self._seen = parse_tokens(self._path.read_text(encoding="utf-8")), seen
        except (OSError, UnicodeDecodeError) as wrong:
            raise UsageError(
                f"the tokens of clients cannot be read: {self._path}: {getattr(wrong, 'strerror', 'no text')}",
                hint="make the file: a line `TOKEN TASK…` for each client; `tokens` of [changes] names it",
                subject=str(self._path),
            ) from wrong


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
