"""The types of the command line: `Call` (one invocation), `Verb` (one command) and `Answer` (its result)."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemark.cli.screen import Screen
from tidemark.errors import UsageError
from tidemark.settings.load import load_settings
from tidemark.settings.model import ReceiverSettings, Settings

if TYPE_CHECKING:
    from tidemark.app import App


@dataclass
class Call:
    arguments: argparse.Namespace
    screen: Screen
    rest: list[str] = field(default_factory=list)  # options that belong to another program (pytest, a benchmark)
    opened: list[App] = field(default_factory=list)
    only_looks: bool = False  # the verb makes no ledger
    scratch: ExitStack = field(default_factory=ExitStack)  # what ends with this call
    make_parser: Callable[[], argparse.ArgumentParser] = argparse.ArgumentParser  # of the whole command

    @cached_property
    def settings(self) -> Settings:
        """The settings, read once. Raises UsageError that names every wrong line."""
        return load_settings(self.arguments.config, os.environ)

    @cached_property
    def app(self) -> App:
        """The open application, opened once and closed by `close`.

        Raises PermanentError if the ledger does not belong to a local receiver, or is older than its mark.
        """
        return self._open_app(whose_ever=False)

    @property
    def any_app(self) -> App:
        """A newly opened application without the check that the ledger belongs to the receivers."""
        return self._open_app(whose_ever=True)

    def _open_app(self, whose_ever: bool) -> App:
        from tidemark.app import open_app
        from tidemark.ledger.database import is_unmade

        settings = self.settings
        if self.only_looks and is_unmade(settings.ledger.url, settings.root):
            settings = replace(settings, ledger=replace(settings.ledger, url=self._make_scratch_ledger()))
        app = open_app(settings, whose_ever)
        self.opened.append(app)
        return app

    def _make_scratch_ledger(self) -> str:
        """The address of an empty ledger that is gone after this call."""
        import tempfile

        folder = self.scratch.enter_context(tempfile.TemporaryDirectory(prefix="tidemark-"))
        return f"sqlite:///{folder}/ledger.db"

    @property
    def receiver(self) -> ReceiverSettings:
        """The receiver that `--receiver R` names, or the only one, by the settings alone. Raises UsageError if a name is
        needed."""
        from tidemark.app import find_receiver

        named = getattr(self.arguments, "receiver", None) or ""
        if not named and len(self.settings.receivers) != 1:
            names = ", ".join(sorted(self.settings.receivers)) or "none"
            raise UsageError(f"which receiver? the settings have: {names}", hint="say --receiver NAME")
        return find_receiver(self.settings, named)

    @property
    def var(self) -> Path:
        """The folder for by-products such as tracebacks and benchmark results."""
        settings = self.__dict__.get("settings")
        return (settings.root if settings else Path.cwd()) / "var"

    def confirm_action(self, asks: Callable[[Call], str], words: Sequence[str]) -> None:
        """Ask before an action that cannot be undone. `--yes` answers yes. `words` is the command line.

        Raises UsageError unless the answer is yes, and without asking if stdin is no terminal."""
        question = "" if self.arguments.yes else asks(self)
        if not question:
            return
        again = shlex.join(["./tidemark", *words, "--yes"])
        if sys.stdin is None or not sys.stdin.isatty():
            raise UsageError(f"nothing was done: {question} There is no terminal to ask at", hint=again)
        self.screen.print_error(f"{question} [y/N] ")
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise UsageError("not done", hint=f"answer y, or {again}")

    def add_numbers(self, question: str, count: Callable[[App], str]) -> str:
        """Return the question with what `count` says in brackets. Without a ledger, or where it says nothing, the question
        alone: the action itself reports why. Makes no ledger."""
        from tidemark.ledger.database import is_unmade

        try:
            numbers = "" if is_unmade(self.settings.ledger.url, self.settings.root) else count(self.app)
        except Exception:  # a question is asked whatever is wrong
            numbers = ""
        self.close()  # a rebuild replaces the ledger
        return f"{question} ({numbers})" if numbers else question

    def close(self) -> None:
        for app in self.opened:
            app.ledger.close()
        self.scratch.close()


@dataclass(frozen=True)
class Answer:
    """The result of a verb: `json` is the object of `--json` (CONTRACT §1), `show` prints it for people, `code`: exit code.

    `said`: the verb has already printed its result while it ran, as `up` does.
    """

    json: dict[str, Any]
    show: Callable[[Screen], None]
    code: int = 0
    said: bool = False


def no_arguments(_parser: argparse.ArgumentParser) -> None:
    """Add no arguments: the default of `Verb.arguments`."""


def add_action(choices: Any, name: str, summary: str, example: str) -> argparse.ArgumentParser:
    """Add one of a verb's own verbs to `choices`, with an example as every verb has one."""
    parser: argparse.ArgumentParser = choices.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    return parser


def asks_nothing(_call: Call) -> str:
    """No question: for verbs that destroy nothing and make no decision for the operator."""
    return ""


@dataclass(frozen=True)
class Verb:
    """One command, such as `sync`. `example` is a whole command line; `run` does the work.

    `asks`: the question to confirm (or to answer by `--yes`) before `run` destroys something or decides for the operator.
    "" if it does neither. `only_looks`: it makes no ledger where there is none. `flags`: a verb that passes its arguments on
    to another program (pytest) names its own flags here.
    """

    name: str
    summary: str
    example: str
    run: Callable[[Call], Answer]
    arguments: Callable[[argparse.ArgumentParser], None] = no_arguments
    flags: tuple[str, ...] = ()
    asks: Callable[[Call], str] = asks_nothing
    only_looks: bool = False
