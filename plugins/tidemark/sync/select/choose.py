"""Decide one run's selection: which changed files are sent and which vanished files are reported.

Pure. `select_files` reads everything it needs: the changes, the extents, what the ledger acknowledged.
Source: DESIGN §3, CONTRACT §2 (include, exclude, deletes).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from tidemark.errors import PlanOutOfDateError
from tidemark.formats.landing import InventoryEntry
from tidemark.ledger.sender.links import Seen
from tidemark.ledger.sender.runs import DROP, HELD, MODS, PLANNED, SEND, SUPERSEDE, RunItem, item_bytes
from tidemark.settings.model import LinkSettings
from tidemark.sync.select.diff import Change, Changes, Kind, KnownFile, written_anew
from tidemark.sync.select.vanished import Gone, Limits, Live, Verdict, View, find_covers, judge_vanished
from tidemark.sync.session import Options, Plan
from tidemark.tsfiles.companions.resource import ANY_DEVICE, Extent
from tidemark.tsfiles.devices import pattern_matches
from tidemark.tsfiles.names import parse_former_path
from tidemark.tsfiles.sealed import SealedFile

ADOPTED = "adopted: brought to the receiving end before Tidemark, by another tool"


@dataclass(frozen=True)
class Facts:
    """What was read for one selection.

    `extents`: of changed files, from their .resource ((): unreadable). `known_extents`: of vanished files and of the live
    files next to them, from the ledger. `same`: changed files whose digest is still the acknowledged one. `same_mods`:
    those whose mods' digest is. `approved`: drops that the operator approved. `unreadable`: unreadable .resource
    files, and why. `states`: of the paths of a given plan.
    """

    changes: Changes
    view: View
    extents: Mapping[str, Extent] = field(default_factory=dict)
    known_extents: Mapping[str, Extent] = field(default_factory=dict)
    same: Collection[str] = ()
    same_mods: Collection[str] = ()
    approved: Collection[str] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Selection:
    """What a run will do, before anything is done. `files`: the sealed files of the send and mods items."""

    items: tuple[RunItem, ...] = ()
    files: tuple[SealedFile, ...] = ()
    seen: tuple[Seen, ...] = ()  # rows to wait: new, changed, excluded
    adopted: tuple[tuple[Seen, int], ...] = ()  # known from now on without being sent, with the size of their mods
    touched: tuple[Seen, ...] = ()  # the same content under other times or inode
    extents: Mapping[str, Extent] = field(default_factory=dict)
    added: tuple[InventoryEntry, ...] = ()
    removed: tuple[str, ...] = ()
    held: tuple[tuple[str, int], ...] = ()  # path and generation: reported as vanished from this run on, their drops wait
    back: tuple[str, ...] = ()  # reported as vanished by an earlier run, and listed again
    forgotten: tuple[str, ...] = ()  # vanished before they were ever acknowledged
    skipped: Mapping[str, str] = field(default_factory=dict)
    guard: str = ""  # why drops are held
    lost: bool = False  # a folder or disk of the site seems to be missing: the held files may still exist
    approved: bool = False  # it contains drops that the operator approved
    waiting: tuple[RunItem, ...] = ()  # sent once a compaction has ended
    whole: bool = True  # the listing showed all of the site


def left_out_reason(link: LinkSettings) -> str:
    """Return the ledger's reason for files that the link's patterns exclude. Other patterns give another reason."""
    patterns = "\n".join(("include", *link.include, "exclude", *link.exclude))
    return f"excluded by the link's device patterns ({hashlib.sha256(patterns.encode()).hexdigest()[:8]})"


def has_wanted_device(extent: Extent, include: Sequence[str], exclude: Sequence[str]) -> bool:
    """Whether any device of a file matches, so that the whole file is sent. Unknown devices count as matching."""
    if not extent:
        return True
    return any(
        device == ANY_DEVICE
        or (any(pattern_matches(p, device) for p in include) and not any(pattern_matches(p, device) for p in exclude))
        for device, _, _ in extent
    )


def _is_file_wanted(file: SealedFile, facts: Facts, link: LinkSettings) -> bool:
    return has_wanted_device(facts.extents.get(file.entry.path, ()), link.include, link.exclude)


def choose_files(facts: Facts, link: LinkSettings, data: Sequence[str], options: Options) -> Selection:
    """Decide the selection of a run. Raises PlanOutOfDateError if a given plan does not fit the site."""
    changes = [_recognize_touched(change, facts) for change in facts.changes.changed]
    if options.send_all_again:  # it is unknown whether the others changed: the next run compares them
        changes = [change for change in changes if _is_asked(change.file.entry.path, options)]
    left_out = left_out_reason(link)
    seen: list[Seen] = []
    adopted: list[tuple[Seen, int]] = []
    sending: list[tuple[SealedFile, RunItem]] = []
    for change in changes:
        if change.kind is Kind.MODS:
            sending.append((change.file, _make_item(change, MODS)))
        elif change.kind is Kind.NEW and change.file.entry.path in options.adopted:
            adopted.append((_make_seen(change.file, ADOPTED), _mods_size(change.file)))
        elif change.kind is not Kind.SAME:
            sent = _is_file_wanted(change.file, facts, link)
            seen.append(_make_seen(change.file, None if sent else left_out))
            if sent:
                sending.append((change.file, _make_item(change, SEND)))
    extents = {**facts.known_extents, **facts.extents}
    told, forgotten, verdict = _decide_vanished(facts, [f for f, i in sending if i.action == SEND], link, data, options)
    sending = [(file, item) for file, item in sending if _is_asked(item.path, options)]
    back = [c for c in changes if c.kind in (Kind.SAME, Kind.MODS) and c.row is not None and c.row.state == "held"]
    told_of = [*seen, *(file for file, _ in adopted), *(_make_seen(c.file, None) for c in back)]
    rows = {row.path: row for row in facts.changes.vanished}
    held = [i for i in told if i.state == HELD and not verdict.away and rows[i.path].state == "acked"]
    selection = Selection(
        items=(*(item for _, item in sending), *told),
        files=tuple(file for file, _ in sending),
        seen=tuple(seen),
        touched=tuple(_seen_of_touched(c) for c in changes if c.kind is Kind.SAME or c.file.entry.path in facts.same),
        adopted=tuple(adopted),
        extents={s.path: extents.get(s.path, ()) for s in told_of},
        added=tuple(InventoryEntry(s.path, s.size, s.mtime, extents.get(s.path, ()), s.reason or "") for s in told_of),
        removed=tuple(sorted([*forgotten, *(i.path for i in told if i.state != HELD), *(i.path for i in held)])),
        held=tuple(sorted((i.path, i.generation) for i in held)),
        back=tuple(c.file.entry.path for c in back),
        forgotten=forgotten,
        skipped={**dict(facts.changes.skipped), **facts.unreadable},
        guard=verdict.reason,
        lost=verdict.away,
        approved=any(path in facts.approved for path in verdict.told),
        waiting=tuple(_make_item(c, SEND) for c in facts.changes.waiting if _is_file_wanted(c.file, facts, link)),
    )
    if options.plan:
        _require_plan(options.plan, selection, facts)
    return selection


def exclude_paths(selection: Selection, paths: Collection[str]) -> Selection:
    """Return the selection without `paths`, files that changed in every try to link them: the next run sends them."""
    return replace(
        selection,
        items=tuple(i for i in selection.items if i.path not in paths),
        files=tuple(f for f in selection.files if f.entry.path not in paths),
    )


def _recognize_touched(change: Change, facts: Facts) -> Change:
    """Return the change as MODS or SAME if the file's digest is the acknowledged one, so that it was only touched."""
    path, row = change.file.entry.path, change.row
    if row is None or _mods_size(change.file) < row.mods_size:
        return change
    if path not in facts.same and (change.kind is not Kind.MODS or path not in facts.same_mods):
        return change
    grown = _mods_size(change.file) > row.mods_size
    anew = written_anew(change.file.mods, row.mods_mtime) and path not in facts.same_mods
    return change._replace(kind=Kind.MODS if grown or anew else Kind.SAME)


