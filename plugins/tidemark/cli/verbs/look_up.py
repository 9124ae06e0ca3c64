"""The verbs help, version, completion: look things up. They need no settings."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Sequence

from tidemark import __version__
from tidemark.cli.call import Answer, Call, Verb
from tidemark.cli.guide import SCRIPTS, render_man, suggest_words
from tidemark.errors import UsageError
from tidemark.installation import ROOT

JSON_VERSION = 1  # of the answers with --json (docs/json.md)


def _help_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="VERB", help="such as sync, or cluster add; without: all verbs")
    parser.add_argument("--man", action="store_true", help="the man page: ./tidemark help --man | man -l -")


def _run_help(call: Call) -> Answer:
    page = render_man(call.make_parser(), __version__)
    return Answer({"man": page}, lambda screen: screen.print_text(page))


def _version_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dags", action="store_true", help="only the folder of the DAGs, for a bundle of your own Airflow")


def _run_version(call: Call) -> Answer:
    found = {
        "version": __version__,
        "json": JSON_VERSION,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "place": str(ROOT),
        "dags": str(ROOT / "dags"),
    }
    told = f"tidemark {__version__} (Python {found['python']}, {found['system']}, {ROOT})"
    return Answer(found, lambda screen: screen.print_line(str(found["dags"]) if call.arguments.dags else told))


def _completion_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=[*SCRIPTS, "suggest"], help="suggest: what may stand for the last of the words")
    parser.add_argument("words", nargs="*", metavar="WORDS", help="with suggest, behind --: the words typed so far")


def _run_completion(call: Call) -> Answer:
    asked = call.arguments
    if asked.shell != "suggest":
        if asked.words:
            raise UsageError(f"a script takes no words: {asked.words[0]!r}", hint="./tidemark completion --help")
        script = SCRIPTS[asked.shell]
        return Answer({"script": script}, lambda screen: screen.print_text(script))

    def names_of(section: str) -> Sequence[str]:
        words = asked.words
        if "--config" in words[:-2]:
            asked.config = words[words.index("--config") + 1]
        try:
            return sorted(getattr(call.settings, section))
        except Exception:  # settings that cannot be read: there are no names to offer
            return []

    found = suggest_words(call.make_parser(), asked.words, names_of)
    return Answer({"words": [word for word, _ in found]}, lambda screen: screen.print_cells(found))


VERBS = (
    Verb("help", "help of a verb, or the man page", "./tidemark help cluster add", _run_help, _help_arguments),
    Verb("version", "which Tidemark, Python and system this is", "./tidemark version", _run_version, _version_arguments),
    Verb(
        "completion",
        "the script that completes words in bash, zsh or fish",
        './tidemark completion bash    # in ~/.bashrc: eval "$(tidemark completion bash)"',
        _run_completion,
        _completion_arguments,
    ),
)
