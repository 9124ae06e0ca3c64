"""The verb `replica`: the members of each data group, and what their logs have."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tidemark.cli.call import Answer, Call, Verb, add_action
from tidemark.cli.screen import Screen
from tidemark.cli.verbs.cluster import receiver_of
from tidemark.cli.verbs.transfer import from_nodes_argument, receiver_argument

if TYPE_CHECKING:
    from tidemark.proof.cluster.replicas import ReplicasView


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    choices = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    summary = "master, slaves, unsynced and offline members of each group, at which version, and why"
    show = add_action(choices, "show", summary, "./tidemark replica show")
    receiver_argument(show)
    from_nodes_argument(show)


def _run_replica(call: Call) -> Answer:
    from tidemark.operations.rebuild.from_nodes import open_from_nodes
    from tidemark.proof.cluster.replicas import show_replicas

    if call.arguments.from_nodes:
        with open_from_nodes(call.settings, receiver_of(call), whole=False) as app:
            view = show_replicas(app, receiver_of(call))
    else:
        view = show_replicas(call.app, receiver_of(call))
    return Answer(view.as_json(), lambda screen: print_replicas(screen, view))


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
