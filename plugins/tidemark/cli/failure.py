"""What a command says of an error: `describe_error` makes the object of `--json`, whatever was raised (CONTRACT §1).

A fault of Tidemark itself becomes a short message, and its traceback a file that can be sent along.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from tidemark.cli.call import Call
from tidemark.errors import (
    DIFFERENCES_FOUND,
    NOTHING_TO_DO,
    CorruptionError,
    GuardError,
    OwnershipError,
    PartialError,
    PermanentError,
    TidemarkError,
    limit_met,
)
from tidemark.installation import describe_absent
from tidemark.visible import escape_invisible

MEANING = {  # the error text of a result that has none of its own
    CorruptionError.kind: "something is damaged",
    NOTHING_TO_DO: "nothing to do",
    DIFFERENCES_FOUND: "differences found",
    GuardError.kind: "drops wait for approval",
    OwnershipError.kind: "a device belongs to another site",
    PartialError.kind: "the rest was done; something was left out",
}


def encode_failure(kind: int, error: str, hint: str) -> dict[str, Any]:
    return {"ok": False, "kind": kind, "error": error, "hint": hint}


def describe_error(call: Call | None, error: Exception) -> dict[str, Any]:
    """Return kind, error and hint of the exception that is being handled. `call` is None before the words are parsed."""
    if isinstance(error, TidemarkError):
        return {**error.as_json(), "hint": error.hint or _suggest_next(call)}
    if limit := limit_met(error):
        return limit.as_json()
    if isinstance(error, ModuleNotFoundError) and (absent := describe_absent(error)):
        return absent.as_json()
    if isinstance(error, OSError) and error.filename:
        return _describe_os_error(call, error)
    return _describe_defect(call, error)


def _suggest_next(call: Call | None) -> str:
    """The hint for an error that has none."""
    return f"./tidemark {call.arguments.verb} --help, ./tidemark doctor" if call else "./tidemark --help"


def _describe_os_error(call: Call | None, trouble: OSError) -> dict[str, Any]:
    """Describe a local file or folder, outside any store, that cannot be read or written."""
    place = os.fsdecode(trouble.filename)
    return PermanentError(
        f"{place}: {trouble.strerror or trouble}",
        hint=f"is there such a folder, room in it, and leave to use it? The traceback is in {_keep_traceback(call)}",
        subject=place,
    ).as_json()


def _describe_defect(call: Call | None, error: Exception) -> dict[str, Any]:
    said = f"{type(error).__name__}: {error}".strip()
    where = _keep_traceback(call)
    if damage := _find_damage(call):  # then it is no bug
        return damage.as_json()
    return encode_failure(1, f"unexpected: {said}", f"this is a fault in Tidemark; the traceback is in {where}")


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
