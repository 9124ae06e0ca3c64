"""What the newest listing of a site passed over, told before anybody misses it. Pure.

A folder that nobody could list may hold anything: a run does not end well with one. Other reasons (a symlink, a name that
is not UTF-8, a file that IoTDB marked as broken) are noted. What IoTDB's own work explains is no news.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from tidemark.stores.disk_rows import UNLISTED
from tidemark.tsfiles.sealed import AT_WORK

LET_LIST = "let the site's user list it (its mode, the disk's health); of a symlink name the folder that it leads to"
_TOLD_ELSEWHERE = ("in quarantine as ", "sent without its devices being known")  # sync.distrust, sync.selection
_OF_THE_DISK = "lost+found"  # root's alone, on every disk of its own


def unlisted(skipped: Mapping[str, str]) -> list[tuple[str, str]]:
    """(path, reason) of the folders and files among `skipped` {path: reason} of which nobody knows what is there."""
    found = ((path, why) for path, why in skipped.items() if why.startswith(UNLISTED) and not _beside_data(path))
    return sorted(found)


def notes(skipped: Mapping[str, str], link: str) -> tuple[str, ...]:
    """One sentence for each reason among `skipped` that a person should know."""
    grouped: dict[str, list[str]] = defaultdict(list)
    for path, why in sorted(skipped.items()):
        if not (why in AT_WORK or why.startswith((UNLISTED, *_TOLD_ELSEWHERE)) or _beside_data(path)):
            grouped[why.partition(" (")[0]].append(why)
    return tuple(
        f"{_files(len(reasons))} passed over: {reasons[0]}; ./tidemark plan {link} lists {'them' if reasons[1:] else 'it'}"
        for reasons in grouped.values()
    )


def _files(count: int) -> str:
    return f"{count:,} files are" if count > 1 else "1 file is"


def _beside_data(path: str) -> bool:
    """Hidden, as `.snapshot` folders of a file server are, or the disk's own: IoTDB keeps nothing there."""
    return any(part.startswith(".") or part == _OF_THE_DISK for part in path.split("/"))
