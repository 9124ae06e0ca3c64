"""The verbs plan, sync, load, merge, adopt: move files."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemark.cli import progress
from tidemark.cli.call import Answer, Call, Verb
from tidemark.cli.screen import Screen, shorten_list, write_output
from tidemark.cli.several import answer_links, answer_receivers, choose_links, code_of
from tidemark.errors import NOTHING_TO_DO, NotFoundError, UsageError
from tidemark.progress import Progress, format_count, format_elapsed, format_size
from tidemark.settings.model import ReceiverSettings

if TYPE_CHECKING:
    from tidemark.receiver.load.result import Trouble
    from tidemark.sync.run import Plan


SHOWN = 20  # files of a list for people; --json and --out have all


def from_nodes_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option of verbs that can do without the ledger's database."""
    told = "by the logs of the data nodes alone, while the ledger's database is away"
    parser.add_argument("--from-nodes", action="store_true", help=told)


def receiver_argument(parser: argparse.ArgumentParser, each: bool = False) -> None:
    """Add `--receiver R`. `each`: without it the verb runs for each receiver."""
    which = "only this receiver" if each else "which receiver"
    parser.add_argument("--receiver", metavar="R", help=f"{which}, where the settings have several")


def _link_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("link", metavar="LINK", help="a [links.NAME] of the settings")


def _plan_arguments(parser: argparse.ArgumentParser) -> None:
    _link_argument(parser)
    parser.add_argument("--out", metavar="F", help="write the plan as JSON, for sync --plan")


def _run_plan(call: Call) -> Answer:
    from tidemark.sync.plan import plan_sync

    found = plan_sync(call.app, call.arguments.link).as_json()
    if call.arguments.out:
        _write_json(Path(call.arguments.out), found)
    return Answer(found, lambda screen: _show_plan(screen, found))


def _show_plan(screen: Screen, plan: dict[str, Any]) -> None:
    guard = [("guard", plan["guard"])] if plan["guard"] else []
    screen.print_pairs([("state", plan["state"]), *guard, ("files", plan["files"]), ("bytes", format_size(plan["bytes"]))])
    if sums := plan["databases"]:
        screen.print_line("")
        rows = [(s["database"], s["files"], format_size(s["bytes"]), s["from"], s["to"]) for s in sums]
        screen.print_table(["database", "files>", "bytes>", "from", "to"], rows)
    for key, title in (
        ("send", "send"),
        ("superseded", "superseded"),
        ("drop", "drop"),
        ("skipped", "skipped"),
        ("conflicts", "conflicts"),
    ):
        found = plan.get(key) or []
        if found:
            screen.print_line("")
            screen.print_line(f"{title} ({len(found):,})")
        for item in found[:SHOWN]:
            screen.print_line("  " + _format_item(item))
        if len(found) > SHOWN:
            screen.print_line(f"  … {len(found) - SHOWN:,} more: --json, or --out FILE")


def _format_item(item: Any) -> str:
    if not isinstance(item, dict):
        return str(item)
    told = [
        format_size(value) if key == "bytes" else str(value)
        for key, value in item.items()
        if key != "path" and value not in (None, "")
    ]
    return "  ".join([str(item.get("path", "")), *told]).strip()


def _write_json(path: Path, found: dict[str, Any]) -> None:
    try:
        write_output(path, json.dumps(found, ensure_ascii=False, indent=1) + "\n")
    except OSError as broken:
        raise UsageError(f"cannot write {path}: {broken.strerror}", subject=str(path)) from broken


def _sync_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("link", nargs="?", metavar="LINK", help="a [links.NAME] of the settings, or a pattern: 'north-*'")
    parser.add_argument(
        "--all", action="store_true", help="every link, some beside each other; one that fails costs itself alone"
    )
    parser.add_argument("--plan", metavar="F", help="do exactly what this plan says (from plan --out)")
    parser.add_argument("--no-load", action="store_true", help="leave the landing for a later load")
    parser.add_argument(
        "--only", metavar="GLOB", action="append", default=[], help="only these source paths; may be repeated"
    )
    parser.add_argument("--again", action="store_true", help="also files that were acknowledged before")
    parser.add_argument("--fail-if-nothing", action="store_true", help="exit 9 where there was nothing to do")


