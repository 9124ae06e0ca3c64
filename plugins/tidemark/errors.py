"""The tree of all errors that Tidemark raises on purpose, and the translation of this machine's resource limits.

    TidemarkError
    ├── UsageError            2   a command or a setting is wrong; names the key, the line and what is allowed
    │   └── SettingsError         the settings, a line a problem
    ├── NotFoundError         3   the named link, site, file, run … does not exist
    ├── RetryableError        5   try again: the network, a busy database, a lease somebody else holds
    │   ├── UnreachableError      connect, handshake, stall, a server that drops or limits sessions
    │   │   └── DiskAwayError         a data node's or receiver's folder is empty: lost, or not mounted
    │   ├── LeaseHeldError        another run holds the lease; names the holder
    │   ├── StaleEpochError       routed by a superseded partition table: route again
    │   └── OutcomeUnknownError   the reply was lost: read back before deciding
    ├── PermanentError        6   trying again will not help until somebody changes something
    │   ├── HostKeyError          the host key is missing or differs
    │   ├── PermissionDeniedError the store refuses to read or write the named thing
    │   ├── DiskFullError         no space at the named end
    │   ├── TaskLimitError        a task used more time or memory than one may
    │   ├── LeaseLostError        our fencing number is stale: a newer holder continues the work
    │   ├── PlanOutOfDateError    the site changed after a given plan was made
    │   └── SchemaTooNewError     the database was written by a newer Tidemark
    ├── CorruptionError       7   bytes are not what they claim to be: digest, structure, torn record
    │   └── UnsupportedError      a sound file in an encoding we do not decode (kept as source, marked)
    ├── WindowOverError      10   the link's window closed; the next run continues
    ├── OwnershipError       21   a device belongs to another site
    ├── GuardError           22   drops wait for approval
    ├── PartialError         23   the rest is done, some of it is not
    ├── SourceVanishedError  24   a file vanished while it was read
    ├── NoQuorumError        30   too few members of a data group can be reached to commit
    └── BinlogGapError       31   changes are lost: the server no longer has, or never had, the log from that place

`kind` is the CLI's exit code. `retry` says who may try again: *soon* (inside the step, seconds), *later* (Airflow,
minutes), *operator* (after somebody acted), *never*. One level retries one failure (DESIGN §9).

`limit_met` and `limits_named` translate the operating system's errors when this machine runs out of disk space, file
handles, processes or memory. Commands, tasks in child processes and the work on one landing all use them. Stores
translate errors of a far end by themselves (`stores.os_errors`), with the same hints.
"""

from __future__ import annotations

import enum
import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar


class Retry(enum.StrEnum):
    """Who may try again."""

    SOON = "soon"
    LATER = "later"
    OPERATOR = "operator"
    NEVER = "never"


class TidemarkError(Exception):
    """Base of every error Tidemark raises on purpose.

    `message` names the thing; `hint` is the next command to run; `subject` is the file, run, site or key concerned.
    """

    kind: ClassVar[int] = 1
    retry: ClassVar[Retry] = Retry.NEVER

    def __init__(self, message: str, *, hint: str = "", subject: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.subject = subject

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.hint, self.subject)

    def as_json(self) -> dict[str, Any]:
        """The object that `--json` prints when a command fails (CONTRACT §1)."""
        return {"ok": False, "kind": self.kind, "error": self.message, "hint": self.hint, "subject": self.subject}


def _rebuild(cls: type[TidemarkError], message: str, hint: str, subject: str) -> TidemarkError:
    return cls(message, hint=hint, subject=subject)


class UsageError(TidemarkError):
    """Options, settings or a plan are wrong."""

    kind = 2
    retry = Retry.OPERATOR


class SettingsError(UsageError):
    """The settings are wrong. The first line of the message counts the problems, then comes a line for each."""


class NotFoundError(TidemarkError):
    """A link, run, file, site or receiver of that name is not known here."""

    kind = 3
    retry = Retry.OPERATOR


class RetryableError(TidemarkError):
    """Nothing is wrong with the request; the same command succeeds later."""

    kind = 5
    retry = Retry.LATER


class UnreachableError(RetryableError):
    """A connection that broke, stalled or could not be made."""

    retry = Retry.SOON


class DiskAwayError(UnreachableError):
    """A data node's folder has no claim, or a receiver's folder is empty: its disk is not mounted, or lost. A node counts as
    one that does not answer."""

    retry = Retry.LATER


class LeaseHeldError(RetryableError):
    """Another live process works on the same thing."""

    retry = Retry.LATER


class StaleEpochError(RetryableError):
    """The decision was made by a superseded partition table."""

    retry = Retry.SOON


class OutcomeUnknownError(RetryableError):
    """The answer to a commit was lost. The caller looks it up, and repeats the commit if it did not happen."""

    retry = Retry.SOON


class PermanentError(TidemarkError):
    """Trying again does not help before somebody fixes the cause."""

    kind = 6
    retry = Retry.OPERATOR


class HostKeyError(PermanentError):
    """The server's key is not the one the settings give."""


class PermissionDeniedError(PermanentError):
    """The login lacks a right, or was itself refused."""


class DiskFullError(PermanentError):
    """No space, inodes or quota left at one end."""


