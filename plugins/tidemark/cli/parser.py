"""Parse the command line: verbs, options and their help. Every verb's help ends with an example."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

from tidemark import __version__
from tidemark.cli.call import Verb
from tidemark.cli.screen import guard_stdout
from tidemark.cli.verbs import cluster, operate, prove, setup, transfer
from tidemark.errors import UsageError

GROUPS: Sequence[tuple[str, Sequence[Verb]]] = (
    ("to begin", setup.VERBS),
    ("to run it in Airflow", setup.DEPLOY_VERBS),
    ("to move files", transfer.VERBS),
    ("to see and to prove", prove.VERBS),
    ("to decide", operate.VERBS),
    ("to spread it over nodes", cluster.VERBS),
)
VERBS = {verb.name: verb for _group, verbs in GROUPS for verb in verbs}

EXIT_CODES = """\
exit codes: 0 ok, 1 unexpected, 2 usage or settings, 3 not found, 5 try again, 6 needs somebody, 7 corruption,
9 nothing to do (--fail-if-nothing), 10 window over, 20 differences, 21 ownership, 22 approval needed, 23 partial,
24 source vanished, 30 no quorum; 129, 130, 143 stopped by a hangup, Ctrl-C, SIGTERM (the next run goes on from there),
141 nobody reads the result any more"""


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError on wrong usage, so that `--json` reports it as JSON."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"{self.prog} --help")

    def _print_message(self, message: str, _file: object = None) -> None:
        """Print help or version. argparse itself ignores write errors; this raises OutputClosed."""
        with guard_stdout():
            sys.stdout.write(message)
            sys.stdout.flush()


def parse_words(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parse the words: (arguments with `.verb`, words for another program). Raises UsageError, and SystemExit for help."""
    _require_utf8(words)
    wanted = _verb_of(words)
    parser = _make_parser()
    chosen = parser.add_subparsers(dest="verb", metavar="VERB", parser_class=_Parser, help=argparse.SUPPRESS)
    for verb in [VERBS[wanted]] if wanted else VERBS.values():
        _add_verb(chosen, verb)
    ours, rest = _split_words(words, VERBS[wanted]) if wanted else (list(words), [])
    arguments = parser.parse_args(ours)
    if arguments.verb is None:
        raise UsageError("say what to do", hint="./tidemark --help")
    return arguments, rest


def _require_utf8(words: Sequence[str]) -> None:
    """Raise UsageError for a word that is not UTF-8. Ledger, manifests and JSON hold UTF-8 only."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise UsageError(f"not UTF-8: {word!a}", hint="./tidemark --help") from None


def _verb_of(words: Sequence[str]) -> str:
    """The verb: the first word that is no option, "" if there is none. Raises UsageError for an unknown verb."""
    before = ""
    for word in words:
        if not word.startswith("-") and before != "--config":
            if word in VERBS:
                return word
            near = difflib.get_close_matches(word, VERBS, n=1)
            raise UsageError(f"no verb {word!r}" + (f"; did you mean {near[0]}?" if near else ""), hint="./tidemark --help")
        before = word
    return ""


def _split_words(words: Sequence[str], verb: Verb) -> tuple[list[str], list[str]]:
    """Split the words: (words for our parser, words for another program). Common options come first, wherever they stood.

    Of a verb that passes words on, our parser gets its own flags. All other words behind it are passed on in order."""
    if not verb.flags:
        return _hoist_options(words), []
    start = list(words).index(verb.name) + 1
    own = {*verb.flags, "--json", "--yes", "--help", "-h"}
    behind = words[start:]
    return _hoist_options([*words[:start], *(w for w in behind if w in own)]), [w for w in behind if w not in own]


def _hoist_options(words: Sequence[str]) -> list[str]:
    first: list[str] = []
    others: list[str] = []
    before = ""
    for word in words:
        common = word in ("--json", "--quiet", "--yes", "--config") or word.startswith("--config=")
        (first if common or before == "--config" else others).append(word)
        before = word
    return first + others


def _make_parser() -> _Parser:
    parser = _Parser(
        prog="./tidemark",
        usage="./tidemark [--config FILE] VERB … [--json] [--quiet] [--yes]",
        description="Keeps a data centre in step with its edge sites: every sealed TsFile, once, unchanged, provably.",
        epilog=_list_verbs() + "\n\n" + EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_common_options(parser, first=True)
    parser.add_argument("--version", action="version", version=f"tidemark {__version__}", help="which Tidemark this is")
    return parser


def _add_common_options(parser: argparse.ArgumentParser, first: bool = False) -> None:
    """Add the options that may stand before or after the verb. Only the outer parser (`first`) sets their defaults."""

    def default(value: object) -> object:
        return value if first else argparse.SUPPRESS

    parser.add_argument(
        "--config", metavar="FILE", default=default(None), help="settings; else $TIDEMARK_CONFIG, else ./tidemark.toml"
    )
    parser.add_argument(
        "--json", action="store_true", default=default(False), help="the last line of stdout is one JSON object"
    )
    parser.add_argument("--quiet", action="store_true", default=default(False), help="no progress, no remarks")
    parser.add_argument("--yes", action="store_true", default=default(False), help="do not ask")


def _add_verb(chosen: argparse._SubParsersAction[_Parser], verb: Verb) -> None:
    parser = chosen.add_parser(
        verb.name,
        help=verb.summary,
        description=verb.summary[0].upper() + verb.summary[1:] + ".",
        epilog=f"example:\n  {verb.example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.prog = f"./tidemark {verb.name}"
    verb.arguments(parser)
    _add_common_options(parser)


def _list_verbs() -> str:
    lines = []
    for group, verbs in GROUPS:
        lines.append(f"{group}:")
        lines += [f"  {verb.name:<12}{verb.summary}" for verb in verbs]
    return "\n".join(lines)


def has_option(option: str, words: Sequence[str]) -> bool:
    """Whether the words contain `--option`. Works without parsing, for words that cannot be parsed."""
    return any(re.fullmatch(rf"--{option}", word) for word in words)
