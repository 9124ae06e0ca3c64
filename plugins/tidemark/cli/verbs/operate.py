"""The verbs approve, quarantine, owners, ledger: the operator's decisions, each written to the audit table."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from tidemark.cli import progress
from tidemark.cli.call import Answer, Call, Verb, add_action
from tidemark.cli.screen import Screen, shorten_list
from tidemark.cli.several import answer_receivers
from tidemark.cli.verbs.transfer import SHOWN, receiver_argument
from tidemark.errors import UsageError
from tidemark.settings.model import ReceiverSettings

if TYPE_CHECKING:
    from tidemark.app import App


_REFUSED = ("site", "path", "device", "owner")


def _approve_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="the run whose drops wait (status and why name it)")


def _approve_asks(call: Call) -> str:
    from tidemark.operations.consequences import count_approval

    run = call.arguments.run
    return call.add_numbers(f"let run {run} drop what it found gone?", lambda app: count_approval(app, run))


def _run_approve(call: Call) -> Answer:
    from tidemark.operations.decisions import approve_run

    return _answer_result(approve_run(call.app, call.arguments.run))


def _quarantine_arguments(parser: argparse.ArgumentParser) -> None:
    choices = parser.add_subparsers(dest="action", metavar="list|release|drop", required=True)
    listed = add_action(choices, "list", "what is in quarantine, and why", "./tidemark quarantine list")
    receiver_argument(listed, each=True)
    for name, what in (("release", "try to load it again"), ("drop", "give it up; its bytes are removed")):
        choice = add_action(choices, name, what, f"./tidemark quarantine {name} 7")
        choice.add_argument("id", metavar="ID", help="from quarantine list")
        receiver_argument(choice)


def _quarantine_asks(call: Call) -> str:
    from tidemark.operations.consequences import count_held

    asked = call.arguments
    if asked.action != "drop":
        return ""
    return call.add_numbers(f"remove {asked.id} from quarantine for good?", lambda app: count_held(app, asked.id))


def _run_quarantine(call: Call) -> Answer:
    from tidemark.operations import decisions

    asked = call.arguments
    if asked.action == "list":
        columns = ("id", "site", "path", "at", "reason")
        return _list_each(call, decisions.quarantine_list, columns, "nothing is in quarantine")
    if asked.action == "release":
        result = decisions.quarantine_release(call.app, call.receiver, asked.id)
    else:
        result = decisions.quarantine_drop(call.app, call.receiver, asked.id)
    return _answer_result(result)


def _owners_arguments(parser: argparse.ArgumentParser) -> None:
    choices = parser.add_subparsers(dest="action", metavar="list|transfer|dismiss", required=True)
    listed = add_action(choices, "list", "which site owns which device, since when", "./tidemark owners list")
    receiver_argument(listed, each=True)
    example = "./tidemark owners transfer 'root.f.**' --to plant2"
    transfer = add_action(choices, "transfer", "give devices to another site; what was refused is loaded", example)
    transfer.add_argument("pattern", metavar="PATTERN", help="a device, or a pattern such as 'root.plant1.**'")
    transfer.add_argument("--to", required=True, metavar="SITE", help="the new owner")
    receiver_argument(transfer)
    example = "./tidemark owners dismiss plant2"
    dismiss = add_action(choices, "dismiss", "give up the refused files of a site; their bytes are removed", example)
    dismiss.add_argument("site", metavar="SITE", help="the site that sent them")
    receiver_argument(dismiss)


def _owners_asks(call: Call) -> str:
    from tidemark.operations.consequences import count_dismissed, count_transfer

    asked = call.arguments
    if asked.action == "dismiss":
        question = f"give up the refused files of {asked.site} for good?"
        return call.add_numbers(question, lambda app: count_dismissed(app, call.receiver, asked.site))
    if asked.action != "transfer":
        return ""
    question = f"transfer ownership of {asked.pattern} to {asked.to}?"
    return call.add_numbers(question, lambda app: count_transfer(app, call.receiver, asked.pattern, asked.to))


def _run_owners(call: Call) -> Answer:
    from tidemark.operations import decisions

    asked = call.arguments
    if asked.action == "list":
        return _list_each(call, decisions.owners_list, ("device", "site", "since", "landing"), "no device has an owner yet")
    if asked.action == "dismiss":
        return _answer_result(decisions.owners_dismiss(call.app, call.receiver, asked.site))
    result = decisions.owners_transfer(call.app, call.receiver, asked.pattern, asked.to)
    with call.app.ledger.read() as connection:
        names = call.app.site_names(connection)
    return _answer_result(result, names)


def _ledger_arguments(parser: argparse.ArgumentParser) -> None:
    choices = parser.add_subparsers(dest="action", metavar="backup|rebuild|upgrade", required=True)
    example = "./tidemark ledger backup /backup/ledger.db"
    backup = add_action(choices, "backup", "a copy of the ledger while it is in use", example)
    backup.add_argument("out", nargs="?", metavar="F", help="where to (default: var/backup/, named by the time)")
    example = "./tidemark ledger rebuild --replace"
    rebuild = add_action(choices, "rebuild", "a new ledger from manifests, receipts and files", example)
    rebuild.add_argument("--replace", action="store_true", help="in place of one that has rows; a copy of it is kept")
    told = (
        "by the logs of the data nodes, also in place of one that is older than they are: needs [nodes], else as --replace"
    )
    rebuild.add_argument("--from-nodes", action="store_true", help=told)
    add_action(choices, "upgrade", "bring the database to this version", "./tidemark ledger upgrade")


def _ledger_asks(call: Call) -> str:
    from tidemark.operations.consequences import count_ledger
    from tidemark.operations.rebuild.rebuild import has_rows

    asked = call.arguments
    if asked.action != "rebuild" or not (asked.replace or asked.from_nodes):
        return ""
    if asked.from_nodes and not (call.settings.nodes and has_rows(call.settings)):
        return ""
    question = "put a new ledger, made from what lies at the receivers, in the place of this one?"
    return call.add_numbers(question, count_ledger)


def _run_ledger(call: Call) -> Answer:
    from tidemark.operations.rebuild import rebuild

    asked = call.arguments
    if asked.action == "backup":
        return _answer_result(rebuild.backup_ledger(call.any_app, Path(asked.out) if asked.out else None))
    if asked.action == "upgrade":
        return _answer_result(rebuild.upgrade_ledger(call.settings))
    if asked.from_nodes and not call.settings.nodes:
        raise UsageError("the settings have no [nodes] that could be asked", hint="./tidemark ledger rebuild")
    with progress.show_progress(call.screen) as beat:
        return _answer_result(rebuild.rebuild_ledger(call.settings, beat, replace=asked.replace or asked.from_nodes))


def _list_each(call: Call, read: Callable[[App, ReceiverSettings], _Result], columns: Sequence[str], empty: str) -> Answer:
    """Show these columns of the rows of the receiver that is named, or of each. `--json` has all."""

    def list_rows(receiver: ReceiverSettings) -> Answer:
        found = read(call.app, receiver).as_json()
        return Answer(found, lambda screen: _print_rows(screen, found, columns, empty))

    return answer_receivers(call, list_rows)


class _Result(Protocol):
    @property
    def exit_code(self) -> int: ...

    def as_json(self) -> dict[str, Any]: ...


def _answer_result(result: _Result, names: Mapping[str, str] = MappingProxyType({})) -> Answer:
    """Show a result. People see a site's name for its id, as `names` has it."""
    found = result.as_json()
    pairs = [
        (key, ", ".join(names.get(one, one) for one in told.split(", ")) if isinstance(told, str) else told)
        for key, told in _list_pairs(found)
    ]
    return Answer(found, lambda screen: screen.print_pairs(pairs), result.exit_code)


