"""Parse one command line, run its verb and return the exit code (CONTRACT §1). Every verb's help ends with an example."""

from __future__ import annotations

import argparse
import difflib
import errno
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, NoReturn

from tidemark import __version__, connections
from tidemark.cli.call import Answer, Call, Verb
from tidemark.cli.failure import MEANING, describe_error, encode_failure
from tidemark.cli.screen import INFO, OutputClosed, Screen, guard_stdout
from tidemark.cli.verbs import changes, cluster, look_up, operate, prove, replica, setup, transfer
from tidemark.errors import (
    PermanentError,
    SettingsError,
    UsageError,
)
from tidemark.spelling import PROGRAM, Spelling

GROUPS: Sequence[tuple[str, Sequence[Verb]]] = (
    ("to begin", setup.VERBS),
    ("to run it in Airflow", setup.DEPLOY_VERBS),
    ("to move files", transfer.VERBS),
    ("to see and to prove", prove.VERBS),
    ("to decide", operate.VERBS),
    ("to spread it over nodes", (*cluster.VERBS, *replica.VERBS)),
    ("to capture changes of MySQL and MariaDB", changes.VERBS),
    ("to look things up", look_up.VERBS),
)
VERBS = {verb.name: verb for _group, verbs in GROUPS for verb in verbs}

EXIT_CODES = """\
exit codes: 0 ok, 1 unexpected, 2 usage or settings, 3 not found, 5 try again, 6 needs somebody, 7 corruption,
9 nothing to do (--fail-if-nothing), 10 window over, 20 differences, 21 ownership, 22 approval needed, 23 partial,
24 source vanished, 30 no quorum, 31 binlog gap; 129, 130, 143 stopped by a hangup, Ctrl-C, SIGTERM (the next run
goes on from there), 141 nobody reads the result any more"""


ALONE = ("--json", "--quiet", "--yes", "--verbose", "-v", "--log-json")  # common options without a value
WITH_VALUE = ("--config", "--log-file")
AS_GIVEN = Spelling()  # commands stay as the code writes them


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError on wrong usage, so that `--json` reports it as JSON. Its help names the
    program as the user calls it."""

    spelling = Spelling()
    verb = ""  # whose words are parsed, where this is the parser of all verbs

    def error(self, message: str) -> NoReturn:
        asked = " ".join(word for word in (self.prog, self.verb, "--help") if word)
        hint = "./tidemark plan LINK says what a sync would do" if "--dry-run" in message else asked
        raise UsageError(message, hint=hint)

    def _print_message(self, message: str, _file: object = None) -> None:
        """Print help or version. argparse itself ignores write errors; this raises OutputClosed."""
        with guard_stdout():
            sys.stdout.write(self.spelling.spell(message))
            sys.stdout.flush()


def parse_words(words: Sequence[str], spelling: Spelling = AS_GIVEN) -> tuple[argparse.Namespace, list[str]]:
    """Parse the words: (arguments with `.verb`, words for another program). Raises UsageError, and SystemExit for help."""
    _require_utf8(words)
    wanted = _verb_of(words)
    if wanted == "help" and not any(word in ("--man", "--help", "-h") for word in words):
        named = [word for word in words[list(words).index("help") + 1 :] if not word.startswith("-")]
        return parse_words([*named, "--help"], spelling)
    parser = _make_parser([VERBS[wanted]] if wanted else VERBS.values())
    _Parser.spelling = spelling
    ours, rest = _split_words(words, VERBS[wanted]) if wanted else (list(words), [])
    parser.verb = wanted or ""
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
        if not word.startswith("-") and before not in WITH_VALUE:
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
    ours = _before_others(words)
    for word in ours:
        common = word in ALONE or word.partition("=")[0] in WITH_VALUE
        (first if common or before in WITH_VALUE else others).append(word)
        before = word
    return [*first, *others, *words[len(ours) :]]


def _before_others(words: Sequence[str]) -> Sequence[str]:
    """The words before `--`. What stands behind it is no option of ours."""
    return words[: list(words).index("--")] if "--" in words else words


def _make_parser(verbs: Iterable[Verb]) -> _Parser:
    parser = _Parser(
        prog="./tidemark",
        usage="./tidemark [--config FILE] VERB … [--json] [--quiet] [--yes] [-v] [--log-file F] [--log-json]",
        description="Keeps a data centre in step with its edge sites: every sealed TsFile, once, unchanged, provably.",
        epilog=_list_verbs() + "\n\n" + EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_common_options(parser, first=True)
    parser.add_argument("--version", action="version", version=f"tidemark {__version__}", help="which Tidemark this is")
    chosen = parser.add_subparsers(dest="verb", metavar="VERB", parser_class=_Parser, help=argparse.SUPPRESS)
    for verb in verbs:
        _add_verb(chosen, verb)
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
    parser.add_argument("-v", "--verbose", action="store_true", default=default(False), help="show the log on stderr")
    parser.add_argument(
        "--log-file", metavar="F", default=default(None), help="append the log to this file, with all details"
    )
    parser.add_argument("--log-json", action="store_true", default=default(False), help="a JSON object per line of the log")


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
    return f"--{option}" in _before_others(words)


class Stopped(BaseException):
    """SIGTERM came, or SIGHUP as the terminal closed. As with Ctrl-C, everything is closed and the next run resumes."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.code = 128 + number  # a shell's exit code for a signal


