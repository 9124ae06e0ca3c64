"""One finding of `doctor`: what was looked at, whether it is as it should be, what to do if not."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.errors import TidemarkError


@dataclass(frozen=True)
class Check:
    """`kind` is the exit code where it is not ok."""

    name: str
    ok: bool
    detail: str
    hint: str = ""
    kind: int = 0


def good(name: str, detail: str) -> Check:
    return Check(name, True, detail)


def bad(name: str, trouble: TidemarkError, hint: str = "") -> Check:
    return Check(name, False, trouble.message, hint or trouble.hint, trouble.kind)
