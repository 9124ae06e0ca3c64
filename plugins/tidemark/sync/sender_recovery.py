"""What an original Sync Tool's sender knows, after any crash of it: the seed's recovery steps 1 to 9, done right.

Pure. `last_local_files.txt` is the acknowledged set, `sync.log` its redo log, `current_local_files.txt` the atomic
replacement. Differences from the original, on purpose: entries of the log are applied in their order (the original
collects two sets and lost "sent, then deleted", R5) and a torn last line is dropped (the original keeps a garbage path
and later tells the receiver to delete it, R6). Source: seed 000 "Recovery module", research/iotdb.md §1.3, §1.5.
"""

from __future__ import annotations

from collections.abc import Sequence

DELETED = "sync deleted file names start"
ADDED = "sync tsfile start"
_OTHER_MARKERS = frozenset({"sync start", "sync end", "sync deleted file names end", "sync tsfile end"})


def acknowledged(last: str | None, current: str | None, log: str | None) -> frozenset[str]:
    """The files the receiver has, from the contents of the three files (None: absent).

    Entries of the log may be absolute paths, bare file names or names without their suffix; the last two mean the file
    of that name in the list.
    """
    if last is None and current is not None:
        return frozenset(_listed(current))  # crashed between "delete last" and "rename current": current is whole
    known = dict.fromkeys(_listed(last or ""))
    deleting: bool | None = None
    for line in _lines(log or ""):
        if line in (DELETED, ADDED):
            deleting = line == DELETED
        elif line in _OTHER_MARKERS:
            deleting = None
        elif deleting is not None:
            _apply(line, deleting, known)
    return frozenset(known)


def _apply(entry: str, deleting: bool, known: dict[str, None]) -> None:
    if not deleting:
        known[entry] = None
        return
    for path in [p for p in known if same_file(p, entry)]:
        del known[path]


def same_file(path: str, entry: str) -> bool:
    """Whether a log entry names `path`: the path itself, its file name, or that without ".tsfile"."""
    if path == entry:
        return True
    name = path.rpartition("/")[2]
    return "/" not in entry and entry in (name, name.removesuffix(".tsfile"))


def _listed(text: str) -> Sequence[str]:
    """The paths of a list: it was renamed into place whole, so its last line counts without a newline too."""
    return _lines(text + "\n")


def _lines(text: str) -> Sequence[str]:
    """Whole lines only: what follows the last newline was being written when the sender died."""
    return [line.strip("\r") for line in text.split("\n")[:-1] if line.strip()]
