"""The verb `cluster`: show, check and change a receiver's data nodes."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemark.cli import progress
from tidemark.cli.call import Answer, Call, Verb, add_action
from tidemark.cli.screen import Screen, write_output
from tidemark.cli.verbs.transfer import SHOWN, receiver_argument
from tidemark.errors import UsageError
from tidemark.progress import format_duration, format_size
from tidemark.settings.model import ReceiverSettings

if TYPE_CHECKING:
    from tidemark.cluster.membership.change import ChangeResult, Wanted
    from tidemark.progress import Progress
    from tidemark.proof.cluster.view import ClusterView, MovingView


Choices = Any  # what argparse calls _SubParsersAction, which it does not export
BAR_WIDTH = 32  # of a node's bar, in characters
PROGRESS_WIDTH = 20  # width of a progress bar
MOVES_SHOWN = 12  # rows of the table of moves

_EIGHTHS = " ▏▎▍▌▋▊▉"


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    choices = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    receiver_argument(_add_action(choices, "init", "begin with the nodes of the settings"))
    shown = _add_action(choices, "show", "nodes, slots by node, what moves and how far it is", "--html cluster.html")
    shown.add_argument("--html", metavar="F", help="write a picture as one HTML file")
    receiver_argument(shown)
    plans = _add_action(choices, "plan", "what a change would move; changes nothing", "remove n1")
    kinds = plans.add_subparsers(dest="kind", metavar="add|remove|rebalance", required=True)
    _add_change_parsers(kinds, plan=True)
    _add_change_parsers(choices, plan=False)
    receiver_argument(_add_action(choices, "roll-back", "give up a change that is not in force yet"))
    whole = "all nodes agree, every copy is there and whole, nothing is left over"
    checked = _add_action(choices, "check", whole, "--repair")
    checked.add_argument("--repair", action="store_true", help="make again what is wrong from what is right")
    checked.add_argument(
        "--lost", default="", metavar="NODE", help="its disk was lost: fill its empty folder; with --repair"
    )
    receiver_argument(checked)
    example = "root.factory 2026-11-23T00:00:00Z"
    routed = _add_action(choices, "route", "where data of a database (or device) at a time is written", example)
    routed.add_argument("database", metavar="DATABASE")
    routed.add_argument("time", nargs="?", default="", metavar="TIME", help="ISO 8601 or an integer; without it: its schema")
    receiver_argument(routed)


def _add_change_parsers(choices: Choices, plan: bool) -> None:
    """Add the subcommands of the three changes, for planning or for doing them."""
    before = "plan " if plan else ""
    add = _add_action(choices, f"{before}add", "let a node join", "n4=sftp://tidemark@10.0.1.4/srv/node --host-key SHA256:…")
    add.add_argument(
        "node", metavar="NODE=URL", help="file:///folder or sftp://user@host:port/folder; NODE: of the settings"
    )
    add.add_argument("--host-key", default="", metavar="SHA256:…", help="of an sftp node's server")
    add.add_argument("--key", default="", metavar="FILE", help="private key file of the login")
    remove = _add_action(choices, f"{before}remove", "move everything away from a node and let it leave", "n1")
    remove.add_argument("node", metavar="NODE")
    rebalance = _add_action(choices, f"{before}rebalance", "even out what the nodes hold")
    for one in (add, remove, rebalance):
        if not plan:
            one.add_argument("--no-wait", action="store_true", help="return when the new table is in force")
        receiver_argument(one)


def _add_action(choices: Choices, words: str, summary: str, example: str = "") -> argparse.ArgumentParser:
    """Add an action; `words`: as they are typed, with what stands before it."""
    return add_action(choices, words.rsplit(maxsplit=1)[-1], summary, f"./tidemark cluster {words} {example}".rstrip())


def _question_of(call: Call) -> str:
    from tidemark.operations.consequences import count_leaving

    arguments = call.arguments
    if arguments.action == "remove":
        question = f"move everything away from {arguments.node} and let it leave?"
        return call.add_numbers(question, lambda app: count_leaving(app, receiver_of(call), arguments.node))
    if arguments.action == "check" and arguments.repair and arguments.lost:
        return f"count on nothing that {arguments.lost} had, and fill its empty folder?"
    return ""


def _run_cluster(call: Call) -> Answer:
    return _ACTIONS[call.arguments.action](call)


def receiver_of(call: Call) -> ReceiverSettings:
    """The receiver that `--receiver` names, else the cluster's, else the only one."""
    from tidemark.app import find_receiver

    cluster = call.settings.cluster
    if not call.arguments.receiver and cluster is not None and cluster.receiver:
        return find_receiver(call.settings, cluster.receiver)
    return call.receiver


