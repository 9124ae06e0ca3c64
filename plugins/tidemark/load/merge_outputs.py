"""From what the tasks of a group staged to the rows of the catalog: places, devices, accounts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemark.formats.layout import folder_name
from tidemark.ledger.receiver.catalog import CatalogDevice, CatalogFile
from tidemark.ledger.receiver.merges import Account, MergedFile
from tidemark.load.merge_plan import Group
from tidemark.load.merge_task import MergeOutcome, Staged
from tidemark.load.overlay import NOTHING, Counts


@dataclass(frozen=True)
class Output:
    """A staged file and the row it becomes; the row's location is where the file goes."""

    staged: Staged
    row: MergedFile


def outputs_of(group: Group, outcomes: Sequence[MergeOutcome], name: str, at: float) -> list[Output]:
    """The outputs of a group in the order of its tasks. `name` makes their names unique; `at` in seconds since 1970.

    Points of series that left nothing to write are accounted for in the first output, so that over the group the accounts
    add up to all points of its sources.
    """
    unplaced = sum((outcome.unplaced for outcome in outcomes), NOTHING)
    staged = [one for outcome in sorted(outcomes, key=lambda o: o.number) for one in outcome.staged]
    return [
        Output(one, _row(group, one, f"{name}-{number}", at, unplaced if number == 0 else NOTHING))
        for number, one in enumerate(staged)
    ]


def _row(group: Group, staged: Staged, name: str, at: float, unplaced: Counts) -> MergedFile:
    first = group.units[0].file
    folder = f"data/{folder_name(first.database)}/{staged.partition}"
    file = CatalogFile(
        receiver=first.receiver,
        site_id=first.site_id,
        role="merged",
        path="",
        generation=0,
        database=first.database,
        model=staged.model,
        format=4,
        partition_from=staged.partition,
        partition_to=staged.partition,
        location=f"{folder}/{first.site_id[:8]}-{staged.sha256[:12]}-merged-{name}.tsfile",
        sha256=staged.sha256,
        size=staged.size,
        mods_location="",
        mods_sha256="",
        points=staged.points,
        rank=group.rank,
        marked=first.marked if first.kept else None,
        created=at,
    )
    devices = tuple(CatalogDevice(*device) for device in staged.devices)
    counts = staged.counts + unplaced
    account = Account(counts.points_in, counts.points_out, counts.overwritten, counts.deleted)
    return MergedFile(file, devices, account)
