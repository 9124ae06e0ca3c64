"""Run one command line and return its exit code (CONTRACT §1)."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from tidemark.cli.call import Answer, Call
from tidemark.cli.parser import VERBS, has_option, parse_words
from tidemark.cli.screen import OutputClosed, Screen, guard_stdout
from tidemark.errors import (
    DIFFERENCES_FOUND,
    NOTHING_TO_DO,
    CorruptionError,
    GuardError,
    OwnershipError,
    PartialError,
    PermanentError,
    SettingsError,
    TidemarkError,
    limit_met,
)
from tidemark.visible import escape_invisible

MEANING = {  # the error text of a result that has none of its own
    CorruptionError.kind: "something is damaged",
    NOTHING_TO_DO: "nothing to do",
    DIFFERENCES_FOUND: "differences found",
    GuardError.kind: "drops wait for approval",
    OwnershipError.kind: "a device belongs to another site",
    PartialError.kind: "the rest was done; something was left out",
}


class Stopped(BaseException):
    """SIGTERM came, or SIGHUP as the terminal closed. As with Ctrl-C, everything is closed and the next run resumes."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.code = 128 + number  # a shell's exit code for a signal


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line `words` (default: sys.argv); returns the exit code. Help raises SystemExit(0), as in argparse."""
    try:
        try:
            return _run_verb(sys.argv[1:] if words is None else words)
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


def _run_verb(words: Sequence[str]) -> int:
    screen = Screen(as_json=has_option("json", words), quiet=has_option("quiet", words))
    call: Call | None = None
    try:
        with _signals_stop():
            arguments, rest = parse_words(words)
            call = Call(arguments, screen, rest)
            verb = VERBS[arguments.verb]
            try:
                call.confirm_action(verb.asks(arguments), words)
                answer = verb.run(call)
            finally:
                call.close()
    except TidemarkError as error:
        hint = error.hint or _suggest_next(call)
        lines = error.message.split("\n") if isinstance(error, SettingsError) else [error.message]
        return _print_failure(screen, {**error.as_json(), "hint": hint}, hint, lines)
    except (KeyboardInterrupt, Stopped) as stop:
        code = stop.code if isinstance(stop, Stopped) else 130
        return _print_failure(screen, _encode_failure(code, "stopped", "the same command goes on from there"), "")
    except Exception as surprise:
        return _report_exception(screen, call, surprise)
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
    if screen.as_json:
        screen.print_json(told)
    else:
        answer.show(screen)
    for key, before in (("error", "tidemark: "), ("hint", "  next: ")):
        if answer.code and told.get(key):
            screen.print_error(f"{before}{told[key]}")
    return answer.code


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


def _encode_failure(kind: int, error: str, hint: str) -> dict[str, Any]:
    return {"ok": False, "kind": kind, "error": error, "hint": hint}


def _suggest_next(call: Call | None) -> str:
    """The hint for an error that has none."""
    return f"./tidemark {call.arguments.verb} --help, ./tidemark doctor" if call else "./tidemark --help"


def _report_exception(screen: Screen, call: Call | None, error: Exception) -> int:
    limit = limit_met(error)
    if limit is not None:
        return _print_failure(screen, limit.as_json(), limit.hint)
    if isinstance(error, OSError) and error.filename:
        return _report_os_error(screen, call, error)
    return _report_defect(screen, call, error)


def _report_os_error(screen: Screen, call: Call | None, trouble: OSError) -> int:
    """Report a local file or folder, outside any store, that cannot be read or written."""
    place = os.fsdecode(trouble.filename)
    error = PermanentError(
        f"{place}: {trouble.strerror or trouble}",
        hint=f"is there such a folder, room in it, and leave to use it? The whole story is in {_keep_traceback(call)}",
        subject=place,
    )
    return _print_failure(screen, error.as_json(), error.hint)


def _report_defect(screen: Screen, call: Call | None, error: Exception) -> int:
    """Report a bug of Tidemark: a short message, and the traceback in a file that can be sent along."""
    said = f"{type(error).__name__}: {error}".strip()
    where = _keep_traceback(call)
    if damage := _find_damage(call):  # then it is no bug
        return _print_failure(screen, damage.as_json(), damage.hint)
    hint = f"this is a fault in Tidemark; the whole story is in {where}"
    return _print_failure(screen, _encode_failure(1, f"unexpected: {said}", hint), hint)


def _find_damage(call: Call | None) -> CorruptionError | None:
    """The damage of this invocation's ledger, None if it is sound or no settings were read."""
    settings = call.__dict__.get("settings") if call else None
    if settings is None:
        return None
    from tidemark.ledger.database import Ledger
    from tidemark.ledger.soundness import damage_of

    return damage_of(Ledger(settings.ledger.url, settings.root))


def _keep_traceback(call: Call | None) -> str:
    text = "".join(escape_invisible(line) + "\n" for line in traceback.format_exc().rstrip("\n").split("\n"))
    folder = call.var if call else Path.cwd() / "var"
    path = folder / "errors" / f"{time.strftime('%Y%m%dT%H%M%S')}-{time.time_ns() % 10**9:09d}.txt"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{escape_invisible(' '.join(sys.argv))}\n\n{text}")
    except OSError:
        sys.stderr.write(text)  # no file could be written
        return "the lines above"
    return str(path)


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
