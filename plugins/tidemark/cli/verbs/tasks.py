"""The actions of `changes` that are about tasks: consume, rewind, reshard, deliver; what `changes show` tells of them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemark.cli import progress
from tidemark.cli.call import Answer, Call
from tidemark.cli.screen import RowStream, Screen
from tidemark.errors import DIFFERENCES_FOUND, BinlogGapError, PartialError, UsageError
from tidemark.progress import format_count

if TYPE_CHECKING:
    from tidemark.changes.delivery.tasks import Change
    from tidemark.changes.sinks.verify.verify import TableVerified

Add = Callable[[str, str, str], argparse.ArgumentParser]


def add_task_actions(add: Add, point: str) -> None:
    """Add the actions. `add(name, told, example)` makes a parser whose first argument is the task."""
    consumed = add("consume", "be a member of a task: a file of JSON lines a shard", "billing --source orders --out changes")
    consumed.add_argument("--source", required=True, metavar="S", help="a [sources.NAME] of the settings")
    consumed.add_argument("--tables", nargs="+", metavar="P", default=None, help='patterns such as "shop.*"; of the task')
    consumed.add_argument("--shards", type=int, metavar="N", default=None, help="into how many shards; of the task (8)")
    consumed.add_argument("--start", metavar="POINT", default="earliest", help=f"where a new task begins: {point}")
    consumed.add_argument("--out", metavar="DIR", default="", help="TASK-SHARD.jsonl in it are appended to; none: stdout")
    consumed.add_argument("--format", choices=["jsonl", "debezium"], default="jsonl", help="lines of `read`, or Debezium's")
    consumed.add_argument("--follow", action="store_true", help="go on until stopped")
    consumed.add_argument("--url", nargs="+", metavar="URL", default=[], help="readers that have the store: `changes serve`")
    consumed.add_argument("--token-file", metavar="FILE", default="", help="with --url: a file with the token alone")
    consumed.add_argument("--ca", metavar="FILE", default="", help="with --url: the certificate that vouches for theirs")
    consumed.add_argument("--shard", nargs="+", type=int, metavar="I", default=None, help="with --url: these shards alone")
    consumed.add_argument("--limit", type=int, metavar="N", default=0, help="end after so many rows")
    rewound = add("rewind", "have a task go on from a point; without --yes what would come again", "billing --to earliest")
    rewound.add_argument("--to", required=True, metavar="POINT", help=point)
    rewound.add_argument("--shard", nargs="+", type=int, metavar="I", default=[], help="these shards alone")
    divided = add("reshard", "give a task another number of shards; without --yes what comes twice", "billing --shards 5")
    divided.add_argument("--shards", type=int, required=True, metavar="N", help="into how many")


def add_sink_action(parser: argparse.ArgumentParser, point: str) -> None:
    """Add the arguments of `deliver`."""
    parser.add_argument("sink", metavar="SINK", help="a [sinks.NAME] of the settings")
    parser.add_argument("--to", metavar="POINT", default="", help=f"end before it; else at the store's end: {point}")


def add_verify_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `verify` that are about a sink."""
    parser.add_argument("--sink", metavar="NAME", default="", help="compare this sink's tables with the server's instead")
    parser.add_argument(
        "--tables", nargs="+", metavar="P", default=["**"], help='with --sink: patterns such as "shop.*"; not told: all'
    )
    parser.add_argument("--repair", action="store_true", help="with --sink: read anew what differs, deliver, compare again")


