"""The verb `replica`: the members of each data group, what their logs have, and what an operator decides about them."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tidemark.cli.call import Answer, Call, Verb, add_action
from tidemark.cli.progress import show_progress
from tidemark.cli.screen import Screen
from tidemark.cli.verbs.cluster import receiver_of
from tidemark.cli.verbs.transfer import from_nodes_argument, receiver_argument
from tidemark.progress import format_count, format_size

if TYPE_CHECKING:
    from tidemark.app import App
    from tidemark.cluster.health.operator import Decided
    from tidemark.cluster.health.watch import Watched
    from tidemark.operations.replicas import MemberVerified, ReplicasVerified
    from tidemark.proof.cluster.replicas import ReplicasView
    from tidemark.settings.model import ReceiverSettings

_MOST_SHOWN = 20


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    choices = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    summary = "master, slaves, unsynced and offline members of each group, at which version, and why"
    show = add_action(choices, "show", summary, "./tidemark replica show")
    receiver_argument(show)
    from_nodes_argument(show)
    summary = "the members of each group have the same files: digests of their disks against what their logs tell"
    verify = add_action(choices, "verify", summary, "./tidemark replica verify")
    receiver_argument(verify)
    from_nodes_argument(verify)
    told = "files that still have size, time and inode of their last proof are not read again"
    verify.add_argument("--cached", action="store_true", help=told)
    summary = "ask each node once; replace masters that are away, recover who fell out of step, move masters home"
    receiver_argument(add_action(choices, "watch", summary, "./tidemark replica watch"))
    summary = "bring members back into step: all, those of a node, or those of a group"
    recover = add_action(choices, "recover", summary, "./tidemark replica recover n2")
    recover.add_argument(
        "what", nargs="?", default="", metavar="NODE|group:NAME", help="all that are not in step without it"
    )
    receiver_argument(recover)
    summary = "replace a node that is away for [cluster] replace_hours: another joins, it leaves; data moves"
    receiver_argument(add_action(choices, "replace", summary, "./tidemark replica replace"))
    summary = "make another member the master of a group"
    switch = add_action(choices, "switchover", summary, "./tidemark replica switchover n1 --to n2")
    switch.add_argument("group", metavar="GROUP", help="its header node, as `replica show` names it")
    switch.add_argument("--to", required=True, metavar="NODE", help="a member that is in step")
    receiver_argument(switch)
    summary = "set a node's files and logs aside, of all its groups or of one, and bring them anew"
    resync = add_action(choices, "resync", summary, "./tidemark replica resync n2")
    resync.add_argument("node", metavar="NODE")
    told = "its header node, as `replica show` names it; all groups of the node without it"
    resync.add_argument("group", nargs="?", default="", metavar="GROUP", help=told)
    receiver_argument(resync)
    summary = "make a member master though too few answer: what only others have is lost to the group"
    force = add_action(choices, "force", summary, "./tidemark replica force n1")
    force.add_argument("group", metavar="GROUP", help="its header node, as `replica show` names it")
    force.add_argument("--master", default="", metavar="NODE", help="this member; else the one with the longest log")
    receiver_argument(force)


def _question_of(call: Call) -> str:
    from tidemark.cluster.health.operator import find_risk

    asked = call.arguments
    if asked.action == "force":
        question = f"force a master of group {asked.group}, without a quorum?"
        return call.add_numbers(
            question, lambda app: find_risk(app, receiver_of(call), asked.group, asked.master).describe()
        )
    if asked.action == "resync":
        of = f"of group {asked.group}" if asked.group else "of all its groups"
        return f"set aside all that node {asked.node} has {of}, and bring it anew?"
    return ""


def _run_replica(call: Call) -> Answer:
    with ExitStack() as opened:
        receiver, app = receiver_of(call), None
        if getattr(call.arguments, "from_nodes", False):
            from tidemark.operations.rebuild.from_nodes import open_from_nodes

            app = opened.enter_context(open_from_nodes(call.settings, receiver, whole=False))
        return _ACTIONS[call.arguments.action](call, app or call.app, receiver)


def _show(_call: Call, app: App, receiver: ReceiverSettings) -> Answer:
    from tidemark.proof.cluster.replicas import show_replicas

    view = show_replicas(app, receiver)
    return Answer(view.as_json(), lambda screen: print_replicas(screen, view))


def _verify(call: Call, app: App, receiver: ReceiverSettings) -> Answer:
    from tidemark.operations.replicas import verify_replicas

    with show_progress(call.screen) as beat:
        verified = verify_replicas(app, receiver, beat, cached=call.arguments.cached)
    return Answer(verified.as_json(), lambda screen: _print_verified(screen, verified), verified.exit_code)


def _watch(call: Call, app: App, receiver: ReceiverSettings) -> Answer:
    from tidemark.cluster.health.watch import watch_groups

    with show_progress(call.screen) as beat:
        watched = watch_groups(app, receiver, beat)
    return Answer(watched.as_json(), lambda screen: _print_watched(screen, watched), watched.exit_code)


def _replace(call: Call, app: App, receiver: ReceiverSettings) -> Answer:
    from tidemark.cluster.membership.replace import replace_away

    with show_progress(call.screen) as beat:
        replaced = replace_away(app, receiver, beat)

    def show(screen: Screen) -> None:
        if not replaced.node:
            hours = call.settings.cluster.replace_hours if call.settings.cluster else 0
            screen.print_line(f"no node is away for {hours:,} h" if hours else "[cluster] replace_hours is 0: never")
        elif replaced.did:  # else the error says why
            screen.print_line(f"{replaced.node} stays away: {replaced.did} is {replaced.state}")

    return Answer(replaced.as_json(), show, replaced.exit_code)


def _recover(call: Call, app: App, receiver: ReceiverSettings) -> Answer:
    from tidemark.cluster.health.operator import recover_members

    with show_progress(call.screen) as beat:
        return _answer_decided(recover_members(app, receiver, call.arguments.what, beat))


def _switch_over(call: Call, app: App, receiver: ReceiverSettings) -> Answer:
    from tidemark.cluster.health.operator import switch_over

    return _answer_decided(switch_over(app, receiver, call.arguments.group, call.arguments.to))


def _resync(call: Call, app: App, receiver: ReceiverSettings) -> Answer:
    from tidemark.cluster.health.operator import resync_member

    with show_progress(call.screen) as beat:
        return _answer_decided(resync_member(app, receiver, call.arguments.node, call.arguments.group, progress=beat))


def _force(call: Call, app: App, receiver: ReceiverSettings) -> Answer:
    from tidemark.cluster.health.operator import force_group

    return _answer_decided(force_group(app, receiver, call.arguments.group, call.arguments.master))


_ACTIONS = {
    "show": _show,
    "verify": _verify,
    "watch": _watch,
    "recover": _recover,
    "replace": _replace,
    "switchover": _switch_over,
    "resync": _resync,
    "force": _force,
}


def _answer_decided(decided: Decided) -> Answer:
    return Answer(decided.as_json(), lambda screen: _print_decided(screen, decided), decided.exit_code)


def _print_decided(screen: Screen, decided: Decided) -> None:
    for one in decided.done:
        brought = f"; {format_count(one.files, 'file')}, {format_size(one.bytes)}" if one.files else ""
        groups = f" in group {', '.join(one.groups)}" if one.groups else ""
        screen.print_line(f"{one.did}: {one.node}{groups}{brought}")
    for node, error in decided.left:
        screen.print_line(f"left: {node}: {error.message}")
    if not decided.done and not decided.left:
        screen.print_line("nothing to do: it is so already")


def _print_watched(screen: Screen, watched: Watched) -> None:
    screen.print_line(f"{format_count(watched.nodes, 'node')} asked for {format_count(watched.groups, 'group')}")
    lines = [
        *(f"offline: {node} missed {format_count(count, 'round')}" for node, count in watched.offline.items()),
        *(f"master of {group}: {node}" for group, node in watched.masters.items()),
        *(f"home again: {node} is master of {group}" for group, node in watched.home.items()),
        *(f"in step again: {node} in group {', '.join(groups)}" for node, groups in watched.recovered.items()),
        *(f"recovered: {node} got {format_count(count, 'file')}" for node, count in watched.files.items()),
        *(f"{node} is away for {hours:,} h: ./tidemark replica replace" for node, hours in watched.due.items()),
        *(f"not in step: {node}: {why}" for node, why in watched.waiting.items()),
        *(f"group {group} waits: {why}" for group, why in watched.waits.items()),
    ]
    for line in lines[:_MOST_SHOWN]:
        screen.print_line(f"  {line}")
    if len(lines) > _MOST_SHOWN:
        screen.print_line(f"  and {len(lines) - _MOST_SHOWN:,} more: --json has all")


def _print_verified(screen: Screen, verified: ReplicasVerified) -> None:
    rows = [
        (group.group, member.node, member.files, member.root[:16], _word_of(group.root, member))
        for group in verified.groups
        for member in group.members
    ]
    screen.print_table(["group", "node", "files>", "digest", ""], rows)
    for sentence in verified.wrong[:_MOST_SHOWN]:
        screen.print_line(f"  {sentence}")
    if len(verified.wrong) > _MOST_SHOWN:
        screen.print_line(f"  and {len(verified.wrong) - _MOST_SHOWN:,} more: --json has all")


def _word_of(root: str, member: MemberVerified) -> str:
    return "not asked" if not member.root else "equal" if member.root == root else "differs"


def print_replicas(screen: Screen, view: ReplicasView) -> None:
    """Print what `replica show` shows without `--json`."""
    from tidemark.proof.as_of import format_moment

    rows = [
        (
            group.group,
            member.node,
            member.role.value,
            member.epoch,
            member.version,
            "never" if member.log_read is None else format_moment(member.log_read),
            "; ".join(filter(None, (member.why, member.recovery))),
        )
        for group in view.groups
        for member in group.members
    ]
    screen.print_table(["group", "node", "role", "epoch>", "version>", "log read whole", "why"], rows)
    for group in view.groups:
        if group.waits:
            screen.print_line(f"  group {group.group}: {group.waits}")


VERBS = (
    Verb(
        "replica",
        "data groups: show, verify, watch, recover, replace, switchover, resync, force",
        "./tidemark replica show",
        _run_replica,
        _add_arguments,
        asks=_question_of,
    ),
)