def _decide_vanished(
    facts: Facts, sending: Sequence[SealedFile], link: LinkSettings, data: Sequence[str], options: Options
) -> tuple[list[RunItem], tuple[str, ...], Verdict]:
    """Return (items reported or held, never acknowledged paths to forget, the guard's verdict)."""
    rows = [row for row in facts.changes.vanished if _is_asked(row.path, options)]
    if not rows:
        return [], (), Verdict(())
    new = {f.entry.path for f in sending}
    extents = {**facts.known_extents, **{path: extent for path, extent in facts.extents.items() if extent}}
    there = {f.entry.path: f for f in (*(c.file for c in facts.changes.changed), *facts.changes.live)}
    live = [Live(f.name, extents.get(path, ())) for path, f in there.items()]
    live = [file for file in live if has_wanted_device(file.extent, link.include, link.exclude)]
    gone = [Gone(r.path, parse_former_path(r.path, data), facts.known_extents.get(r.path, ())) for r in rows]
    by = find_covers(gone, live)
    limits = Limits(link.deletes == "apply", link.delete_limit_files, link.delete_limit_share)
    there_again = {file.name[1:] for file in live}
    moved = {one.path for one in gone if one.name and one.name[1:] in there_again}
    explained = moved | {path for path, paths in by.items() if not new.isdisjoint(paths)}
    verdict = judge_vanished([r.path for r in rows], facts.view, limits, facts.approved, explained)
    held = frozenset(verdict.held)
    forgotten = tuple(r.path for r in rows if r.generation == 0 and r.path not in held)
    told = [_gone_item(r, by[r.path], verdict.reason if r.path in held else "") for r in rows if r.generation]
    return told, forgotten, verdict