def _run_sync(call: Call) -> Answer:
    links = choose_links(call)
    if links is None:
        link = call.arguments.link
        with progress.show_progress(call.screen, link) as beat:
            return _sync_link(call, link, beat)
    if call.arguments.plan:
        raise UsageError("a plan is of one link", hint="./tidemark sync LINK --plan F")
    outcomes, trouble = answer_links(call, links, lambda name, beat: _sync_link(call, name, beat))
    rows = [{"name": one.name, **one.json} for one in outcomes]
    sums = {key: sum(row.get(key, 0) for row in rows) for key in _SUMMED}
    return Answer({"links": rows, **sums, **trouble}, lambda screen: _show_runs(screen, rows), code_of(outcomes))


_SUMMED = ("files", "bytes", "sent_bytes", "dropped", "pending", "schema", "loaded", "refused", "quarantined")


def _sync_link(call: Call, link: str, beat: Progress) -> Answer:
    from tidemark.sync.run import Options, run_sync

    asked = call.arguments
    options = Options(
        only_paths=tuple(asked.only), send_all_again=asked.again, plan=_read_plan(asked.plan), no_load=asked.no_load
    )
    result = run_sync(call.app, link, options, beat)
    found = result.as_json()
    code = result.exit_code
    if asked.fail_if_nothing and code == 0 and result.state == "nothing":
        code = NOTHING_TO_DO
    return Answer(found, lambda screen: _show_run(screen, found), code)


def _show_runs(screen: Screen, rows: list[dict[str, Any]]) -> None:
    columns = ["link", "state", "files>", "sent>", "loaded>", "refused>", "quarantined>", "why"]
    keys = ("files", "sent_bytes", "loaded", "refused", "quarantined")
    screen.print_table(columns, [[row["name"], *_format_run(row, keys)] for row in rows])
    done = sum(row["ok"] for row in rows)
    sent = format_size(sum(row.get("sent_bytes", 0) for row in rows))
    screen.print_line(
        f"{done:,} of {format_count(len(rows), 'link')} done;"
        f" {format_count(sum(row.get('files', 0) for row in rows), 'file')}, {sent} sent"
    )


def _format_run(row: dict[str, Any], keys: tuple[str, ...]) -> list[object]:
    figures = (
        [format_size(row[key]) if key == "sent_bytes" else row[key] for key in keys] if "state" in row else [""] * len(keys)
    )
    return [row.get("state", "failed"), *figures, "" if row["ok"] else row.get("error", "")]


def _read_plan(path: str | None) -> Plan | None:
    """Read a plan file; None without a path. Raises NotFoundError, and UsageError for a file that is no plan."""
    if path is None:
        return None
    from tidemark.sync.plan import read_plan

    try:
        return read_plan(Path(path).read_bytes())
    except FileNotFoundError:
        raise NotFoundError(f"no plan {path}", hint="./tidemark plan LINK --out F writes one", subject=path) from None
    except OSError as broken:
        raise UsageError(f"cannot read {path}: {broken.strerror}", subject=path) from broken


def _show_run(screen: Screen, run: dict[str, Any]) -> None:
    if run["state"] == "nothing":
        told = "nothing was sent" if run.get("error") else "nothing to do"
        screen.print_line(f"{run['link']}: {told} (run {run['run']}, {format_elapsed(run['duration_seconds'])})")
    else:
        _show_amounts(screen, run)
    for left in run["left_out"][:SHOWN]:
        screen.print_line("  left out: " + _format_item(left))
    for note in run["notes"]:
        screen.print_remark(f"  {note}")


def _show_amounts(screen: Screen, run: dict[str, Any]) -> None:
    """Print what there was of each kind; a kind of which there was nothing is left out."""
    keys = ("dropped", "superseded", "pending", "schema", "loaded", "refused", "quarantined")
    sizes = ("schema",)
    told = [(key, format_size(run[key]) if key in sizes else run[key]) for key in keys if run[key]]
    first: list[tuple[str, Any]] = [("run", run["run"]), ("state", run["state"]), ("files", run["files"] or "")]
    if run["files"]:
        first += [(name, format_size(run[key])) for name, key in (("bytes", "bytes"), ("sent bytes", "sent_bytes"))]
    rate = f"{format_size(run['bytes_per_second'])}/s" if run["bytes_per_second"] else ""
    screen.print_pairs([*first, *told, ("duration", format_elapsed(run["duration_seconds"])), ("rate", rate)])


def _load_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--site", default="", metavar="S", help="only landings of this site")
    parser.add_argument("--fail-if-nothing", action="store_true", help="exit 9 where there was nothing to load")
    receiver_argument(parser, each=True)


def _run_load(call: Call) -> Answer:
    return answer_receivers(call, lambda receiver: _load_receiver(call, receiver))


