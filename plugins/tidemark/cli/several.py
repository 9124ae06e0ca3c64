"""Run a verb for several links or receivers: one that fails costs itself alone, and the exit code says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from tidemark.cli.beside import run_beside
from tidemark.cli.call import Answer, Call
from tidemark.cli.failure import MEANING, describe_error
from tidemark.cli.progress import show_progress_of_each
from tidemark.cli.screen import Screen
from tidemark.errors import NOTHING_TO_DO, NotFoundError, UsageError, exit_code_of_several
from tidemark.progress import Progress
from tidemark.settings.document import is_pattern
from tidemark.settings.model import ReceiverSettings

if TYPE_CHECKING:
    from tidemark.app import App


@dataclass(frozen=True)
class Outcome:
    """What a verb did for one link or receiver. `json` has `ok`; after a failure also `kind`, `error` and `hint`."""

    name: str
    code: int
    json: dict[str, Any]
    show: Callable[[Screen], None]


def answer_each(
    call: Call, what: str, names: Iterable[str], run: Callable[[App, str], Answer]
) -> tuple[list[Outcome], dict[str, str]]:
    """Run for each name. Returns the outcomes, and `error` and `hint` for all of them if some failed.

    Raises the errors of opening the ledger: they are no one's own.
    """
    app = call.app
    return _sum_up(what, [_run_one(call, name, lambda name=name: run(app, name)) for name in names])  # type: ignore[misc]


def answer_links(
    call: Call, links: Sequence[str], run: Callable[[str, Progress], Answer]
) -> tuple[list[Outcome], dict[str, str]]:
    """Run for each link as `answer_each`, of each receiver `links_at_once` beside each other."""
    settings, found = call.app.settings, dict[str, Outcome]()
    lanes = [
        ([name for name in links if settings.links[name].receiver == receiver.name], receiver.links_at_once)
        for receiver in settings.receivers.values()
    ]
    with show_progress_of_each(call.screen, len(links)) as follow:

        def run_link(name: str, stoppable: Callable[[Progress], Progress]) -> None:
            with follow(name) as beat:
                found[name] = _run_one(call, name, lambda: run(name, stoppable(beat)))

        run_beside(lanes, run_link)
    return _sum_up("links", [found[name] for name in links])


def _sum_up(what: str, outcomes: list[Outcome]) -> tuple[list[Outcome], dict[str, str]]:
    failed = [one for one in outcomes if not one.json["ok"]]
    if not failed:
        return outcomes, {}
    shown = ", ".join(one.name for one in failed[:5]) + (", …" if len(failed) > 5 else "")
    hint = next((one.json["hint"] for one in failed if one.json.get("hint")), "")
    need = "needs" if len(failed) == 1 else "need"
    return outcomes, {"error": f"{len(failed)} of {len(outcomes)} {what} {need} a look: {shown}", "hint": hint}


def _run_one(call: Call, name: str, run: Callable[[], Answer]) -> Outcome:
    try:
        answer = run()
    except Exception as error:
        told = describe_error(call, error)
        return Outcome(name, told["kind"], told, lambda screen: screen.print_line(f"  {told['error']}"))
    trouble = {"kind": answer.code, "error": MEANING.get(answer.code, ""), "hint": ""} if answer.code else {}
    ok = answer.code in (0, NOTHING_TO_DO)
    return Outcome(name, answer.code, {**trouble, **answer.json, "ok": ok}, answer.show)


def choose_links(call: Call) -> list[str] | None:
    """Return the links that `--all` or a pattern names, in the order of their names; None where one link is named.

    Raises UsageError unless there is one or the other, NotFoundError if a pattern matches none.
    """
    asked = call.arguments
    if asked.all == bool(asked.link):
        raise UsageError("say which link, or --all", hint=f"./tidemark {asked.verb} --help")
    if asked.link and not is_pattern(asked.link):
        return None
    known = sorted(call.settings.links)
    matched = [name for name in known if asked.all or fnmatchcase(name, asked.link)]
    if not matched:
        told = f"no link matches {asked.link!r}" if asked.link else "there are no links"
        names = ", ".join(known) or "none"
        raise NotFoundError(f"{told}; the settings have: {names}", hint="./tidemark status lists the links")
    return matched


def answer_receivers(call: Call, run: Callable[[ReceiverSettings], Answer]) -> Answer:
    """Answer for the receiver of `--receiver`, or the only one; else for each, as `receivers` in the JSON."""
    if getattr(call.arguments, "receiver", None) or len(call.settings.receivers) < 2:
        return run(call.receiver)
    outcomes, trouble = answer_each(
        call, "receivers", sorted(call.settings.receivers), lambda app, name: run(app.receiver_settings(name))
    )
    found = {"receivers": [{"receiver": one.name, **one.json} for one in outcomes], **trouble}

    def show(screen: Screen) -> None:
        for one in outcomes:
            screen.print_line(f"receiver {one.name}")
            one.show(screen)

    return Answer(found, show, code_of(outcomes))


def code_of(outcomes: Sequence[Outcome]) -> int:
    return exit_code_of_several([one.code for one in outcomes])