def wanted_of(asked: argparse.Namespace, kind: str) -> Wanted:
    """The change that the arguments describe. Raises UsageError if `add` names no node."""
    from tidemark.cluster.membership.change import Wanted

    if kind != "add":
        return Wanted(kind, getattr(asked, "node", ""))
    name, _, url = asked.node.partition("=")
    if not name or "/" in name:
        raise UsageError(
            f"{asked.node!r} names no node: write NODE=URL, or NODE alone where the settings have [nodes.NODE]",
            hint="./tidemark cluster add n4=sftp://tidemark@10.0.1.4/srv/node --host-key SHA256:…",
            subject=asked.node,
        )
    key = str(Path(asked.key).expanduser().absolute()) if asked.key else ""
    return Wanted("add", name, _resolve_url(url), asked.host_key, key)


def _resolve_url(url: str) -> str:
    """The URL of a node. A folder without a scheme is local, relative to the working folder."""
    return url if not url or "://" in url else f"file://{Path(url).absolute()}"


def _run_init(call: Call) -> Answer:
    from tidemark.cluster.membership.change import init_cluster

    return _answer_change(call, lambda beat: init_cluster(call.app, receiver_of(call), beat))


def _run_show(call: Call) -> Answer:
    from tidemark.proof.cluster.show import show_cluster

    view = show_cluster(call.app, receiver_of(call))
    if call.arguments.html:
        from tidemark.proof.cluster.page import render_page
        from tidemark.proof.cluster.replicas import show_replicas

        groups = show_replicas(call.app, receiver_of(call)).groups  # asks the nodes
        write_output(Path(call.arguments.html), render_page(view, groups))
    return Answer(view.as_json(), lambda screen: print_cluster(screen, view))


def _run_plan(call: Call) -> Answer:
    from tidemark.cluster.membership.change import plan_change

    found = plan_change(call.app, receiver_of(call), wanted_of(call.arguments, call.arguments.kind)).as_json()
    return Answer(found, lambda screen: _show_plan(screen, found))


def _show_plan(screen: Screen, found: Mapping[str, Any]) -> None:
    takes = f", about {_rounded_up(found['seconds'])}" if found.get("seconds") else ""
    screen.print_line(f"epoch {found['epoch']}: {found['slots']:,} slots would move, {format_size(found['bytes'])}{takes}")
    rows = [
        (_format_ranges(m), m["slots"], _join_names(m["from"]), _join_names(m["to"]), format_size(m["bytes"]))
        for m in found["moves"][:SHOWN]
    ]
    screen.print_table(["slots", "number>", "from", "to", "bytes>"], rows)
    if len(found["moves"]) > SHOWN:
        screen.print_line(f"… {len(found['moves']) - SHOWN:,} more: --json")
    gains = [(one["node"], one["slots"], format_size(one["bytes"]), _rounded_up(one["seconds"])) for one in found["nodes"]]
    screen.print_table(["node", "slots that come>", "bytes>", "time>"], gains)


def _rounded_up(seconds: float) -> str:
    """Format a duration, rounded up to whole seconds."""
    return format_duration(ceil(seconds))


def _format_ranges(move: Mapping[str, Any]) -> str:
    from tidemark.proof.cluster.view import spans_text

    return spans_text([(first, last) for first, last in move.get("ranges") or ()], 2)


def _join_names(group: object) -> str:
    return ", ".join(map(str, group)) if isinstance(group, (list, tuple)) else str(group)


