"""Hold back changes in time partitions in which a compaction runs, or was cut short by a kill of the server. Pure.

IoTDB names the outputs one after the other, and then removes the sources one after the other. In between, the folder
shows points twice. After a kill it does so until the server starts again and either finishes or removes the outputs.
So in such a partition no file is reported as vanished, and no output of a compaction is sent. Files written by ingestion
are sent, and so are mods of files that the receiver has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tidemark.stores.protocol import Entry
from tidemark.sync.select.diff import Change, Changes, Kind, same_content
from tidemark.sync.session import Partition, partition_of
from tidemark.tsfiles.names import SUFFIX, is_compacted, parse_place, parse_source_path
from tidemark.tsfiles.sealed import UNTOLD, WAITS, SealedFile, shows_compaction

_WRITTEN = "-0-0" + SUFFIX  # how the name ends of a file that no compaction made


def partitions_at_work(entries: Iterable[Entry], data_folders: Sequence[str]) -> frozenset[Partition]:
    """Return the partitions with a folder that holds a file which exists only while a compaction runs."""
    data = tuple(data_folders)
    folders = {entry.path.rpartition("/")[0] for entry in entries if shows_compaction(entry.path)}
    return frozenset(place[1:] for folder in folders if (place := parse_place(folder, data)))


def partitions_of_outputs_passed_over(
    skipped: Iterable[tuple[str, str]], data_folders: Sequence[str]
) -> frozenset[Partition]:
    """Return the partitions of skipped files that a compaction made, judged by their names. The points of a vanished file of
    that partition may be in the skipped file alone."""
    paths = (path for path, _ in skipped if path.endswith(SUFFIX) and not path.endswith(_WRITTEN))
    names = (name for path in paths if (name := parse_source_path(path, data_folders)) and is_compacted(name.name))
    return frozenset((name.database, name.region, name.partition) for name in names)


def new_outputs(found: Changes, data_folders: Sequence[str]) -> list[Change]:
    """Return the changes whose content the receiver never had and whose name says that a compaction made it.

    Such a name has a count above 0. An insertion compaction leaves another form: in `sequence`, the version of a late file
    under another creation time.
    """
    late: dict[tuple[object, ...], set[int]] = defaultdict(set)
    gone = (name for row in found.vanished if (name := parse_source_path(row.path, data_folders)))
    there = (file.name for file in (*(c.file for c in found.changed), *found.live) if file.place.unsequence)
    for name in (*there, *gone):
        if name.unsequence:
            late[(*name[2:5], name.name.version)].add(name.name.created)

    def is_output(file: SealedFile) -> bool:
        if file.entry.path.endswith(_WRITTEN) and (not late or file.place.unsequence):
            return False  # nearly all files end here: keep this test cheap
        name = file.name
        moved = not name.unsequence and late.get((*name[2:5], name.name.version), set()) - {name.name.created}
        return is_compacted(name.name) or bool(moved)

    return [change for change in found.changed if is_output(change.file) and _is_new(change)]


def hold_back(found: Changes, at_work: frozenset[Partition], data_folders: Sequence[str]) -> Changes:
    """Return the changes without those that wait for a compaction; these are added to `skipped` with the reason."""
    if not at_work:
        return found
    made = [c for c in new_outputs(found, data_folders) if partition_of(c.file.entry.path, data_folders) in at_work]
    paths = {change.file.entry.path for change in made}
    untold = {row.path for row in found.vanished if partition_of(row.path, data_folders) in at_work}
    reasons = [*((path, WAITS) for path in sorted(paths)), *((path, UNTOLD) for path in sorted(untold))]
    return replace(
        found,
        changed=tuple(change for change in found.changed if change.file.entry.path not in paths),
        vanished=tuple(row for row in found.vanished if row.path not in untold),
        unjudged=tuple(sorted([*found.unjudged, *untold])),
        skipped=(*found.skipped, *reasons),
        waiting=tuple(made),
    )


def _is_new(change: Change) -> bool:
    if change.kind is Kind.CONTENT and change.row is not None:  # the same content is sent again on request
        return not same_content(change.file.entry, change.row)
    return change.kind is Kind.NEW
