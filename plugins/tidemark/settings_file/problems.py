"""Everything that is wrong with the settings, gathered, so that one look mends all of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from tidemark.errors import SettingsError
from tidemark.settings_file.document import Document
from tidemark.settings_file.keys import shown
from tidemark.visible import visible

_ABSENT = object()


@dataclass
class Problems:
    document: Document
    found: list[tuple[str, str]] = field(default_factory=list)  # (place, text)

    def add(self, message: str, *path: str, value: Any = _ABSENT) -> None:
        """`path` names the key; `value` is what stands there."""
        key = ".".join(path)
        said = "" if value is _ABSENT else f" = {shown(value)}"
        self.found.append((self.document.place(*path), f"{key}{said}: {message}"))

    def raise_if_any(self) -> None:
        """One UsageError with all problems, in the order of the file."""
        if not self.found:
            return
        lines = [visible(f"{place}: {text}") for place, text in sorted(self.found, key=_order)]
        head = "" if len(lines) == 1 else f"{len(lines)} problems in the settings:\n"
        raise SettingsError(
            head + "\n".join(lines), hint=f"mend {self.document.label}, then ./tidemark doctor", subject=self.document.label
        )


def _order(problem: tuple[str, str]) -> tuple[str, int, str]:
    place, text = problem
    match = re.fullmatch(r"(.*):(\d+)", place)
    return (match[1], int(match[2]), text) if match else (place, 0, text)
