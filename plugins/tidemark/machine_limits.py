"""What this machine lacks, told apart from every other fault: room on a disk, handles, processes, memory.

One translation, for whatever met the limit: a verb, a task in a child process, the work on one landing. Stores translate
what a far end says themselves (`stores.translation`), with the same hints.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemark.errors import DiskFullError, PermanentError, RetryableError, TidemarkError

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
    """`error` as one of ours where it says that this machine ran out of something, else None. `place`: where, if it does not
    say itself."""
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, MemoryError):
        number = errno.ENOMEM
    elif isinstance(error, RuntimeError) and "start new thread" in str(error):  # Python tells no number
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
def limits_named(place: Path | str) -> Iterator[None]:
    """Where the block meets a limit of this machine, that is told as ours, of `place`, which it writes.

    MemoryError passes: whoever limits the memory of a task says so himself (`flows.engine_worker`).
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        limit = limit_met(error, str(Path(place).absolute()))
        if limit is None:
            raise
        raise limit from error
