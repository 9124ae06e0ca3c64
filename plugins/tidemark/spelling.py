"""Commands in what is said to people, spelled as this user called the command, so that each works when it is pasted.

Code says `./tidemark VERB …` in hints, wherever it stands. On the way to a screen that becomes the program as it was called,
with the `--config` and the `--receiver` of this call. Airflow's tasks were called by nobody: an installed wheel says
`tidemark` and names its settings. What the ledger and logs keep has the first form.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemark import installation

PROGRAM = "./tidemark"
_COMMAND = re.compile(
    r"(?<![\w./])\./tidemark"
    r"(?P<verb>(?: (?:quarantine|owners|ledger|changes|replica|cluster(?: plan)?) [a-z][a-z-]*| [a-z][a-z-]*)?)(?![\w./])"
)
WITHOUT_SETTINGS = ("init", "demo", "test", "bench", "help", "version", "completion")
WITH_RECEIVER = re.compile(
    r"load|merge|coverage|verify|why|read|(?:quarantine|owners|replica) [a-z]+|cluster(?: plan)? [a-z-]+"
)
SAID = frozenset(("cause", "detail", "error", "hint", "if_you_wait", "man", "next", "note", "notes", "reason"))
"""The keys of `--json` whose texts may name commands. All others are data."""


def find_program(called: str) -> str:
    """The program as a user types it, from the path that was started: its name alone if the shell finds it by that."""
    name = Path(called).name
    found = shutil.which(name)
    by_name = found is not None and Path(found).resolve() == Path(called).resolve()
    return shlex.quote(name if by_name else called)


@dataclass(frozen=True)
class Spelling:
    """How this user calls the command. `config` and `receiver` as they were given, "" if they were not."""

    program: str = PROGRAM
    config: str = ""
    receiver: str = ""

    def spell(self, text: str) -> str:
        """Return the text with its commands as this user would type them."""
        return _COMMAND.sub(self._spell_one, text) if PROGRAM in text else text

    def spell_answer(self, value: Any, key: str = "") -> Any:
        """Return an answer of `--json` with the texts of SAID spelled. What is data stays as it is."""
        if isinstance(value, dict):
            return {name: self.spell_answer(one, name) for name, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.spell_answer(one, key) for one in value]
        return self.spell(value) if isinstance(value, str) and key in SAID else value

    def _spell_one(self, found: re.Match[str]) -> str:
        verb = found["verb"].strip()
        rest = found.string[found.end() :].partition(PROGRAM)[0]
        words = [self.program]
        if verb and self.config and "--config" not in rest and verb not in WITHOUT_SETTINGS:
            words += ["--config", shlex.quote(self.config)]
        words += [verb] if verb else []
        if self.receiver and "--receiver" not in rest and WITH_RECEIVER.fullmatch(verb):
            words += ["--receiver", shlex.quote(self.receiver)]
        return " ".join(words)


def spelling_of_tasks(environ: Mapping[str, str]) -> Spelling:
    """How people would call the command that an Airflow task names. A checkout is stood in: commands stay as they are."""
    if not installation.IS_INSTALLED:
        return Spelling()
    return Spelling("tidemark", environ.get("TIDEMARK_CONFIG", ""))