def _run_change(call: Call) -> Answer:
    from tidemark.cluster.membership.change import change_nodes

    asked = call.arguments
    wanted = wanted_of(asked, asked.action)
    answer = _answer_change(
        call, lambda beat: change_nodes(call.app, receiver_of(call), wanted, beat, wait=not asked.no_wait)
    )
    in_settings, done = wanted.node in call.settings.nodes, answer.json["state"] == "done"
    if wanted.kind == "add" and done and not in_settings:
        told = f"write [nodes.{wanted.node}] into {call.settings.path}, so that it says what there is"
    elif wanted.kind == "remove" and done and in_settings:
        told = f"take [nodes.{wanted.node}] out of {call.settings.path}: it has left"
    else:
        return answer
    call.screen.print_remark(f"  {told}")
    return replace(answer, json={**answer.json, "edit": told})


def _run_roll_back(call: Call) -> Answer:
    from tidemark.cluster.membership.change import roll_back

    return _answer_change(call, lambda _beat: roll_back(call.app, receiver_of(call)))


def _answer_change(call: Call, act: Callable[[Progress], ChangeResult]) -> Answer:
    with progress.show_progress(call.screen) as beat:
        found = act(beat).as_json()
    return Answer(found, lambda screen: _show_changed(screen, found))


def _show_changed(screen: Screen, found: Mapping[str, Any]) -> None:
    moved = f"{found['moved_slots']:,} slots and {format_size(found['moved_bytes'])} have moved"
    screen.print_line(f"epoch {found['epoch']}: {found['state']}; {moved}")
    for path in found["roads"]:
        screen.print_line(f"  {path['from']} to {path['to']}: {path['road']}")
    if found["state"] not in ("done", "rolled_back"):
        screen.print_remark("  ./tidemark cluster show tells how far it is")


def _run_check(call: Call) -> Answer:
    from tidemark.cluster.health.check import check_cluster
    from tidemark.cluster.health.problems import MEND
    from tidemark.cluster.health.repair import repair_cluster

    mending, lost = call.arguments.repair, call.arguments.lost
    if lost and not mending:
        raise UsageError("--lost changes what is there: it goes with --repair", hint=f"{MEND} --lost {lost}", subject=lost)
    with progress.show_progress(call.screen) as beat:
        app, receiver = call.app, receiver_of(call)
        report = repair_cluster(app, receiver, beat, lost) if mending else check_cluster(app, receiver, beat)
    found = report.as_json()
    return Answer(found, lambda screen: _show_check(screen, found), report.exit_code)


def _show_check(screen: Screen, found: Mapping[str, Any]) -> None:
    problems = found["problems"]
    looked = f"{found['nodes']:,} nodes, {found['files']:,} files, {found['copies']:,} copies, {format_size(found['bytes'])}"
    screen.print_line(f"epoch {found['epoch']}: {looked}; {len(problems):,} problems")
    if found["repaired"]:
        screen.print_line(f"  {found['repaired']:,} are mended")
    if found["moving"]:
        screen.print_line(f"  {found['moving']:,} slots move: ./tidemark cluster show")
    columns = ["node", "slot>", "location", "problem", "next"]
    screen.print_table(columns, [[one[key.rstrip(">")] for key in columns] for one in problems[:SHOWN]])
    if len(problems) > SHOWN:
        screen.print_line(f"… {len(problems) - SHOWN:,} more: --json")


def _run_route(call: Call) -> Answer:
    from tidemark.proof.cluster.show import find_route

    asked = call.arguments
    found = find_route(call.app, receiver_of(call), asked.database, asked.time).as_json()
    return Answer(found, lambda screen: _show_route(screen, found))


def _show_route(screen: Screen, found: Mapping[str, Any]) -> None:
    what = "schema" if found["partition"] is None else f"partition {found['partition']}"
    screen.print_line(
        f"{found['database']}, {what}: slot {found['slot']} of {_join_names(found['members'])} (epoch {found['epoch']})"
    )
    if found["before"]:
        screen.print_line(f"  it moves: readers also ask {_join_names(found['before'])}")
    if not found["known"]:
        screen.print_remark("  no file of that database is in the catalog yet")