def run_verify_sink(call: Call) -> Answer:
    from tidemark.changes.sinks.deliver import find_sink
    from tidemark.changes.sinks.verify.verify import verify_sink
    from tidemark.changes.trust.gaps import OPEN, read_gaps

    asked = call.arguments
    sink = find_sink(call.app, asked.sink)
    if sink.source.name != asked.source:
        raise UsageError(
            f"sink {sink.name} is one of source {sink.source.name}, not of {asked.source}",
            hint=f"./tidemark changes verify {sink.source.name} --sink {sink.name}",
        )
    if asked.files:
        raise UsageError("--files and --sink exclude each other: a sink is compared with a server", hint="leave one out")
    with progress.show_progress(call.screen) as beat:
        done = verify_sink(sink, asked.tables, repair=asked.repair, progress=beat)
    gaps = [gap for gap in read_gaps(sink.source.disk) if gap.state == OPEN]
    differing, left = [one for one in done.tables if one.differs], [one for one in done.tables if one.is_left]
    tables = [
        {
            "name": one.name,
            "rows": one.found.rows,
            **{what: one.found.counts[what] for what in ("missing", "unknown", "changed")},
            "left_out": one.found.left_out,
            "why": one.why,
        }
        for one in done.tables
    ]
    found: dict[str, Any] = {
        "checked": done.rows,
        "differences": [told for one in differing for told in _name_differences(one)],
        "gaps": [gap.as_json() for gap in gaps],
        "tables": tables,
        "point": f"seq:{done.end}",
        "position": f"{done.place.file}:{done.place.position}",
        "repaired": [*done.repaired],
    }
    if differing:
        names = ", ".join(one.name for one in differing)
        keyless = [one.name for one in differing if one.is_keyless]
        patterns = " ".join(one.name for one in differing if not one.is_keyless)
        hint = f"./tidemark changes verify {asked.source} --sink {sink.name} --tables {patterns} --repair"
        if asked.repair:
            hint = f"./tidemark why sink:{sink.name}"
        if keyless:
            told = f"{', '.join(keyless)}: ALTER TABLE … ADD PRIMARY KEY, then --repair; or leave it out of the sink"
            hint = f"{told}; others: {hint}" if patterns else told
        found |= {"error": f"{len(differing)} of {len(tables)} tables differ from the source: {names}", "hint": hint}
    elif left:
        names = f"{', '.join(one.name for one in left)}; " if len(left) > 1 else ""
        found |= {"error": f"{len(left)} of {len(tables)} tables were not compared: {names}{left[0].why}"}
        found |= {"hint": left[0].hint or "leave it out of tables of the sink"}

    def show(screen: Screen) -> None:
        screen.print_line(
            f"{format_count(done.rows, 'row')} of {format_count(len(tables), 'table')} at {found['position']},"
            f" before {found['point']}"
        )
        if done.repaired:
            screen.print_line(f"read anew: {', '.join(done.repaired)}")
        rows = [[*list(table.values())[:5], table["why"]] for table in tables]
        screen.print_table(("table", "rows>", "missing>", "unknown>", "changed>", "why"), rows)
        if left_out := sum(one.found.left_out for one in done.tables):
            screen.print_line(f"{format_count(left_out, 'key')} changed while the snapshot was opened: not compared")
        for one in differing:
            for told in one.found.named:
                columns = f": {', '.join(told.columns)}" if told.columns else ""
                screen.print_line(f"  {one.name} {_name_key(told.key)} {told.what}{columns}")
            more = one.found.counts.total() - len(one.found.named)
            if more:
                screen.print_line(f"  {one.name}: {more:,} more")

    code = DIFFERENCES_FOUND if differing else BinlogGapError.kind if gaps else PartialError.kind if left else 0
    return Answer(found, show, code)


def _name_differences(table: TableVerified) -> list[dict[str, Any]]:
    """The named differences of a table, as JSON; one without a key where it could not be compared."""
    if table.why:
        return [{"table": table.name, "key": None, "what": table.why, "columns": []}]
    return [
        {"table": table.name, "key": [*map(_show_value, one.key)], "what": one.what, "columns": [*one.columns]}
        for one in table.found.named
    ]


def _name_key(key: tuple[Any, ...]) -> str:
    return ", ".join(str(_show_value(value)) for value in key)


