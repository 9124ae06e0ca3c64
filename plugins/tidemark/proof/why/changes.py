"""Explain a source of changes, a table of one, a gap, a transaction by its GTID, a task that reads changes, a sink."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tidemark.app import App
from tidemark.changes.bootstrap.state import GONE
from tidemark.changes.delivery.points import find_point
from tidemark.changes.sinks.show import show_sink
from tidemark.changes.sources.show import show_source, show_tasks_of
from tidemark.changes.sources.source import Source, find_source, name_bucket
from tidemark.changes.trust.gaps import OPEN, Gap, read_gaps
from tidemark.errors import NotFoundError
from tidemark.progress import format_count
from tidemark.proof.explanation import Explanation, format_time

GTID = re.compile(r"\d+-\d+-\d+|[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}(?::[a-z_][a-z0-9_]*)?:\d+")
PREFIXES = ("source:", "table:", "gap:", "task:", "sink:")
_HELD = "the store keeps what the task still has to read, up to retain_bytes"
_WAIT_FOR_GAP = "nothing is appended behind it, and the server goes on purging"


def names_change(app: App, subject: str) -> bool:
    """Whether a subject of `why` is one of changes."""
    return subject.startswith(PREFIXES) or (bool(app.settings.sources) and GTID.fullmatch(subject) is not None)


def explain_change(app: App, subject: str) -> Explanation:
    """Explain `source:NAME`, `table:DATABASE.TABLE`, `gap:ID` (`gap:SOURCE/ID` where several sources have one), `task:NAME`,
    `sink:NAME`, or a GTID.

    Raises NotFoundError where no source has it.
    """
    kind, _, name = subject.partition(":")
    if GTID.fullmatch(subject):
        return _explain_gtid(app, subject)
    if kind == "gap":
        return _explain_gap(app, subject, name)
    if kind == "table":
        return _explain_table(app, subject, name)
    if kind == "task" and name not in app.settings.sinks:
        shown = {task["name"]: task for task in show_tasks_of(app)}
        if name not in shown:
            told = ", ".join(shown) or "none"
            raise NotFoundError(f"no task named {name!r}; there is: {told}", hint="./tidemark changes show", subject=name)
        return explain_task(subject, shown[name])
    if kind in ("sink", "task"):
        sink = show_sink(app, name)
        tasks = [task for task in show_tasks_of(app, sink["source"]) if task["name"] == name]
        return explain_sink(subject, sink, tasks[0] if tasks else None)
    return explain_source(subject, show_source(find_source(app, name)))


def explain_source(subject: str, shown: dict[str, Any]) -> Explanation:
    """Explain a source by what `changes show` says of it. Pure."""
    name, state = shown["name"], shown["state"]
    evidence = [f"server {shown['server'] or 'none: log files are given'}"]
    if shown.get("away"):
        evidence.append(f"the server does not answer: {shown['away']}")
    if shown.get("position"):
        evidence.append(f"the store ends at {shown['position']}, {shown['newest']}, {shown['newest_time']}")
        evidence.append(f"lag {shown['lag_seconds']:,.0f} s")
    if shown.get("headroom_hours") is not None:
        evidence.append(f"headroom {shown['headroom_hours']:,.1f} hours")
    gaps = [gap for gap in shown["gaps"] if gap["state"] == OPEN]
    doctor, capture = f"./tidemark changes doctor {name}", f"./tidemark changes capture {name}"
    if gaps:
        told = f"the server purged what follows {gaps[0]['from']} before it was captured"
        return Explanation(subject, "source", "gap", told, tuple(evidence), f"./tidemark why gap:{name}/{gaps[0]['id']}",
                           _WAIT_FOR_GAP)  # fmt: skip
    if shown.get("away"):
        cause, wait = "its server does not answer", "the next run tries again; what is purged meanwhile is lost"
        return Explanation(subject, "source", "away", cause, tuple(evidence), doctor, wait)
    if shown.get("headroom_red"):
        cause = "less than half of the time is left until the server purges what comes next"
        return Explanation(subject, "source", "late", cause, tuple(evidence), capture, "it becomes a gap")
    if state == "new":
        return Explanation(
            subject, "source", state, "nothing was captured yet", tuple(evidence), capture, "its schedule starts"
        )
    cause = "a capture is at work" if state == "capturing" else "the store has everything up to its last capture"
    return Explanation(subject, "source", state, cause, tuple(evidence), "", "its schedule starts the next run", final=True)


def explain_task(subject: str, shown: dict[str, Any]) -> Explanation:
    """Explain a task by what `changes show` says of it. Pure."""
    name, source, points = shown["name"], shown["source"], shown["points"]
    late = [point for point in points if point["lag_seconds"]]
    evidence = [f"{shown['members']} members read {shown['shards']} shards of source {source}"]
    if late:
        last = max(late, key=lambda point: point["lag_seconds"])
        holder = last["holder"] or "nobody"
        evidence.append(f"shard {last['shard']} is at {last['point']}, {last['lag_seconds']:,.0f} s late, read by {holder}")
    evidence += [
        f"{format_count(one['batches'], 'batch', 'batches')} that it gave up lie in {one['place']} of {one['host']}"
        for one in shown["dead_letters"]
    ]
    if overrun := [str(point["shard"]) for point in points if point.get("overrun")]:
        cause = f"retention took changes that shard {', '.join(overrun)} had not read: they are not in the store any more"
        following = f"./tidemark changes rewind {name} --to earliest --shard {' '.join(overrun)}"
        return Explanation(subject, "task", "overrun", cause, tuple(evidence), following, "its members end with 31")
    if trouble := [point["trouble"] for point in points if point.get("trouble")]:
        following = f"capture source {source} on, or ./tidemark changes rewind {name} --to POINT"
        return Explanation(subject, "task", "refused", trouble[0], tuple(evidence), following, "its members end with 6")
    if not late:
        cause = "every shard has all that the store has"
        return Explanation(subject, "task", "current", cause, tuple(evidence), "", _HELD, final=True)
    if not shown["members"]:
        following = f"./tidemark changes consume {name} --source {source} --out DIR, or start the program that subscribes"
        return Explanation(subject, "task", "idle", "no member reads it now", tuple(evidence), following, _HELD)
    cause = f"{len(late)} of {len(points)} shards have more to read"
    return Explanation(subject, "task", "late", cause, tuple(evidence), "start more members: they share the shards", _HELD)


def explain_sink(subject: str, shown: dict[str, Any], task: dict[str, Any] | None) -> Explanation:
    """Explain a sink by what the ledger knows of it, and of its task as `changes show` tells it. Pure."""
    name, source = shown["name"], shown["source"]
    evidence = [f"{shown['kind']} of source {source} in {shown['target']}"]
    deliver = f"./tidemark changes deliver {name}"
    if task is None:
        return Explanation(subject, "sink", "new", "it was never run", tuple(evidence), deliver, "its DAG runs it")
    points = task["points"]
    evidence.append(f"at {points[0]['point']}, {task['lag_seconds']:,.0f} s late")
    if shown["batch"] and not shown["batch"]["written"]:
        batch = shown["batch"]
        evidence.append(f"batch {batch['number']}, {batch['from']} to {batch['to']}, is on its way, or its run died")
    evidence += [f"{table['name']} is {table['state']}: {table['why']}" for table in shown["tables"] if table["why"]]
    if any(point.get("overrun") for point in points):
        cause = "retention took changes that it had not written: they are not in the store any more"
        following = (
            f"./tidemark changes rewind {name} --to earliest, then ./tidemark changes bootstrap {source} --again --tables …"
        )
        return Explanation(subject, "sink", "overrun", cause, tuple(evidence), following, "each run ends with 31")
    if trouble := [point["trouble"] for point in points if point.get("trouble")]:
        return Explanation(subject, "sink", "refused", trouble[0], tuple(evidence), deliver, "each run ends with 6")
    again = f"./tidemark changes bootstrap {source} --again --tables "
    for state, cause in (("stopped", "tables are not written any more"), ("partial", "rows of tables may be missing")):
        if named := [table["name"] for table in shown["tables"] if table["state"] == state]:
            told = f"{cause}: {', '.join(named)}"
            return Explanation(subject, "sink", state, told, tuple(evidence), again + " ".join(named), "the others go on")
    if task["lag_seconds"]:
        cause = "the store has more than it wrote"
        return Explanation(subject, "sink", "late", cause, tuple(evidence), deliver, "the store keeps the rest")
    cause = "it has all that the store has"
    return Explanation(subject, "sink", "current", cause, tuple(evidence), "", "its DAG runs it", final=True)


def _sources(app: App) -> Iterator[Source]:
    return (find_source(app, name) for name in sorted(app.settings.sources))


def _explain_gap(app: App, subject: str, name: str) -> Explanation:
    wanted, _, number = name.rpartition("/")
    found = [
        (source, gap)
        for source in _sources(app)
        if wanted in ("", source.name)
        for gap in read_gaps(source.disk)
        if gap.id == number
    ]
    if len(found) != 1:
        names = ", ".join(f"gap:{source.name}/{gap.id}" for source, gap in found)
        what = f"several sources have a gap {number}: {names}" if found else f"no source has a gap {name!r}"
        raise NotFoundError(what, hint=f"./tidemark why {names.split(', ')[0]}" if found else "./tidemark changes show")
    source, gap = found[0]
    return Explanation(
        subject,
        "gap",
        gap.state,
        f"{gap.server} purged what follows {gap.start}, and begins with {gap.end}",
        tuple(_list_evidence(gap)),
        f"docs/runbooks/binlog-purged.md; saved logs: ./tidemark changes capture {source.name} --files …",
        _WAIT_FOR_GAP,
    )


def _list_evidence(gap: Gap) -> Iterator[str]:
    yield f"found {format_time(gap.found)}"
    yield f"the store has {gap.start_gtids or 'no GTIDs'}; before the oldest log were {gap.end_gtids or 'no GTIDs'}"
    yield f"rows may be wrong since of: {', '.join(gap.tables) or 'tables that are not known'}"


def _explain_table(app: App, subject: str, name: str) -> Explanation:
    shown = [show_source(source) for source in _sources(app)]
    for one in shown:
        if any(table["name"] == name for table in one["tables"]):
            touched = [gap for gap in one["gaps"] if gap["state"] == OPEN and name in gap["tables"]]
            source = explain_source(f"source:{one['name']}", one)
            evidence = (f"source {one['name']} is {source.state}: {source.cause}", *source.evidence)
            if touched:
                cause = f"gap {touched[0]['id']} of source {one['name']} may hold changes of it"
                following = f"./tidemark why gap:{one['name']}/{touched[0]['id']}"
                return Explanation(subject, "table", "gap", cause, evidence, following, _WAIT_FOR_GAP)
            if name in [table["name"] for table in one["tables"] if table["state"] == GONE]:
                cause = f"the server of source {one['name']} has no such table any more"
                return Explanation(subject, "table", GONE, cause, evidence, "", "", final=True)
            cause = f"its changes go into the store of source {one['name']}"
            return Explanation(subject, "table", "captured", cause, evidence, source.next, source.if_you_wait, source.final)
    away = [one["name"] for one in shown if one.get("away")]
    told = f"; the server of {', '.join(away)} does not answer" if away else ""
    raise NotFoundError(
        f"no source captures a table {name!r}{told}", hint="see tables and exclude of the sources", subject=name
    )


def _explain_gtid(app: App, gtid: str) -> Explanation:
    looked = []
    for source in _sources(app):
        try:
            reader = source.open_reader()
            found = find_point(reader, gtid)
        except NotFoundError as none:  # nothing captured, or retention took it
            looked.append(f"source {source.name}: {none.message}")
            continue
        if found is not None:
            evidence = (f"bucket {name_bucket(found)}", f"./tidemark changes read {source.name} --from {gtid} --out -")
            cause = f"source {source.name} has it as seq:{found.seq}"
            return Explanation(gtid, "transaction", "captured", cause, evidence, final=True)
        looked.append(f"source {source.name} ends before it: {reader.view.gtids or 'no GTIDs'}")
    first = next(iter(sorted(app.settings.sources)))
    cause = "no store has this transaction"
    following = f"./tidemark changes show {first}"
    return Explanation(gtid, "transaction", "missing", cause, tuple(looked), following, "a capture that is due brings it")
