"""The verb `changes`: capture the changes of MySQL and MariaDB tables, and read what the store of a source holds."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemark.cli import progress
from tidemark.cli.call import Answer, Call, Verb, add_action
from tidemark.cli.screen import RowStream, Screen
from tidemark.cli.verbs.tasks import (
    add_sink_action,
    add_task_actions,
    add_verify_arguments,
    print_tasks,
    run_consume,
    run_deliver,
    run_reshard,
    run_rewind,
    run_verify_sink,
    show_tasks,
)
from tidemark.errors import DIFFERENCES_FOUND, BinlogGapError, UsageError
from tidemark.progress import format_count, format_size

if TYPE_CHECKING:
    from tidemark.changes.sources.source import Source

POINT = "earliest, latest, now, ISO 8601, a GTID or set, FILE:POS, seq:N"


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    choices = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def add(name: str, told: str, example: str = "orders", *, optional: bool = False) -> argparse.ArgumentParser:
        made = add_action(choices, name, told, f"./tidemark changes {name} {example}")
        made.add_argument(
            "source", metavar="SOURCE", nargs="?" if optional else None, help="a [sources.NAME] of the settings"
        )
        return made

    add("doctor", "may the server be trusted, the SQL that mends it, hours of binary log that are left")
    captured = add("capture", "bring changes into the store, from its end on")
    captured.add_argument("--files", nargs="+", metavar="GLOB", default=[], help="binary log files, no server")
    captured.add_argument("--follow", action="store_true", help="go on until stopped")
    captured.add_argument(
        "--from", dest="start", metavar="POINT", default="", help="where a new store begins: for `start` of the settings"
    )
    captured.add_argument("--no-bootstrap", action="store_true", help="do not read the rows that tables have already")
    captured.add_argument("--until", metavar="POINT", default="", help=f"to before the first transaction there: {POINT}")
    read_in = add("bootstrap", "bring the rows that tables have now into the store, between the changes")
    read_in.add_argument("--tables", nargs="+", metavar="P", default=[], help='patterns such as "shop.*"; not told: all')
    read_in.add_argument(
        "--again", action="store_true", help="read --tables from the start, those that are read already too"
    )
    read_in.add_argument("--cancel", action="store_true", help="read no more; what is read stays, and may go on later")
    read_in.add_argument("--no-wait", action="store_true", help="ask the capture that is at work, or the next, and end")
    add("show", "what is known of a source, or of all", optional=True)
    found = add("find", "the first transaction at or after a point", "orders 2026-11-20T10:00Z")
    found.add_argument("point", metavar="POINT", help=POINT)
    read = add("read", "what the store holds, in order", "orders --from 2026-11-20T10:00Z --out changes.jsonl")
    read.add_argument("--tables", nargs="+", metavar="P", default=["**"], help='patterns such as "shop.*"')
    read.add_argument("--from", dest="since", metavar="POINT", default="", help=f"from there on: {POINT}")
    read.add_argument("--to", dest="until", metavar="POINT", default="", help="to before the first transaction there")
    read.add_argument("--shards", type=int, metavar="N", default=0, help="divide the rows into N shards, and read one")
    read.add_argument("--shard", type=int, metavar="I", default=-1, help="which, from 0 on")
    read.add_argument("--hash", default="mixed", choices=("mixed", "ptubes"), help="ptubes: the original's")
    read.add_argument("--out", required=True, metavar="F", help="FILE.jsonl or FILE.parquet; -: stdout, as JSON lines")
    proven = add("verify", "every transaction of the server's logs is in the store, once; every checksum of the store")
    proven.add_argument("--deep", action="store_true", help="compare the rows, too")
    proven.add_argument("--files", nargs="+", metavar="GLOB", default=[], help="binary log files, no server")
    add_verify_arguments(proven)
    repaired = add("repair", "read anew the tables of a gap, and go on behind it")
    repaired.add_argument("--gap", metavar="ID", default="", help="this one alone; `changes show` names them")
    add("retain", "remove what is older than retain_hours and no task needs; one round")

    def add_task(name: str, told: str, example: str) -> argparse.ArgumentParser:
        made = add_action(choices, name, told, f"./tidemark changes {name} {example}")
        made.add_argument("task", metavar="TASK", help="a name; its first member begins it")
        return made

    add_task_actions(add_task, POINT)
    delivered = add_action(
        choices, "deliver", "bring the tables of a sink up to date: one run", "./tidemark changes deliver lake"
    )
    add_sink_action(delivered, POINT)
    served = add_action(
        choices, "serve", "changes of all sources to other machines, over HTTP", "./tidemark changes serve --port 28332"
    )
    served.add_argument("--host", metavar="H", default="", help="listen there: for `listen` of [changes]")
    served.add_argument("--port", type=int, metavar="N", default=-1, help="listen there; 0: a port that is free")


def _run_changes(call: Call) -> Answer:
    return _ACTIONS[call.arguments.action](call)


def _source(call: Call) -> Source:
    from tidemark.changes.sources.source import find_source

    return find_source(call.app, call.arguments.source)


def _run_doctor(call: Call) -> Answer:
    from tidemark.changes.sources.doctor import examine
    from tidemark.changes.sources.source import settings_of

    settings = call.settings
    found = examine(settings_of(settings, call.arguments.source), time.time, settings.sinks.values())
    checks = [{"name": one.subject, "ok": one.ok, "detail": one.detail, "hint": one.hint} for one in found.findings]
    told: dict[str, Any] = {"ok": found.exit_code == 0, "checks": checks, "headroom_hours": found.headroom.hours}
    if failed := [one for one in found.findings if not one.ok]:
        names = ", ".join(one.subject for one in failed)
        told |= {
            "error": f"{len(failed)} of {len(checks)} checks failed: {names}",
            "hint": failed[0].hint or failed[0].detail,
        }

    def show(screen: Screen) -> None:
        screen.print_table(["", "check", "found"], [("ok" if f.ok else "BAD", f.subject, f.detail) for f in found.findings])
        for one in failed:
            if one.hint:
                screen.print_line(f"  {one.subject}: {one.hint}")

    return Answer(told, show, found.exit_code)


def _run_capture(call: Call) -> Answer:
    from tidemark.changes.sources.source import Reading, Request, capture_source

    asked = call.arguments
    if asked.follow and asked.files:
        raise UsageError("--follow and --files exclude each other: files have an end", hint="leave one of them out")
    begun = time.monotonic()
    reading = Reading.NEVER if asked.no_bootstrap else Reading.NOW
    request = Request(asked.files, asked.start, asked.until, asked.follow, reading)
    with progress.show_progress(call.screen) as beat:
        both = capture_source(_source(call), request, beat)
    done = both.captured
    found: dict[str, Any] = {
        "state": "captured" if done.transactions else "nothing new",
        "transactions": done.transactions,
        "rows": done.rows,
        "bytes": done.bytes,
        "from": f"seq:{done.first.seq + 1}" if done.transactions else None,
        "to": f"seq:{done.last.seq}" if done.transactions else None,
        "bootstrapped": [*both.tables],
        "idle_patterns": [*both.idle],
        "seconds": round(time.monotonic() - begun, 3),
    }

    def show(screen: Screen) -> None:
        for told in both.idle:
            screen.print_line(f"warning: {told}")
        if not done.transactions:
            screen.print_line("nothing new")
            return
        told = (
            f"{format_count(done.transactions, 'transaction')}, {format_count(done.rows, 'row')}, {format_size(done.bytes)}"
        )
        screen.print_line(f"{told}: {found['from']} to {found['to']}")
        if both.tables:
            screen.print_line(f"read whole: {', '.join(both.tables)}")

    return Answer(found, show)


def _run_bootstrap(call: Call) -> Answer:
    from tidemark.changes.bootstrap.requests import Request
    from tidemark.changes.sources.source import ask_bootstrap
    from tidemark.changes.trust.patterns import Patterns

    asked = call.arguments
    if asked.again and (asked.cancel or not asked.tables):
        raise UsageError("--again reads named tables, and excludes --cancel", hint="--tables NAME … --again")
    request = Request(cancel=True) if asked.cancel else Request(asked.tables or ["**"], again=asked.again)
    with progress.show_progress(call.screen) as beat:
        tables = ask_bootstrap(_source(call), request, wait=not asked.no_wait, progress=beat)
    shown = [
        {"name": name, "state": table.state, "chunks": table.chunks, "rows": table.rows}
        for name, table in sorted(tables.items())
    ]
    idle = Patterns(request.tables).list_idle(tables) if not asked.no_wait else []
    left = {table.state for table in tables.values() if table.state != "done"}
    state = "asked" if asked.no_wait else "reading" if left & {"waiting", "reading"} else min(left, default="done")

    def show(screen: Screen) -> None:
        for told in idle:
            screen.print_line(f"warning: {told}")
        rows = [list(table.values()) for table in shown]
        screen.print_table(("table", "state", "chunks>", "rows>"), rows, "the server has no such table")

    return Answer({"state": state, "tables": shown, "idle_patterns": idle}, show)


def _run_show(call: Call) -> Answer:
    from tidemark.changes.sources.show import show_source
    from tidemark.changes.sources.source import find_source

    names = [call.arguments.source] if call.arguments.source else sorted(call.settings.sources)
    sources = [show_source(find_source(call.app, name)) for name in names]
    tasks = show_tasks(call, call.arguments.source or "")

    def show(screen: Screen) -> None:
        if call.arguments.source:
            _show_one(screen, sources[0])
            print_tasks(screen, tasks, points=True)
            return
        keys = ("name", "state", "position", "newest_time", "lag_seconds", "headroom_hours", "transactions", "rows")
        rows = [[one.get(key) for key in keys] for one in sources]
        titles = ("source", "state", "position", "newest", "lag s>", "headroom h>", "transactions>", "rows>")
        screen.print_table(titles, rows, "the settings have no [sources.NAME]")
        print_tasks(screen, tasks, points=False)

    return Answer({"sources": sources, "tasks": tasks}, show)


def _show_one(screen: Screen, one: dict[str, Any]) -> None:
    left_out = ("gaps", "tables", "headroom_red", "bootstrap")
    screen.print_pairs((key.replace("_", " "), value) for key, value in one.items() if key not in left_out)
    if one.get("headroom_red"):
        screen.print_line("RED: less than half of the purge time is left")
    if one["bootstrap"]:
        rows = [[table[key] for key in ("name", "state", "chunks", "rows")] for table in one["bootstrap"]]
        screen.print_table(("read", "state", "chunks>", "rows>"), rows)
    if gone := [table["name"] for table in one["tables"] if table["state"] == "gone"]:
        screen.print_line(f"the server has no more: {', '.join(gone)}")
    for gap in one["gaps"]:
        screen.print_line(f"gap {gap['id']}, {gap['state']}: behind {gap['from']}, before {gap['to']} of {gap['server']}")
        screen.print_line(f"  tables: {', '.join(gap['tables'])}")


def _run_find(call: Call) -> Answer:
    from tidemark.changes.sources.source import find_in_source, name_bucket

    source = _source(call)
    begun = time.perf_counter()
    place, blocks = find_in_source(source, call.arguments.point)
    milliseconds = round((time.perf_counter() - begun) * 1000, 2)
    found: dict[str, Any] = {
        "point": f"seq:{place.seq}" if place else None,
        "bucket": name_bucket(place) if place else None,
        "offset": place.position.offset if place and place.position else None,
        "blocks_read": blocks,
        "ms": milliseconds,
    }

    def show(screen: Screen) -> None:
        if place is None:
            screen.print_line("the store ends before that")
        else:
            screen.print_pairs(found.items())

    return Answer(found, show)


def _run_read(call: Call) -> Answer:
    from tidemark.changes.delivery.shards import Sharding
    from tidemark.changes.sources.source import Span, read_source

    asked = call.arguments
    if asked.out == "-" and asked.json:
        raise UsageError("--out - and --json exclude each other: both write to stdout", hint="without --json, or --out FILE")
    out = RowStream() if asked.out == "-" else Path(asked.out).absolute()
    if not 0 <= asked.shard < asked.shards and (asked.shards or asked.shard >= 0):
        raise UsageError("--shards N and --shard I go together, and I is 0 to N - 1", hint="--shards 8 --shard 0")
    sharding = Sharding(asked.shards, asked.hash) if asked.shards else None
    done = read_source(_source(call), Span(asked.tables, asked.since, asked.until, sharding, max(asked.shard, 0)), out)
    found = {"transactions": done.transactions, "rows": done.rows}

    def show(screen: Screen) -> None:
        say = screen.print_remark if asked.out == "-" else screen.print_line
        where = "" if asked.out == "-" else f" in {asked.out}"
        say(f"{format_count(done.rows, 'row')} of {format_count(done.transactions, 'transaction')}{where}")

    return Answer(found, show)


def _run_verify(call: Call) -> Answer:
    from tidemark.changes.sources.verify import verify_source

    if call.arguments.sink:
        return run_verify_sink(call)
    if call.arguments.repair or call.arguments.tables != ["**"]:
        raise UsageError("--tables and --repair go with --sink", hint="--sink NAME; a gap: ./tidemark changes repair SOURCE")
    with progress.show_progress(call.screen) as beat:
        proven = verify_source(_source(call), call.arguments.files, deep=call.arguments.deep, progress=beat)
    store, logs = proven.store, proven.logs
    found = {
        "checked": store.transactions,
        "rows": store.rows,
        "blocks": store.blocks,
        "differences": proven.problems,
        "gaps": [gap.as_json() for gap in proven.gaps],
        "indexes": list(store.indexes),
        "logs": logs
        and {
            "compared": logs.compared,
            "rows_compared": call.arguments.deep,
            "purged": logs.purged,
            "in_gaps": logs.in_gaps,
            "not_captured": logs.behind,
            "counts": logs.counts,
        },
    }

    name = call.arguments.source
    if proven.problems:
        first = proven.problems[0]
        found |= {"error": f"{_WRONG[first['what']]}{first['problem']}", "hint": f"./tidemark changes show {name}"}
    elif proven.gaps:
        told = ", ".join(f"{gap.id} from {gap.start} to {gap.end}" for gap in proven.gaps)
        found |= {"error": f"gap {told}", "hint": f"./tidemark changes repair {name}"}

    def show(screen: Screen) -> None:
        screen.print_line(
            f"{format_count(store.transactions, 'transaction')}, {format_count(store.rows, 'row')},"
            f" {format_count(store.blocks, 'block')}"
        )
        if logs is not None:
            what = "in the logs and in the store, with equal rows" if call.arguments.deep else "in the logs and in the store"
            told = [(logs.compared, what), (logs.purged, "purged from the logs"), (logs.in_gaps, "of the logs in a gap")]
            told.append((logs.behind, "not captured yet"))
            screen.print_line("; ".join(f"{count:,} {words}" for count, words in told if count))
        for one in proven.problems:
            screen.print_line(f"  {_WRONG[one['what']]}{one['problem']}")
        for what, count in logs.counts.items() if logs else ():
            named = sum(one["what"] == what for one in proven.problems)
            if count > named:
                screen.print_line(f"  {_WRONG[what]}{count - named:,} more")
        for index in store.indexes:
            screen.print_line(f"  {index} is not as it can be derived; nothing reads it")

    return Answer(found, show, DIFFERENCES_FOUND if proven.problems else BinlogGapError.kind if proven.gaps else 0)


_WRONG = {
    "damaged": "",
    "missing": "missing in the store: ",
    "double": "twice in the store: ",
    "unknown": "in the store, in no log: ",
    "changed": "not as the log has it: ",
}


def _run_repair(call: Call) -> Answer:
    from tidemark.changes.sources.repair import repair_source

    with progress.show_progress(call.screen) as beat:
        done = repair_source(_source(call), call.arguments.gap, beat)

    def show(screen: Screen) -> None:
        if not done.gaps:
            screen.print_line("no gap is open")
            return
        screen.print_line(
            f"gap {', '.join(done.gaps)}:"
            f" {format_count(done.rows, 'row')} of {', '.join(done.tables) or 'no table'} read anew"
        )
        if done.gone:
            screen.print_line(f"the server has no more: {', '.join(done.gone)} (dropped or renamed, maybe in the gap)")

    return Answer({"gaps": [*done.gaps], "tables": [*done.tables], "rows": done.rows, "gone": [*done.gone]}, show)


def _run_retain(call: Call) -> Answer:
    from tidemark.changes.sources.source import name_oldest, retain_source

    source = _source(call)
    done = retain_source(source)
    oldest = name_oldest(source)
    found = {"removed": [*done.retired], "deleted": [*done.removed], "compressed": [*done.compressed], "oldest": oldest}

    def show(screen: Screen) -> None:
        screen.print_line(
            f"{len(done.retired)} hours out of sight, {len(done.removed)} off the disk, {len(done.compressed)} buckets"
            f" compressed; the oldest is {oldest}"
        )

    return Answer(found, show)


def _run_serve(call: Call) -> Answer:
    from tidemark.changes.delivery.http.feed import Watch
    from tidemark.changes.delivery.http.run import Listen, serve
    from tidemark.changes.sources.source import disk_of
    from tidemark.ledger.leases import Leases
    from tidemark.settings.values import split_listen

    settings, asked = call.settings.changes, call.arguments
    host, port = split_listen(settings.listen)
    listen = Listen(
        asked.host or host,
        port if asked.port < 0 else asked.port,
        call.settings.root / settings.tokens,
        settings.certificate,
        settings.key,
    )
    if not call.settings.sources:
        raise UsageError("the settings have no source to serve", hint="[sources.NAME] is one")

    def report_ready(address: str) -> None:
        if call.screen.as_json:
            call.screen.print_json({"ok": True, "address": address, "pid": os.getpid()})
        else:
            call.screen.print_pairs({"address": address, "pid": str(os.getpid())}.items())
            call.screen.print_remark("Ctrl-C stops it")

    leases = Leases(call.app.ledger, call.app.identity)
    sources = {name: Watch(disk_of(one), one.memory) for name, one in call.settings.sources.items()}
    serve(sources, leases, listen, report_ready)
    return Answer({}, lambda _screen: None, said=True)


_ACTIONS: dict[str, Callable[[Call], Answer]] = {
    "doctor": _run_doctor,
    "capture": _run_capture,
    "bootstrap": _run_bootstrap,
    "show": _run_show,
    "find": _run_find,
    "read": _run_read,
    "verify": _run_verify,
    "repair": _run_repair,
    "retain": _run_retain,
    "serve": _run_serve,
    "consume": run_consume,
    "rewind": run_rewind,
    "reshard": run_reshard,
    "deliver": run_deliver,
}

VERBS = (
    Verb(
        "changes",
        "capture the changes of MySQL and MariaDB tables, and read them",
        "./tidemark changes capture orders --files 'binlogs/mysql-bin.0*'",
        _run_changes,
        _add_arguments,
    ),
)