def _show_value(value: Any) -> Any:
    """A value of a key as JSON has it: bytes as hexadecimal digits, decimals with digits behind the point as text."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Decimal) and value.as_tuple().exponent == 0:
        return int(value)
    return value if isinstance(value, int | float | str) else str(value)


def run_deliver(call: Call) -> Answer:
    from tidemark.changes.sinks.deliver import HISTORY, Request, deliver_sink, find_sink
    from tidemark.changes.sinks.show import show_table
    from tidemark.settings.model import list_links_of_sink
    from tidemark.sync.run import Options, run_sync

    asked = call.arguments
    sink = find_sink(call.app, asked.sink)
    with progress.show_progress(call.screen) as beat:
        done = deliver_sink(sink, Request(asked.to, progress=beat))
        sent = {link: run_sync(call.app, link, Options(), beat) for link in list_links_of_sink(call.settings, sink.settings)}
    tables = [show_table(table, done.rows.get(table.name, 0)) for table in done.tables.values()]
    if sink.settings.kind == HISTORY:
        tables = [{"name": name, "state": "whole", "rows": rows, "why": ""} for name, rows in done.rows.items()]
    state = "delivered" if done.batches else "nothing new"
    found: dict[str, Any] = {
        "state": "partial" if done.stopped else state,
        "batches": done.batches,
        "rows": sum(done.rows.values()),
        "tables": tables,
        "point": f"seq:{done.end}",
        **({"sent": [{"name": link, **run.as_json()} for link, run in sent.items()]} if sent else {}),
    }
    if done.stopped:
        first = done.stopped[0]
        names = ", ".join(table.name for table in done.stopped)
        found |= {
            "error": f"{len(done.stopped)} of {len(tables)} tables stopped: {names}; {first.why}",
            "hint": f"./tidemark changes bootstrap {sink.source.name} --tables {first.name} --again makes it anew",
        }

    def show(screen: Screen) -> None:
        batches = format_count(done.batches, "batch", "batches")
        told = f"{format_count(found['rows'], 'row')} in {batches}: up to {found['point']}"
        screen.print_line(told if done.batches else f"nothing new: at {found['point']}")
        rows = [[table[key] for key in ("name", "state", "rows", "why")] for table in tables]
        screen.print_table(("table", "state", "rows>", "why"), rows)
        for link, run in sent.items():
            screen.print_line(f"sent by link {link}: {run.state}, {format_count(run.files, 'file')}")

    codes = [PartialError.kind if done.stopped else 0, *(run.exit_code for run in sent.values())]
    return Answer(found, show, next((code for code in codes if code), 0))


def run_consume(call: Call) -> Answer:
    from tidemark.changes.consume import Consumption, Readers, consume_task
    from tidemark.changes.delivery.tasks import Wanted

    asked = call.arguments
    if not asked.out and asked.json:
        raise UsageError("--json without --out DIR: both write to stdout", hint="without --json, or --out DIR")
    wanted = Wanted(asked.task, asked.source, asked.shards, start=asked.start, tables=_tuple_of(asked.tables))
    out = Path(asked.out).absolute() if asked.out else None
    write = RowStream() if out is None else None
    if bool(asked.url) != bool(asked.token_file) or ((asked.ca or asked.shard) and not asked.url):
        raise UsageError(
            "--token-file goes with --url; --ca and --shard too", hint="--url https://HOST:28332 --token-file FILE"
        )
    readers = Readers(asked.url, Path(asked.token_file), asked.ca, asked.shard) if asked.url else None
    request = Consumption(wanted, out, asked.format, asked.follow, asked.limit, write, readers)
    done = consume_task(None if readers else call.app, request)
    shards = [
        {"shard": shard, "rows": rows, "from": f"seq:{first}", "to": f"seq:{last}"}
        for shard, (rows, first, last) in sorted(done.shards.items())
    ]

    def show(screen: Screen) -> None:
        say = screen.print_line if out else screen.print_remark
        where = f" in {asked.out}" if out else ""
        say(f"{format_count(done.rows, 'row')} of {format_count(len(shards), 'shard')}{where}")

    return Answer({"shards": shards, "rows": done.rows}, show)


def _tuple_of(words: list[str] | None) -> tuple[str, ...] | None:
    return None if words is None else tuple(words)


def run_rewind(call: Call) -> Answer:
    from tidemark.changes.consume import plan_rewind
    from tidemark.changes.delivery.tasks import apply_change

    asked = call.arguments
    change = plan_rewind(call.app, asked.task, asked.to, asked.shard)
    if asked.yes:
        apply_change(call.app.ledger, change, "rewind", to=asked.to, shards=sorted(change.points))
    return _tell_change(change, asked.yes, f"rewind {asked.task} --to {asked.to}{_name_shards(asked.shard)} --yes")


def _name_shards(shards: list[int]) -> str:
    return f" --shard {' '.join(map(str, shards))}" if shards else ""


def run_reshard(call: Call) -> Answer:
    from tidemark.changes.consume import plan_reshard
    from tidemark.changes.delivery.tasks import apply_change

    asked = call.arguments
    change = plan_reshard(call.app, asked.task, asked.shards)
    if asked.yes:
        apply_change(call.app.ledger, change, "reshard", shards=asked.shards)
    return _tell_change(change, asked.yes, f"reshard {asked.task} --shards {asked.shards} --yes")


def _tell_change(change: Change, applied: bool, command: str) -> Answer:
    rows = [[one.shard, f"seq:{one.first}", f"seq:{one.end}", one.rows] for one in change.shards]
    keys = ("shard", "from", "to", "rows")
    found: dict[str, Any] = {
        "transactions": change.transactions,
        "rows": change.rows,
        "exact": change.exact,
        "shards": [dict(zip(keys, row, strict=True)) for row in rows],
        "applied": applied,
        "undo": [*change.undo] if applied else [],
    }

    def show(screen: Screen) -> None:
        about = "" if change.exact else "about "
        verb = "come" if applied else "would come"
        screen.print_line(
            f"{format_count(change.transactions, 'transaction')}, {about}{format_count(change.rows, 'row')} {verb} again"
        )
        screen.print_table(("shard>", "from", "to before", "rows>"), rows)
        if applied:
            for line in change.undo:
                screen.print_line(f"undo: {line}")
        else:
            screen.print_line(f"to do it: ./tidemark changes {command}")

    return Answer(found, show)


def show_tasks(call: Call, source: str) -> list[dict[str, Any]]:
    """The tasks of a source ("": of all), as `changes show --json` tells them."""
    from tidemark.changes.sources.show import show_tasks_of

    return show_tasks_of(call.app, source)


def print_tasks(screen: Screen, tasks: list[dict[str, Any]], *, points: bool) -> None:
    """The tasks as a table; with `points`, a line a shard behind each."""
    if not tasks:
        return
    keys = ("name", "source", "shards", "members", "lag_seconds")
    screen.print_table(("task", "source", "shards>", "members>", "lag s>"), [[task[key] for key in keys] for task in tasks])
    for task in tasks if points else ():
        rows = [[p["shard"], p["point"], p["lag_seconds"], p["holder"] or "nobody"] for p in task["points"]]
        screen.print_table((f"{task['name']}>", "point", "lag s>", "holder"), rows)
        if gone := [str(p["shard"]) for p in task["points"] if p.get("overrun")]:
            screen.print_line(f"  the store has no more what follows the point of shard {', '.join(gone)}: it ends with 31")
        for trouble in [p["trouble"] for p in task["points"] if p.get("trouble")]:
            screen.print_line(f"  {trouble}")
    for task in tasks:
        for one in task["dead_letters"]:
            told = f"{format_count(one['batches'], 'dead letter')} in {one['place']} of {one['host']}"
            screen.print_line(f"task {task['name']}: {told}")
