"""The verb `replica`: the members of each data group, and what their logs have."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tidemark.cli.call import Answer, Call, Verb, add_action
from tidemark.cli.progress import show_progress
from tidemark.cli.screen import Screen
from tidemark.cli.verbs.cluster import receiver_of
from tidemark.cli.verbs.transfer import from_nodes_argument, receiver_argument

if TYPE_CHECKING:
    from tidemark.app import App
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


def _run_replica(call: Call) -> Answer:
    with ExitStack() as opened:
        receiver, app = receiver_of(call), None
        if call.arguments.from_nodes:
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


_ACTIONS = {"show": _show, "verify": _verify}


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
    rows = [
        (group.group, member.node, member.role.value, member.epoch, member.version, member.why)
        for group in view.groups
        for member in group.members
    ]
    screen.print_table(["group", "node", "role", "epoch>", "version>", "why"], rows)
    for group in view.groups:
        if group.waits:
            screen.print_line(f"  group {group.group}: {group.waits}")


VERBS = (
    Verb(
        "replica",
        "data groups: who is master, slave, unsynced, offline, at which version",
        "./tidemark replica show",
        _run_replica,
        _add_arguments,
    ),
)
