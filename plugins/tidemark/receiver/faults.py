"""Whose fault a failure is: a landing's, which costs it or its site alone, or this machine's, which ends the work."""

from __future__ import annotations

import errno

from tidemark.errors import (
    CorruptionError,
    LeaseLostError,
    PermanentError,
    RetryableError,
    SourceVanishedError,
    TidemarkError,
    limit_met,
)
from tidemark.stores.protocol import LANDING

_THEIR_NAMES = (errno.ENAMETOOLONG, errno.ELOOP, errno.EILSEQ, errno.EINVAL)
"""What a disk says of names that somebody else gave."""
_THE_DISKS = (errno.EROFS, errno.ESTALE, errno.ETIMEDOUT)
"""What a disk says of itself, whatever is asked of it."""


def require_theirs(error: Exception) -> Exception:
    """Return `error` if a landing's content caused it, which stops that landing only. Raise it if this machine is at fault.

    This machine's faults: its limits, what its disks, ledger and nodes refuse, a lost lease. Files in a landing have the
    rights and kinds that their sender gave them. That they cannot be read or written is no fault of this machine.
    """
    if isinstance(error, CorruptionError | SourceVanishedError):
        return error
    if isinstance(error, PermanentError | RetryableError) and error.subject.startswith(f"{LANDING}/"):
        refused = error.__cause__
        if isinstance(refused, OSError) and refused.errno not in _THE_DISKS and limit_met(refused) is None:
            return error
    if isinstance(error, TidemarkError) and type(error) is not TidemarkError:
        cause = error.__cause__
        if isinstance(error, LeaseLostError) or not (isinstance(cause, OSError) and cause.errno in _THEIR_NAMES):
            raise error
        return error
    limit = None if isinstance(error, MemoryError) else limit_met(error)
    if limit is not None:
        raise limit from error
    return error


def message_of(error: Exception) -> str:
    """Return the text that a person reads of a failure."""
    if isinstance(error, TidemarkError):
        return error.message
    return f"{type(error).__name__}: {error}".strip(": ")