def _list_pairs(found: dict[str, Any]) -> list[tuple[str, object]]:
    hidden = ("ok", "kind", "error", "hint")
    return [(key.replace("_", " "), shorten_list(value)) for key, value in found.items() if key not in hidden]


def _print_rows(screen: Screen, found: dict[str, Any], columns: Sequence[str], empty: str) -> None:
    rows = next((value for value in found.values() if isinstance(value, list)), [])
    screen.print_table(columns, [[_format_cell(column, row) for column in columns] for row in rows], empty=empty)
    if refused := found.get("refused"):
        screen.print_line("")
        screen.print_line(f"refused ({len(refused):,})")
        screen.print_table(_REFUSED, [[row[column] for column in _REFUSED] for row in refused[:SHOWN]])
        if len(refused) > SHOWN:
            screen.print_line(f"  … {len(refused) - SHOWN:,} more: --json")


def _format_cell(column: str, row: Mapping[str, Any]) -> object:
    """Format a cell. A reason has no path in front."""
    value = row.get(column)
    return value.removeprefix(row["path"]).lstrip(": ") if column == "reason" and isinstance(value, str) else value


VERBS = (
    Verb(
        "approve",
        "let a run drop what its guard holds back",
        "./tidemark approve 20261121T120000-1a2b",
        _run_approve,
        _approve_arguments,
        asks=_approve_asks,
    ),
    Verb(
        "quarantine",
        "list, release or drop what could not be loaded",
        "./tidemark quarantine list",
        _run_quarantine,
        _quarantine_arguments,
        asks=_quarantine_asks,
    ),
    Verb(
        "owners",
        "list owners of devices, transfer some, or dismiss what was refused",
        "./tidemark owners transfer root.f.d1 --to plant2",
        _run_owners,
        _owners_arguments,
        asks=_owners_asks,
    ),
    Verb(
        "ledger",
        "back up, rebuild or upgrade the ledger",
        "./tidemark ledger backup",
        _run_ledger,
        _ledger_arguments,
        asks=_ledger_asks,
    ),
)