def print_cluster(screen: Screen, view: ClusterView) -> None:
    """Print what `cluster show` shows without `--json`."""
    screen.print_line(format_headline(view))
    coming = _count_incoming(view)
    most = max((node.slots for node in view.nodes), default=0)
    rows = [
        (
            node.name,
            node.state,
            format_bar(node.slots, coming[node.name], most),
            node.slots,
            node.holds,
            format_size(node.bytes),
            node.epoch,
            node.store,
        )
        for node in view.nodes
    ]
    screen.print_table(["node", "state", "slots it heads", ">", "copies of>", "bytes>", "table>", "folder"], rows)
    if coming:
        screen.print_line("  ▒ its files are on the way; readers ask the old group, too")
    _print_moves(screen, view)
    for path in view.roads:
        screen.print_line(f"  {path.source} to {path.node}: {path.road}")
    if view.ahead:
        screen.print_line(f"  {view.older}")
    if view.change is not None:
        from tidemark.cluster.nodes.cluster import command_of_change

        goes_on = command_of_change(view.change.command)
        screen.print_line(f"  {view.change.command} is {view.change.state}; {goes_on} goes on with it")


def format_headline(view: ClusterView) -> str:
    serving = sum(node.state == "serving" for node in view.nodes)
    text = f"{view.receiver}: epoch {view.epoch}, {view.slots:,} slots × {view.replicas} copies on {serving} nodes"
    if not view.moving:
        return text
    come = f"{format_size(view.moved_bytes)} of {format_size(view.moving_bytes)} have come"
    return f"{text}; {view.moving_slots:,} slots move, {come}"


def format_bar(whole: int, coming: int, most: int) -> str:
    """Draw `whole` of `most` as a bar of at most BAR_WIDTH. Its last part, `coming`, is drawn light."""
    if not most or not whole:
        return ""
    settled = (whole - coming) * BAR_WIDTH * 8 // most
    solid = "█" * (settled // 8) + _EIGHTHS[settled % 8].strip()
    light = round(coming * BAR_WIDTH / most) or bool(coming)
    return solid + "▒" * light


def progress_bar(done: int, whole: int) -> str:
    """Draw a progress bar `████░░ 66 %`. It says 100 % only if all is done."""
    share = 1.0 if done >= whole else done / whole
    filled = int(share * PROGRESS_WIDTH)
    return f"{'█' * filled}{'░' * (PROGRESS_WIDTH - filled)} {int(share * 100):3d} %"


def _count_incoming(view: ClusterView) -> Counter[str]:
    """Count by node the slots that it will head, did not hold before and has not received completely."""
    found: Counter[str] = Counter()
    for one in view.moving:
        if one.state == "moving" and one.new[0] not in one.old:
            found[one.new[0]] += one.slots
    return found


def _print_moves(screen: Screen, view: ClusterView) -> None:
    ordered = sorted(view.moving, key=lambda one: (one.done - one.bytes, one.spans))  # most missing bytes first
    screen.print_table(
        ["slots", "number>", "from", "to", "how far", "bytes>", "of>"], [_format_move(one) for one in ordered[:MOVES_SHOWN]]
    )
    if len(ordered) > MOVES_SHOWN:
        screen.print_line(f"… {len(ordered) - MOVES_SHOWN:,} more ways: --json, or --html FILE")


def _format_move(one: MovingView) -> tuple[object, ...]:
    from tidemark.proof.cluster.view import spans_text

    far = "all there" if one.state == "acknowledged" else progress_bar(one.done, one.bytes)
    old, new = ", ".join(one.old) or "the receiver", ", ".join(one.new)
    return (spans_text(one.spans, 2), one.slots, old, new, far, format_size(one.done), format_size(one.bytes))


_ACTIONS: Mapping[str, Callable[[Call], Answer]] = {
    "init": _run_init,
    "show": _run_show,
    "plan": _run_plan,
    "add": _run_change,
    "remove": _run_change,
    "rebalance": _run_change,
    "roll-back": _run_roll_back,
    "check": _run_check,
    "route": _run_route,
}

VERBS = (
    Verb(
        "cluster",
        "data nodes: init, show, plan, add, remove, rebalance, check, route",
        "./tidemark cluster plan add n4=sftp://tidemark@10.0.1.4/srv/node --host-key SHA256:…",
        _run_cluster,
        _add_arguments,
        asks=_question_of,
    ),
)
