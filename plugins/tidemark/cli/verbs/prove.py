"""The verbs status, runs, coverage, verify, why, read: show and prove what is where."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemark.cli import progress
from tidemark.cli.call import Answer, Call, Verb
from tidemark.cli.screen import RowStream, Screen, write_output
from tidemark.cli.several import answer_receivers
from tidemark.cli.verbs.transfer import SHOWN, from_nodes_argument, receiver_argument
from tidemark.errors import UsageError
from tidemark.progress import format_count, format_elapsed, format_size
from tidemark.settings.model import ReceiverSettings

if TYPE_CHECKING:
    from tidemark.app import App

_LIVE_ONLY = "without files that their site has no more and the catalog keeps"
FORMS, TIMES = ("csv", "jsonl", "parquet"), ("number", "instant")  # of `receiver`, which loads pyarrow
_FILLING = ("file is gone at its site and kept: it only fills", "files are gone at their site and kept: they only fill")
_MIXED = "gone at the site and kept, in settled merged files with files that it has"


def _run_status(call: Call) -> Answer:
    from tidemark.proof.overview import status

    report = status(call.app)
    found = report.as_json()
    return Answer(found, lambda screen: _show_status(screen, found), report.exit_code)


def _show_status(screen: Screen, found: dict[str, Any]) -> None:
    links = found["links"]
    columns = ["link", "state", "last run", "last success", "to send>", "bytes>", "oldest unsent", "as of", "why"]
    rows = [
        (
            link["name"],
            link["state"],
            link["last_run"],
            link.get("last_success"),
            link["backlog_files"] if link["backlog_known"] else "?",
            format_size(link["backlog_bytes"]) if link["backlog_known"] else "?",
            link["oldest_unsent"],
            link["as_of"],
            link.get("reason"),
        )
        for link in links
    ]
    sources = found.get("sources", [])
    if links or not sources:
        screen.print_table(columns, rows, empty="no links in the settings")
    if sources:
        keys = ("name", "state", "position", "newest_time", "next")
        screen.print_table(
            ("source", "state", "position", "newest", "next"), [[one[key] for key in keys] for one in sources]
        )
    for one in sources:
        if one["dead_letters"]:
            told = f"{format_count(one['dead_letters'], 'dead letter')} of its tasks"
            screen.print_line(f"  {one['name']}: {told}: ./tidemark changes show {one['name']}")
    if sinks := found.get("sinks"):
        shown = ("name", "state", "point", "behind_transactions", "behind_seconds", "why", "next")
        names = ("sink", "state", "point", "behind>", "seconds>", "why", "next")
        screen.print_table(names, [[one[key] for key in shown] for one in sinks])
    for link in links:
        if link.get("next"):
            screen.print_line(f"  {link['name']}: {link['next']}")
        for note in link["notes"]:
            screen.print_line(f"  {link['name']}: {note}")
    for one in found.get("iotdb", []):
        told = f"{format_count(one['given'], 'file')} given, {one['waits']:,} wait, {one['held']:,} held"
        screen.print_line(f"  {one['receiver']} → IoTDB {one['server']}: {one['state']}: {told}")
        for why in one["differs"][:SHOWN]:
            screen.print_line(f"    {why}")
    if "cluster" in found:
        _show_nodes(screen, found["cluster"])
    for line in found.get("lines", []):
        told = (
            ", ".join(f"{one['holder']} {format_size(one['bytes_per_second'])}/s" for one in line["holders"])
            or "nobody sends"
        )
        screen.print_line(f"  {line['receiver']}, line of {format_size(line['bytes_per_second'])}/s: {told}")


def _show_nodes(screen: Screen, cluster: dict[str, Any]) -> None:
    nodes = ", ".join(
        f"{node['name']} {format_size(node['bytes'])}" + (f" ({node['state']})" if node["state"] != "serving" else "")
        for node in cluster["nodes"]
    )
    screen.print_line(f"  {cluster['receiver']} on nodes, epoch {cluster['epoch']}: {cluster['state']}: {nodes}")
    if cluster["moving"]:
        far = f"{format_size(cluster['done'])} of {format_size(cluster['bytes'])}"
        screen.print_line(f"    {cluster['change']}: {cluster['moving']:,} slots move, {far} have come")
    if cluster["ahead"]:
        screen.print_line(f"    the ledger is older than the nodes: they are ahead in group {', '.join(cluster['ahead'])}")
    if cluster["behind"]:
        screen.print_line(f"    behind: {', '.join(cluster['behind'])}")
    if cluster["next"]:
        screen.print_line(f"    {cluster['next']}")


def _runs_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("link", metavar="LINK", nargs="?", default="", help="only this link")
    parser.add_argument("--limit", type=_count, default=SHOWN, metavar="N", help=f"the newest N; default: {SHOWN}")


def _run_runs(call: Call) -> Answer:
    from tidemark.proof.overview import runs

    found = [run.as_json() for run in runs(call.app, call.arguments.link, call.arguments.limit)]
    return Answer({"runs": found}, lambda screen: _show_runs(screen, found))


def _show_runs(screen: Screen, runs: Sequence[dict[str, Any]]) -> None:
    by_airflow = any(run["airflow_run"] for run in runs)
    paused = any(_has_paused(run) for run in runs)
    columns = ["run", "link", "started", "duration>", *(["worked>"] if paused else [])]
    columns += ["files>", "sent>", "rate>", "outcome", "why"]
    columns += ["Airflow's run"] if by_airflow else []
    rows = [
        (
            run["name"],
            run["link"],
            run["started"],
            format_elapsed(run["duration_seconds"]),
            *([format_elapsed(run["worked_seconds"])] if paused else []),
            run["files"],
            format_size(run["sent_bytes"]),
            f"{format_size(run['bytes_per_second'])}/s" if run["bytes_per_second"] else "",
            run["outcome"],
            run["error"],
            *([run["airflow_run"]] if by_airflow else []),
        )
        for run in runs
    ]
    screen.print_table(columns, rows, empty="no runs yet")


def _has_paused(run: dict[str, Any]) -> bool:
    lasted, worked = run["duration_seconds"], run["worked_seconds"]
    return worked is not None and lasted is not None and lasted - worked > 0.1 * lasted + 1.0


def _add_span_arguments(parser: argparse.ArgumentParser, each: bool) -> None:
    parser.add_argument("--site", metavar="S", help="only this site")
    parser.add_argument(
        "--from", dest="since", metavar="T", help="from here on, included: ISO 8601 or an integer of the site's unit"
    )
    parser.add_argument("--to", dest="until", metavar="T", help="up to here, not included")
    receiver_argument(parser, each)


def _coverage_arguments(parser: argparse.ArgumentParser) -> None:
    _add_span_arguments(parser, each=True)
    parser.add_argument("--html", metavar="F", help="write a heat map of one receiver as one HTML file")


def _run_coverage(call: Call) -> Answer:
    if call.arguments.html:
        return _cover_receiver(call, call.receiver)
    return answer_receivers(call, lambda receiver: _cover_receiver(call, receiver))


def _cover_receiver(call: Call, receiver: ReceiverSettings) -> Answer:
    from tidemark.proof.prove import coverage

    asked = call.arguments
    report = coverage(call.app, receiver, asked.site or "", asked.since, asked.until)
    found = report.as_json()
    if asked.html:
        from tidemark.proof.coverage.page import render_page

        write_output(Path(asked.html), render_page(report))
    return Answer(found, lambda screen: _show_coverage(screen, found), report.exit_code)


def _show_coverage(screen: Screen, found: dict[str, Any]) -> None:
    complete = "complete" if found["complete"] else "NOT COMPLETE" if found["red"] else "STALE"
    if not found["cells"]:
        complete = "nothing was expected"
    unknown = f", {found['unknown_cells']:,} unknown" if found["unknown_cells"] else ""
    screen.print_line(f"{found['receiver']}: {complete}, {format_count(found['cells'], 'cell')} (device × day){unknown}")
    for site in found["sites"]:
        stale = ", STALE: nothing is known of it since" if site["stale"] else ""
        known = f"as of {site['as_of']}{stale}" if site["as_of"] else "no listing has shown the whole site yet"
        screen.print_line(f"  {site['site']}: {known}")
    if told := found.get("replicas"):
        since = f", the first at {told['oldest']}" if told["oldest"] else ": ./tidemark replica verify"
        screen.print_line(f"  data nodes: {told['proved']:,} of {told['copies']:,} copies proved{since}")
    red = found["red"]
    columns = ["site", "device", "day", "expected>", "present>", "why"]
    screen.print_table(columns, [[cell.get(key.rstrip(">")) for key in columns] for cell in red[:SHOWN]])
    if len(red) > SHOWN:
        screen.print_line(f"… {len(red) - SHOWN:,} more: --json, or --html FILE")
    for note in found.get("notes", ()):
        screen.print_line(f"  {note}")


def _verify_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--site", metavar="S", help="only this site")
    parser.add_argument("--deep", action="store_true", help="compare every point, not only digests")
    parser.add_argument("--live-only", action="store_true", help=f"with --deep: {_LIVE_ONLY}")
    parser.add_argument("--repair", action="store_true", help="send or derive again what differs")
    receiver_argument(parser, each=True)


def _run_verify(call: Call) -> Answer:
    if call.arguments.live_only and not call.arguments.deep:
        raise UsageError("verify --live-only says which points are compared", hint="./tidemark verify --deep --live-only")
    return answer_receivers(call, lambda receiver: _verify_receiver(call, receiver))


def _verify_receiver(call: Call, receiver: ReceiverSettings) -> Answer:
    from tidemark.proof.verify.verify import verify

    asked = call.arguments
    with progress.show_progress(call.screen) as beat:
        result = verify(call.app, receiver, asked.site or "", asked.deep, asked.repair, beat, live_only=asked.live_only)
    found = result.as_json()
    return Answer(found, lambda screen: _show_verify(screen, found), result.exit_code)


def _show_verify(screen: Screen, found: dict[str, Any]) -> None:
    differences = found["differences"]
    screen.print_line(f"checked {found['checked']:,}; {format_count(len(differences), 'difference')}")
    if found["deep"]:
        screen.print_line(f"  compared point by point: {found['series']:,} series")
    for one in found["not_compared"]:
        screen.print_line(f"  nothing was compared of {one['what']}: {one['reason']}; {one['next']}")
    if differences and isinstance(differences[0], dict):
        columns = list(differences[0])
        screen.print_table(columns, [[difference.get(key) for key in columns] for difference in differences[:SHOWN]])
    kinds = (("unreachable", "not verified"), ("held", "held"), ("not_read", "not read"), ("elsewhere", "not from here"))
    for key, what in kinds:
        for item in (found.get(key) or [])[:SHOWN]:
            screen.print_line(f"  {what}: " + "  ".join(str(value) for value in item.values()))
    if found["pending"]:
        told = "changed, new or gone at the site since the newest run, or not loaded yet"
        screen.print_line(
            f"  not compared: {format_count(found['pending'], 'file')}, {told}; ./tidemark sync --all, then verify"
        )
    if found["unsent_files"]:
        late = sum(one["overdue"] for one in found["unsent"])
        overdue = f", {late:,} of them longer ago than their link's schedule allows" if late else ""
        screen.print_line(f"  sealed at their site and not sent: {found['unsent_files']:,}{overdue}")
    for one in found["unsent"][:SHOWN]:
        screen.print_line(
            f"  not sent: {one['site']}  {one['path']}  {format_size(one['bytes'])}  sealed {one['sealed_at']}"
        )
    if filling := found["kept_files"] - found["kept_mixed"]:
        screen.print_line(f"  {format_count(filling, *_FILLING)} times at which the site has no value")
    if found["kept_mixed"]:
        screen.print_line(f"  {format_count(found['kept_mixed'], 'file')} {_MIXED}: the rows count as live")
    if found["proved"]:
        screen.print_line(f"  verified at the source now, and not when sent: {format_count(found['proved'], 'file')}")
    if found["not_verified_at_source"]:
        screen.print_line(f"  still not verified at the source: {format_count(found['not_verified_at_source'], 'file')}")
    if found["adopted"]:
        screen.print_line(f"  not compared: {format_count(found['adopted'], 'file')} that another tool brought (adopt)")


def _why_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "subject", metavar="SUBJECT", help="a file, run, site, link, device, landing, node:NAME, slot:N or group:NAME"
    )
    receiver_argument(parser)


def _run_why(call: Call) -> Answer:
    from tidemark.proof.prove import why

    found = why(call.app, call.arguments.subject).as_json()
    return Answer(found, lambda screen: _show_why(screen, found))


def _show_why(screen: Screen, found: dict[str, Any]) -> None:
    evidence = found.get("evidence") or []
    screen.print_pairs((key.replace("_", " "), found.get(key)) for key in ("subject", "state", "cause"))
    for line in evidence if isinstance(evidence, list) else [evidence]:
        screen.print_line(f"  {line}")
    screen.print_pairs([("next", found.get("next")), ("if you wait", found.get("if_you_wait"))])


def _read_arguments(parser: argparse.ArgumentParser) -> None:
    _add_span_arguments(parser, each=False)
    parser.add_argument("--device", default="**", metavar="GLOB", help='a device pattern such as "root.factory.*.d1"')
    parser.add_argument("--tall", action="store_true", help="a row a point, values as canonical text")
    parser.add_argument("--verify", action="store_true", help="digest every file first, however lately that was done")
    parser.add_argument("--live-only", action="store_true", help=_LIVE_ONLY)
    parser.add_argument(
        "--measurement",
        metavar="GLOB",
        action="append",
        default=[],
        help='only measurements such as "a_*"; may be repeated',
    )
    parser.add_argument("--limit", type=_count, metavar="N", help="the first N rows of all")
    parser.add_argument(
        "--tail", type=_count, metavar="N", help="the newest N rows of each device, with --tall of each series"
    )
    parser.add_argument(
        "--times",
        choices=TIMES,
        help="numbers of the site's unit, or instants; default: instants in wide Parquet, else numbers",
    )
    parser.add_argument(
        "--out", required=True, metavar="F", help="FILE.parquet, FILE.csv or FILE.jsonl (JSON lines); -: stdout"
    )
    parser.add_argument("--format", choices=FORMS, help="what goes to stdout; default: csv")
    from_nodes_argument(parser)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def _open_stdout(asked: argparse.Namespace) -> RowStream:
    """Return stdout as a stream of rows. Raises UsageError where something else would come between them."""
    if asked.json:
        hint = "without --json: what was read is said on stderr; or --out FILE"
        raise UsageError("--out - and --json exclude each other: both write to stdout", hint=hint)
    rows = RowStream()
    if asked.format == "parquet" and rows.is_shown:
        raise UsageError("Parquet is not for a terminal", hint="--format csv, or a pipe behind it")
    return rows


def _run_read(call: Call) -> Answer:
    from tidemark.receiver.read import Query, read

    asked = call.arguments
    if asked.format and asked.out != "-":
        raise UsageError("--format is for --out -: the ending of a file's name says its form", subject=asked.out)
    out = _open_stdout(asked) if asked.out == "-" else Path(asked.out).absolute()
    query = Query(
        site=asked.site or "",
        device=asked.device,
        start=asked.since or "",
        end=asked.until or "",
        tall=asked.tall,
        verify=asked.verify,
        live_only=asked.live_only,
        measurements=tuple(asked.measurement),
        limit=asked.limit,
        tail=asked.tail,
        times=asked.times or "",
        form=asked.format or "csv",
    )
    silent = isinstance(out, RowStream) and out.is_shown  # a bar would be drawn between the rows
    with progress.show_progress(Screen(quiet=True) if silent else call.screen) as beat, ExitStack() as opened:
        app = opened.enter_context(_open_from_nodes(call)) if asked.from_nodes else call.app
        result = read(app, call.receiver, query, out, beat)
    found = result.as_json()
    return Answer(found, lambda screen: _show_read(screen, found, asked.out), result.exit_code)


def _open_from_nodes(call: Call) -> AbstractContextManager[App]:
    from tidemark.operations.rebuild.from_nodes import open_from_nodes  # verbs with a ledger need none of it

    return open_from_nodes(call.settings, call.receiver)


def _show_read(screen: Screen, found: dict[str, Any], out: str) -> None:
    say = screen.print_remark if out == "-" else screen.print_line
    say(
        f"{format_count(found['rows'], 'row')} of {format_count(found['devices'], 'device')}"
        + (f" in {out}" if out != "-" else "")
    )
    if found["kept_rows"]:
        told = "values of files that their site has no more and the catalog keeps (without them: --live-only)"
        say(f"  {format_count(found['kept_rows'], 'row has', 'rows have')} {told}")
    if found["kept_mixed"]:
        told = f"{_MIXED}: the rows are not counted, nor left out by --live-only"
        say(f"  {format_count(found['kept_mixed'], 'file')} {told}")
    if not found["devices"]:
        screen.print_remark("  nothing matches; ./tidemark coverage shows what there is")
    for what, reason in (found.get("undecodable") or {}).items():
        say(f"  not read: {what}: {reason}")


VERBS = (
    Verb("status", "per link: state, last run, lag, backlog, guard", "./tidemark status", _run_status, only_looks=True),
    Verb(
        "runs",
        "the newest runs: start, duration, rate, files, outcome",
        "./tidemark runs plant1",
        _run_runs,
        _runs_arguments,
        only_looks=True,
    ),
    Verb(
        "coverage",
        "device × day, expected against present",
        "./tidemark coverage --html coverage.html",
        _run_coverage,
        _coverage_arguments,
        only_looks=True,
    ),
    Verb(
        "verify",
        "compare source, landing and catalog by digest, or by points",
        "./tidemark verify --deep",
        _run_verify,
        _verify_arguments,
    ),
    Verb(
        "why", "explain what is not in its final state", "./tidemark why plant1", _run_why, _why_arguments, only_looks=True
    ),
    Verb(
        "read",
        "what readers of the catalog see, as Parquet, CSV or JSON lines",
        "./tidemark read --tall --out points.parquet",
        _run_read,
        _read_arguments,
        only_looks=True,
    ),
)
