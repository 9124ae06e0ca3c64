"""A file that a verb writes where the user wants it: whole under its name, or not there."""

from __future__ import annotations

import os
from pathlib import Path

from tidemark.errors import limits_named


def write_output(place: Path, text: str) -> None:
    """Write `text` to `place`. Raises DiskFullError and the like where there is no room, else OSError."""
    if not place.is_file() and place.exists():  # a folder says that it is one; a pipe or a terminal takes it as it comes
        place.write_text(text, encoding="utf-8")
        return
    part = place.with_name(f"{place.name}.{os.getpid()}.tmp")
    try:
        with limits_named(place):
            part.write_text(text, encoding="utf-8")
            part.replace(place)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
