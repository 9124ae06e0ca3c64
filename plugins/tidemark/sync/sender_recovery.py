"""What an original Sync Tool's sender knows, after any crash of it: the seed's recovery steps 1 to 9, done right.

Pure. `last_local_files.txt` is the acknowledged set, `sync.log` its redo log, `current_local_files.txt` the atomic
replacement. Differences from the original, on purpose: entries of the log are applied in their order (the original
collects two sets and lost "sent, then deleted", R5) and a torn last line is dropped (the original keeps a garbage path
and later tells the receiver to delete it, R6). Source: seed 000 "Recovery module", research/iotdb.md §1.3, §1.5.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

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


def matching(entries: Iterable[str], site_paths: Sequence[str]) -> frozenset[str]:
    """The site's files that the sender's list names; an entry that could mean two files names none (it is sent again).

    Entries are absolute paths of the sender's machine, where the same folders may lie under another root, or bare names.
    """
    by_tail: dict[str, list[str]] = defaultdict(list)
    for path in site_paths:
        for tail in {path, _below_kind(path), path.rpartition("/")[2]}:
            by_tail[tail].append(path)
    found = set()
    for entry in entries:
        name = entry if entry.endswith(".tsfile") else entry + ".tsfile"
        tails = (name, _below_kind(name)) if "/" in name else (name,)
        meant = next((by_tail[t] for t in tails if t in by_tail), [])
        if len(meant) == 1:
            found.add(meant[0])
    return frozenset(found)


def _below_kind(path: str) -> str:
    """`sequence/…` or `unsequence/…` of a path: the same on every machine. The path itself where it has neither."""
    parts = path.split("/")
    for at in range(len(parts) - 1, -1, -1):
        if parts[at] in ("sequence", "unsequence"):
            return "/".join(parts[at:])
    return path