def main(words: Sequence[str] | None = None, program: str = "") -> int:
    """Run the command line `words` (default: sys.argv); returns the exit code. Help raises SystemExit(0), as in argparse.

    `program`: how the user calls the command. What is said names commands in that way, with options of `words` that they
    need. Without it commands stay as the code writes them."""
    try:
        try:
            return _run_verb(sys.argv[1:] if words is None else words, program)
        finally:
            with guard_stdout():
                sys.stdout.flush()
    except OutputClosed as lost:
        return _report_lost_output(lost.errno)


def _report_lost_output(number: int) -> int:
    """Report that stdout takes no more; the work itself is done. If the reader closed its pipe, return 141 silently."""
    _write_nowhere([1])  # Python flushes stdout at exit
    if number == errno.EPIPE:
        return 128 + signal.SIGPIPE
    Screen().print_error(f"tidemark: the result cannot be written to stdout: {os.strerror(number)}")
    Screen().print_error("  next: the same command, with its output to where there is room; what was done stands")
    return PermanentError.kind


def _run_verb(words: Sequence[str], program: str) -> int:
    screen = Screen(as_json=has_option("json", words), quiet=has_option("quiet", words))
    screen.spelling = Spelling(program or PROGRAM)
    began = time.monotonic()
    with ExitStack() as log:
        code = _run_logged(words, program, screen, log)
        screen.record(INFO, f"ended with {code} after {time.monotonic() - began:.3f} s")
    return code


def _run_logged(words: Sequence[str], program: str, screen: Screen, log: ExitStack) -> int:
    call: Call | None = None
    try:
        with _signals_stop():
            arguments, rest = parse_words(words, screen.spelling)
            if program:
                screen.spelling = Spelling(program, arguments.config or "", getattr(arguments, "receiver", None) or "")
            if arguments.verbose or arguments.log_file or arguments.log_json:
                from tidemark.cli.log import keep_log

                log.enter_context(keep_log(arguments, words, screen))
            call = Call(arguments, screen, rest, make_parser=lambda: _make_parser(VERBS.values()))
            connections.config = arguments.config
            verb = VERBS[arguments.verb]
            call.only_looks = verb.only_looks
            try:
                call.confirm_action(verb.asks, words)
                answer = verb.run(call)
            finally:
                call.close()
    except (KeyboardInterrupt, Stopped) as stop:
        code = stop.code if isinstance(stop, Stopped) else 130
        told = encode_failure(code, "stopped", "the same command goes on from there")
        return _print_failure(screen, told, told["hint"])
    except Exception as error:
        screen.record(INFO, f"stopped by {type(error).__name__}", error)
        told = describe_error(call, error)
        lines = told["error"].split("\n") if isinstance(error, SettingsError) else [told["error"]]
        return _print_failure(screen, told, told["hint"], lines)
    return _print_answer(screen, answer)


def _write_nowhere(streams: Sequence[int]) -> None:
    for stream in streams:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


def _print_answer(screen: Screen, answer: Answer) -> int:
    """Print a result; returns its exit code. A result that needs a person (a guard, files left out) gets an error line."""
    if answer.said:
        return answer.code
    trouble = {"kind": answer.code, "error": MEANING.get(answer.code, ""), "hint": ""} if answer.code else {}
    told = {**trouble, **answer.json, "ok": answer.code == 0, **({"kind": answer.code} if answer.code else {})}
    screen.record(INFO, f"result: {_count_lists(told)}")
    if screen.as_json:
        screen.print_json(told)
    else:
        answer.show(screen)
    for key, before in (("error", "tidemark: "), ("hint", "  next: ")):
        if answer.code and told.get(key):
            screen.print_error(f"{before}{told[key]}")
    return answer.code


def _count_lists(told: Mapping[str, Any]) -> str:
    """The result in one line, of lists their length alone."""
    short = {key: len(value) if isinstance(value, (list, dict)) else value for key, value in told.items()}
    return ", ".join(f"{key} {value}" for key, value in short.items() if value not in (None, ""))


def _print_failure(screen: Screen, answer: dict[str, Any], hint: str, lines: Sequence[str] = ()) -> int:
    """Print an error and its hint; returns the exit code. `lines`: the lines of an error with several."""
    first, *more = lines or [answer["error"]]
    screen.print_error(f"tidemark: {first}")
    for line in more:
        screen.print_error(line)
    if hint:
        screen.print_error(f"  next: {hint}")
    if screen.as_json:
        screen.print_json(answer)
    return int(answer["kind"])


@contextmanager
def _signals_stop() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise `Stopped` in the main thread, so that `finally` blocks run and leases are released.

    A SIGHUP that nohup ignores stays ignored."""

    terminals = [stream for stream in (1, 2) if os.isatty(stream)]  # after a hangup isatty no longer says so

    def raise_stopped(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:  # writing to a closed terminal would be the next error
            _write_nowhere(terminals)
        raise Stopped(number)

    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, raise_stopped) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
