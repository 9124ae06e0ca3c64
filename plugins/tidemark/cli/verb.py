"""What a verb is and what it gives back."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemark.cli.call import Call
    from tidemark.cli.screen import Screen


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
