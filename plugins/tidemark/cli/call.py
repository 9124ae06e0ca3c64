"""One invocation: its arguments and what a verb needs of its surroundings; and what a verb is.

What it needs is made when first asked for. `Verb` is a name, a summary, an example line, its arguments, `run`, and
the question that it asks before it destroys something or decides for the operator. `Answer` is the object of
`--json` (CONTRACT §1), what shows the same to people, and the exit code.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemark.cli.screen import Screen
from tidemark.errors import UsageError
from tidemark.settings.load import load_settings
from tidemark.settings.model import ReceiverSettings, Settings

if TYPE_CHECKING:
    from tidemark.app import App


ROOT = Path(__file__).resolve().parents[3]  # of the checkout: the launcher, sql/, tests/, bench/, demo/


@dataclass
class Call:
    arguments: argparse.Namespace
    screen: Screen
    rest: list[str] = field(default_factory=list)  # options that belong to another program (pytest, a benchmark)
    opened: list[App] = field(default_factory=list)

    @cached_property
    def settings(self) -> Settings:
        """Read once. Raises UsageError that names every wrong line."""
        return load_settings(self.arguments.config, os.environ)

    @cached_property
    def app(self) -> App:
        """Settings, ledger and identity, opened once and closed by `close`.

        Raises PermanentError where the ledger is not the receivers', or older than one.
        """
        return self._open_app(whose_ever=False)

    @property
    def any_app(self) -> App:
        """The same with whatever ledger there is."""
        return self._open_app(whose_ever=True)

    def _open_app(self, whose_ever: bool) -> App:
        from tidemark.app import open_app

        app = open_app(self.settings, whose_ever)
        self.opened.append(app)
        return app

    @property
    def receiver(self) -> ReceiverSettings:
        """`--receiver R`, or the only one. Raises UsageError where it must be said."""
        named = getattr(self.arguments, "receiver", None) or ""
        if not named and len(self.settings.receivers) != 1:
            names = ", ".join(sorted(self.settings.receivers)) or "none"
            raise UsageError(f"which receiver? the settings have: {names}", hint="say --receiver NAME")
        return self.app.receiver_settings(named)

    @property
    def var(self) -> Path:
        """Where what is written by the way belongs: tracebacks, benchmark results."""
        settings = self.__dict__.get("settings")
        return (settings.root if settings else Path.cwd()) / "var"

    def confirm_action(self, question: str, words: Sequence[str]) -> None:
        """Ask before what cannot be taken back. `--yes` answers; nobody is asked where no person sits at stdin. Raises
        UsageError unless the answer is yes; `words`: the command line."""
        if not question or self.arguments.yes:
            return
        again = shlex.join(["./tidemark", *words, "--yes"])
        if sys.stdin is None or not sys.stdin.isatty():
            raise UsageError(f"nothing was done: {question} There is no terminal to ask at", hint=again)
        self.screen.print_error(f"{question} [y/N] ")
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise UsageError("not done", hint=f"answer y, or {again}")

    def close(self) -> None:
        for app in self.opened:
            app.ledger.close()


@dataclass(frozen=True)
class Answer:
    """`json` is the object of `--json` (CONTRACT §1), `show` prints the same for people, `code` is the exit code.

    `said`: the verb has printed its result itself (it said it while it went on, as `up` does).
    """

    json: dict[str, Any]
    show: Callable[[Screen], None]
    code: int = 0
    said: bool = False


def no_arguments(_parser: argparse.ArgumentParser) -> None:
    """For verbs that take none."""


def asks_nothing(_arguments: argparse.Namespace) -> str:
    """For verbs that destroy nothing and decide nothing."""
    return ""


@dataclass(frozen=True)
class Verb:
    """One verb. `example` is a whole command line; `run` does it.

    `asks`: the question to answer, or to take as answered by `--yes`, before these arguments are acted on: it destroys
    something or decides for the operator. "" where it does not.
    `flags`: for a verb that hands its words on to another program (pytest), the flags that are its own.
    """

    name: str
    summary: str
    example: str
    run: Callable[[Call], Answer]
    arguments: Callable[[argparse.ArgumentParser], None] = no_arguments
    flags: tuple[str, ...] = ()
    asks: Callable[[argparse.Namespace], str] = asks_nothing
