"""Is a file a receiver's? There the ledger says which files are read and which deletions are whose, not the folder."""

from __future__ import annotations

import re
from pathlib import Path

from tidemark.errors import UsageError

MARK_FILE = "ledger_mark.json"  # at a receiver's root (docs/formats/ledger-mark.md)
_DATA_FILE = re.compile(r"[0-9a-f]{8}-[0-9a-f]{12}-.+\.tsfile", re.DOTALL)  # site, digest, name: `load.place`, at nodes too


def refuse_receiver_folder(path: str) -> None:
    """Raises UsageError for an absolute path at or below a receiver's root."""
    place = Path(path)
    for folder in (place, *place.parents):
        if (folder / MARK_FILE).exists():
            raise _refused(path, f"it lies in the receiver's folder {folder}")


def refuse_data_file(path: str) -> None:
    """Raises UsageError for a file that bears the name of a receiver's data file, wherever it lies, or leads to one."""
    if Path(path).is_symlink():
        path = str(Path(path).resolve())
        refuse_receiver_folder(path)
    if _DATA_FILE.fullmatch(path.rpartition("/")[2]):
        raise _refused(path, "it is a data file of a receiver or of one of its nodes")


def _refused(path: str, why: str) -> UsageError:
    return UsageError(
        f"{path}: {why}. Which files are read there, and with which deletions, the ledger says: they alone give wrong rows",
        hint="./tidemark read --out FILE.parquet, then read that (docs/spark.md)",
        subject=path,
    )