class TaskLimitError(PermanentError):
    """A task on TsFiles exceeded its CPU time, wall time or memory. That proves nothing about its files' bytes."""


class LeaseLostError(PermanentError):
    """A newer holder has the lease: this process may record nothing more."""

    retry = Retry.NEVER


class PlanOutOfDateError(PermanentError):
    """The site changed after a saved plan was made."""


class SchemaTooNewError(PermanentError):
    """The database was written by a newer Tidemark; an older one may not touch it."""


class CorruptionError(TidemarkError):
    """Bytes are not what they must be: a digest, a structure, a record."""

    kind = 7
    retry = Retry.OPERATOR


class UnsupportedError(CorruptionError):
    """A file is sound as far as can be checked, but this version does not read its form."""


class WindowOverError(TidemarkError):
    """The link's window is closed; the next run continues."""

    kind = 10
    retry = Retry.LATER


class OwnershipError(TidemarkError):
    """A device belongs to another site (decision 0009)."""

    kind = 21
    retry = Retry.OPERATOR


class GuardError(TidemarkError):
    """More files vanished than the link's limits allow without a person's approval."""

    kind = 22
    retry = Retry.OPERATOR


class PartialError(TidemarkError):
    """The rest was done; something was left out and is named."""

    kind = 23
    retry = Retry.OPERATOR


class SourceVanishedError(TidemarkError):
    """A file of the snapshot vanished at the site before it could be read."""

    kind = 24
    retry = Retry.SOON


class NoQuorumError(TidemarkError):
    """Fewer members of a data group than its quorum accepted an operation. Nothing of it is visible."""

    kind = 30
    retry = Retry.LATER


class BinlogGapError(TidemarkError):
    """What follows a place in a binary log is not to be had from its server."""

    kind = 31
    retry = Retry.OPERATOR


NOTHING_TO_DO = 9
DIFFERENCES_FOUND = 20

_PARTIAL_ORDER = (GuardError.kind, OwnershipError.kind, CorruptionError.kind, PartialError.kind)


def worst_exit_code(kinds: set[int]) -> int:
    """The exit code of a run with several errors: 22 before 21 before 7 before 23, else the smallest, else 0."""
    for code in _PARTIAL_ORDER:
        if code in kinds:
            return code
    return min(kinds - {0}, default=0)


def exit_code_of_several(codes: Sequence[int]) -> int:
    """The exit code of a command that did several things, each with a code. One that all have; else, of those that failed,
    22 before 21 before 7 before 20; 10 if nothing but windows were over; else 23, for the rest was done."""
    failed = set(codes) - {0, NOTHING_TO_DO}
    if len(set(codes)) == 1:
        return codes[0]
    if failed in (set(), {WindowOverError.kind}):
        return min(failed, default=0)
    return next((code for code in (*_PARTIAL_ORDER[:-1], DIFFERENCES_FOUND) if code in failed), PartialError.kind)


MORE_ROOM = {
    errno.ENOSPC: "free space there, then run again",
    errno.EDQUOT: "raise the user's quota there (quota -s shows it) or free what counts against it, then run again",
    errno.EFBIG: "raise the limit there: ulimit -f of the user, or a file system that takes larger files; then run again",
}
MORE_OF_IT = {
    errno.EMFILE: "let it have more files open: ulimit -n; then run again",
    errno.ENFILE: "let this machine have more files open: sysctl fs.file-max; then run again",
    errno.EAGAIN: "let it start more processes and threads: ulimit -u, or pids.max of its container; then run again",
    errno.ENOMEM: "give it more memory; then run again",
}


def limit_met(error: BaseException, place: str = "") -> TidemarkError | None:
    """Translate an error that says this machine ran out of a resource; None for any other error.

    `place` names the file or folder if `error` does not."""
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, MemoryError):
        number = errno.ENOMEM
    elif isinstance(error, RuntimeError) and "start new thread" in str(error):  # it has no errno
        number = errno.EAGAIN
    if number in MORE_ROOM:
        named = getattr(error, "filename", None)
        place = os.fsdecode(named) if named else place or "the disk that it writes to"
        kind, what = (PermanentError, "a file grew too large") if number == errno.EFBIG else (DiskFullError, "no space")
        return kind(f"{what} at {place}: {os.strerror(number)}", hint=MORE_ROOM[number], subject=place)
    if number in MORE_OF_IT:
        return RetryableError(f"a limit of this machine was met: {os.strerror(number)}", hint=MORE_OF_IT[number])
    return None


@contextmanager
def hints_told() -> Iterator[None]:
    """Append an error's hint to its message, for what shows a message alone, as Spark does. Also a decorator."""
    try:
        yield
    except TidemarkError as error:
        if not error.hint:
            raise
        raise type(error)(f"{error.message} (hint: {error.hint})", hint=error.hint, subject=error.subject) from error


@contextmanager
def limits_named(place: Path | str) -> Iterator[None]:
    """Translate a resource limit of this machine that the block meets (`limit_met`). `place` is what the block writes.

    MemoryError passes through: `engines.worker` limits the memory of tasks and reports it.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        limit = limit_met(error, str(Path(place).absolute()))
        if limit is None:
            raise
        raise limit from error
