"""Whatever a site's folders and the ledger hold, comparing by folders says what comparing file by file does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemark.stores.agent.disk import pack_rows
from tidemark.stores.listing import Frame, PackedEntries, folders_of
from tidemark.stores.protocol import Entry
from tidemark.sync.select.diff import KnownFile, compare_listing

FOLDERS = ("s/d/0/1/", "s/d/0/2/", "s/d/0/", "s/d/0/1/x/", "s/d-e/0/1/", "")
NAMES = tuple(f"{n}-{n}-0-0.tsfile" for n in (1, 2, 10))
COMPANIONS = (".resource", ".mods", ".mods2", ".resource.temp", ".merge")

files = st.dictionaries(
    st.tuples(st.sampled_from(FOLDERS), st.sampled_from([*NAMES, "stray"])),
    st.tuples(
        st.sampled_from([100, 100, 100, 101]),  # size
        st.sampled_from([0, 7, 7, 7, 8]),  # inode
        st.sampled_from(
            [(".resource",)] * 6 + [(), (".mods", ".resource"), COMPANIONS[2:4], COMPANIONS[:3], COMPANIONS[4:]]
        ),
    ),
)
known = st.dictionaries(
    st.tuples(st.sampled_from(FOLDERS), st.sampled_from(NAMES)),
    st.tuples(
        st.sampled_from([100, 100, 100, 102]),
        st.sampled_from([0, 7, 7, 7]),
        st.sampled_from([0, 0, 0, 0, 5]),
        st.sampled_from(["acked", "acked", "acked", "acked", "waiting", "gone"]),
        st.sampled_from([None, "left out"]),
        st.sampled_from([0, 5, 5, 6]),
    ),
)


@given(files, known, st.booleans(), st.sampled_from(["", "left out"]))
def test_by_folders_or_one_by_one(site: dict, ledger: dict, same: bool, left_out: str) -> None:
    if same:  # mostly unchanged, as sites are
        site |= {key: (100, 7, (".resource",)) for key in [*ledger][1:] if key not in site}
    entries = _entries(site)
    rows = sorted(
        (
            KnownFile(folder + name, size, 5, inode, mods, state, 1, "d", why, mods_mtime)
            for (folder, name), (size, inode, mods, state, why, mods_mtime) in ledger.items()
        ),
        key=lambda row: row.path.encode(),
    )
    by_folders = compare_listing(_packed(entries), rows, left_out)
    listed, differing, absent, live = _one_by_one(entries, rows, left_out)
    assert (by_folders.listed, by_folders.known) == (listed, live)
    assert set(by_folders.differing) == differing
    assert [row.path for row in by_folders.absent] == absent
    assert by_folders.prefixes == {e.path[: e.path.rfind("/") + 1] for e in entries}


def _one_by_one(entries: list[Entry], rows: list[KnownFile], left_out: str) -> tuple[int, set[str], list[str], int]:
    """The same, file by file: (TsFiles listed, those that differ, rows whose file is not there, live rows)."""
    at = {e.path: e for e in entries}
    row_of = {row.path: row for row in rows}
    tsfiles = [e for e in entries if e.path.endswith(".tsfile")]
    differing = set()
    for entry in tsfiles:
        row = row_of.get(entry.path)
        beside = {p[len(entry.path) :] for p in at if p.startswith(entry.path) and p != entry.path}
        mods = [suffix for suffix in beside if suffix in (".mods", ".mods2")]
        plain = ".resource" in beside and not beside - {".resource", ".mods", ".mods2"} and len(mods) < 2
        same = row is not None and (row.size, row.mtime) == (entry.size, entry.mtime)
        same = same and (not row.inode or not entry.inode or row.inode == entry.inode)
        acked = row is not None and row.state == "acked" and row.mods_size == sum(at[entry.path + m].size for m in mods)
        acked = acked and (not mods or row is None or row.mods_mtime in (0, at[entry.path + mods[0]].mtime))
        passed_over = row is not None and row.state == "waiting" and bool(left_out) and row.reason == left_out
        if not (plain and same and (acked or passed_over)):
            differing.add(entry.path)
    absent = [row.path for row in rows if row.state != "gone" and row.path not in at]
    return len(tsfiles), differing, absent, sum(row.state != "gone" for row in rows)


def _entries(site: dict) -> list[Entry]:
    found = []
    for (folder, name), (size, inode, companions) in site.items():
        found.append(Entry(folder + name, size, 5, inode))
        if name != "stray":
            found += [Entry(folder + name + suffix, 5, 5, 9) for suffix in companions]
    return sorted(found, key=lambda e: e.path.encode())


def _packed(entries: list[Entry]) -> PackedEntries:
    frames = []
    for f in folders_of(entries):
        rows = list(zip(f.names, f.sizes, f.mtimes, f.inodes, strict=True))
        frames.append(Frame([(f.prefix, len(rows))], pack_rows(rows), compressed=False))
    return PackedEntries(frames)