def _load_receiver(call: Call, receiver: ReceiverSettings) -> Answer:
    from tidemark.receiver.load.load import load

    began = time.monotonic()
    with progress.show_progress(call.screen) as beat:
        result = load(call.app, receiver, call.arguments.site, progress=beat)
        if receiver.iotdb:
            from tidemark.receiver.iotdb.load import with_iotdb

            result = with_iotdb(call.app, receiver, result, beat)
    code = result.exit_code
    if call.arguments.fail_if_nothing and code == 0 and not result.landings and not result.has_given:
        code = NOTHING_TO_DO
    seconds = time.monotonic() - began
    found = {
        **result.as_json(),
        "duration_seconds": round(seconds, 3),
        "files_per_second": round(result.loaded / seconds, 1),
    }
    return Answer(found, lambda screen: _show_load(screen, found, result.troubles), code)


def _show_load(screen: Screen, found: dict[str, Any], troubles: Sequence[Trouble]) -> None:
    keys = ("landings", "loaded", "quarantined", "refused", "waiting", "rejected")
    told: list[tuple[str, Any]] = [(key, found[key]) for key in keys if found[key]]
    if not told and not found.get("iotdb") and not found["troubles"]:
        screen.print_line(f"{found['receiver']}: nothing to load ({format_elapsed(found['duration_seconds'])})")
        return
    told.insert(0, ("receiver", found["receiver"]))
    if given := found.get("iotdb"):
        told += [(f"iotdb {key}", given[key]) for key in ("server", "files", "points", "found", "gone", "counted")]
    rate = f"{found['files_per_second']:,} files/s" if found["files_per_second"] else ""
    screen.print_pairs([*told, ("duration", format_elapsed(found["duration_seconds"])), ("rate", rate)])
    for trouble in troubles[:SHOWN]:
        screen.print_line(f"  {trouble.what}: {trouble.text}")


def _merge_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--database", default="", metavar="D", help="only this database")
    parser.add_argument("--partition", type=int, metavar="P", help="only this time partition")
    receiver_argument(parser, each=True)


def _run_merge(call: Call) -> Answer:
    return answer_receivers(call, lambda receiver: _merge_receiver(call, receiver))


def _merge_receiver(call: Call, receiver: ReceiverSettings) -> Answer:
    from tidemark.receiver.merge.merge import merge

    asked = call.arguments
    with progress.show_progress(call.screen) as beat:
        result = merge(call.app, receiver, asked.database or None, asked.partition, progress=beat)
    found = result.as_json()
    return Answer(found, lambda screen: _show_merge(screen, found), result.exit_code)


def _show_merge(screen: Screen, found: dict[str, Any]) -> None:
    if not found["groups"] and not found["files_in"]:
        screen.print_line("nothing to merge")
        return
    told = [(key.replace("_", " "), found[key]) for key in ("groups", "files_in", "files_out", "rows")]
    screen.print_pairs([*told, ("duration", format_elapsed(found["seconds"]))])


def _adopt_arguments(parser: argparse.ArgumentParser) -> None:
    _link_argument(parser)
    parser.add_argument(
        "dir", metavar="DIR", help="folder of an original Sync Tool, or files that are at the receiver already"
    )
    parser.add_argument("--other-uuid", action="store_true", help="take it though its sender had another UUID than the site")


def _run_adopt(call: Call) -> Answer:
    from tidemark.sync.adopt import adopt

    with progress.show_progress(call.screen) as beat:
        asked = call.arguments
        found = adopt(call.app, asked.link, Path(asked.dir), beat, asked.other_uuid).as_json()
    told = [(key.replace("_", " "), shorten_list(value)) for key, value in found.items() if key != "ok"]
    return Answer(found, lambda screen: screen.print_pairs(told))


VERBS = (
    Verb(
        "plan",
        "what a sync would do; changes nothing",
        "./tidemark plan plant1 --out plan.json",
        _run_plan,
        _plan_arguments,
        only_looks=True,
    ),
    Verb(
        "sync",
        "one whole run of a link, or of several; continues an unfinished one first",
        "./tidemark sync plant1",
        _run_sync,
        _sync_arguments,
    ),
    Verb("load", "load landings that are not loaded yet", "./tidemark load --site plant1", _run_load, _load_arguments),
    Verb(
        "merge",
        "merge what overlaps in the catalog, and wait for it",
        "./tidemark merge --database root.factory",
        _run_merge,
        _merge_arguments,
    ),
    Verb(
        "adopt",
        "take over from an original Sync Tool, or files already there",
        "./tidemark adopt plant1 /opt/sync-client/data",
        _run_adopt,
        _adopt_arguments,
    ),
)
