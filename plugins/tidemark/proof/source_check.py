"""The site's own bytes against what was acknowledged: by digest, made where the bytes lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidemark.ledger.sql import Row
from tidemark.proof.differences import SOURCE, Difference
from tidemark.stores.agent.disk import UNLISTED
from tidemark.stores.listing import classify_files, told
from tidemark.stores.protocol import Range, Store
from tidemark.sync.notes import LET_LIST
from tidemark.tsfiles.names import SourceName
from tidemark.tsfiles.sealed import SealedFile

_ROTTEN = "restore it at the site, or touch it there so that the next sync sends it as it is"
_AS_IT_IS = "restore it at the site, or send it as it is: ./tidemark verify --repair"


@dataclass(frozen=True)
class SourceFile:
    """A sealed file of the site that is what was acknowledged. `mods_size`: the acknowledged prefix of its mods."""

    path: str
    size: int
    name: SourceName
    mods_path: str
    mods_size: int
    sha256: str
    mods_sha256: str


@dataclass(frozen=True)
class SourceChecked:
    """`same`: path → file, verified; `pending`: files that changed or came since the newest run, and those that went;
    `other_mods`: differing files whose TsFile is the acknowledged one: only their deletions were written anew; `adopted`:
    files known without ever being sent, of which there is no digest; `sealed`: paths of all sealed files there."""

    same: Mapping[str, SourceFile]
    differences: tuple[Difference, ...]
    checked: int
    pending: int
    other_mods: frozenset[str] = frozenset()
    adopted: int = 0
    sealed: frozenset[str] = frozenset()


def check_source(store: Store, site: str, data: Sequence[str], acked: Sequence[Row]) -> SourceChecked:
    """Compare every acknowledged file that looks unchanged (size, mtime). Reads every byte at the site."""
    listing = store.list_files(data)
    sealed = {f.entry.path: f for f in classify_files(store, listing.entries, data).sealed}
    known = {r["path"]: r for r in acked}
    unchanged = [path for path, r in known.items() if path in sealed and _unchanged(sealed[path], r)]
    sent = [path for path in unchanged if int(known[path]["generation"])]
    asked = [_source_file(sealed[path], known[path]) for path in sent]
    ranges = [Range(f.path, 0, f.size) for f in asked]
    ranges += [Range(f.mods_path, 0, f.mods_size) for f in asked if f.mods_size]
    found = dict(zip(ranges, store.digests(ranges), strict=True))
    same: dict[str, SourceFile] = {}
    differences = [
        Difference(SOURCE, site, path, "source", f"{path} {why}: nothing there can be compared", next=LET_LIST)
        for path, why in told(listing.odd, data)
        if why.startswith(UNLISTED)
    ]
    other_mods = set()
    for file in asked:
        wrong = _wrong(file.path, file.sha256, found[Range(file.path, 0, file.size)])
        if file.mods_size and not wrong:
            wrong = _wrong(file.mods_path, file.mods_sha256, found[Range(file.mods_path, 0, file.mods_size)])
            other_mods |= {file.path} if wrong else set()
        if wrong:
            advice = _AS_IT_IS if file.path in other_mods else _ROTTEN
            differences.append(Difference(SOURCE, site, file.path, "source", wrong, next=advice))
        else:
            same[file.path] = file
    pending = len(sealed.keys() - set(unchanged)) + len(known.keys() - sealed.keys())
    adopted = len(unchanged) - len(sent)
    return SourceChecked(same, tuple(differences), len(ranges), pending, frozenset(other_mods), adopted, frozenset(sealed))


def _unchanged(file: SealedFile, row: Row) -> bool:
    size, mtime = (file.mods.size, file.mods.mtime) if file.mods else (0, 0)
    if size < int(row["mods_size"]) or (size == int(row["mods_size"]) and int(row["mods_mtime"]) not in (0, mtime)):
        return False
    return (file.entry.size, file.entry.mtime) == (int(row["size"]), int(row["mtime"]))


def _source_file(file: SealedFile, row: Row) -> SourceFile:
    return SourceFile(
        path=file.entry.path,
        size=int(row["size"]),
        name=file.name,
        mods_path=file.mods.path if file.mods else "",
        mods_size=int(row["mods_size"]) if file.mods else 0,
        sha256=row["sha256"],
        mods_sha256=row["mods_sha256"],
    )


def _wrong(path: str, recorded: str, found: str | None) -> str:
    if found == recorded:
        return ""
    if found is None:
        return f"{path} went away while it was read"
    return f"{path} has digest {found[:12]}… under the same size and time, {recorded[:12]}… was acknowledged"