def _gone_item(row: KnownFile, by: tuple[str, ...], held: str) -> RunItem:
    return RunItem(
        path=row.path,
        action=SUPERSEDE if by and not held else DROP,  # an approval releases drops
        state=HELD if held else PLANNED,
        generation=row.generation,
        covered_by=() if held else by,
        reason=held or None,
    )


def _make_item(change: Change, action: str) -> RunItem:
    file, row = change.file, change.row
    return RunItem(
        path=file.entry.path,
        action=action,
        state=PLANNED,
        size=file.entry.size,
        mtime=file.entry.mtime,
        inode=file.entry.inode,
        mods_path=file.mods.path if file.mods else "",
        mods_size=_mods_size(file),
        mods_mtime=_mods_mtime(file),
        resource_size=file.resource_bytes,
        generation=(row.generation if row else 0) + 1,
        sha256=row.sha256 if row and action == MODS else None,
    )


def _make_seen(file: SealedFile, reason: str | None) -> Seen:
    return Seen(file.entry.path, file.entry.size, file.entry.mtime, file.entry.inode, reason, _mods_mtime(file))


def _seen_of_touched(change: Change) -> Seen:
    """Return the ledger row of a touched file. Mods that are sent keep their acknowledged time until they have landed: after
    a failed run they must differ again."""
    seen = _make_seen(change.file, None)
    known = change.row.mods_mtime if change.row else 0
    return seen if change.kind is Kind.SAME else seen._replace(mods_mtime=known)


def _mods_size(file: SealedFile) -> int:
    return file.mods.size if file.mods else 0


def _is_asked(path: str, options: Options) -> bool:
    """Whether `path` is in the scope of a run with these options."""
    if options.exactly is not None:
        return path in options.exactly
    if options.plan:
        return options.plan.names_path(path)
    return not options.only_paths or any(fnmatchcase(path, glob) for glob in options.only_paths)


def _require_plan(plan: Plan, selection: Selection, facts: Facts) -> None:
    """Raise PlanOutOfDateError if the selection lacks something of the plan that is not done already. Files that are not in
    the plan are left to the next run."""
    changes = facts.changes
    open_paths = {*(c.file.entry.path for c in (*changes.changed, *changes.waiting)), *changes.unjudged}
    open_paths |= {row.path for row in changes.vanished}
    done = {(path, state) for path, state in facts.states.items() if path not in open_paths}
    sends = {i.path: item_bytes(i) for i in selection.items if i.action in (SEND, MODS)}
    gone = {i.path: i.action for i in selection.items if i.action in (DROP, SUPERSEDE)}
    wrong = [path for path, size in plan.send if sends.get(path) != size and (path, "acked") not in done]
    told = [*((path, DROP) for path in plan.drop), *((path, SUPERSEDE) for path in plan.superseded)]
    wrong += [path for path, action in told if gone.get(path) != action and (path, "gone") not in done]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise PlanOutOfDateError(
            f"the site has changed since the plan was made: {', '.join(wrong[:3])}{more}",
            hint="make a new plan: ./tidemark plan LINK --out FILE",
            subject=wrong[0],
        )


def _mods_mtime(file: SealedFile) -> int:
    return file.mods.mtime if file.mods else 0
