"""A site of many sealed files, and the ledger as a sync of them leaves it: the stage of benchmarks of idle runs.

The ledger's rows are written through the doors that a sync uses: every file with its real size, time and inode, its
extent, its event; the run and the landing that carried them. Files are small, for an idle run looks at none from inside.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tidemark.ledger import journal as events
from tidemark.ledger.database import Ledger
from tidemark.ledger.migrations import migrate_ledger
from tidemark.ledger.sender import links as link_rows
from tidemark.ledger.sender import runs as run_rows
from tidemark.ledger.sender.links import Acked
from tidemark.ledger.sender.runs import SentLanding
from tidemark.stores.local import LocalStore

SITE_ID = "00000000-0000-4000-8000-00000000be7c"
LINK = "bench"
DATA = ("data/sequence", "data/unsequence")
MTIME = 1_700_000_000
PER_FOLDER = 1_000
SIZES = {"": 64, ".resource": 48}  # bytes
_RUN, _LANDING = "20231114T221320Z-000000", "20231114T221320Z-000000-1"
_AT_ONCE = 20_000


class IdleSite(NamedTuple):
    files: int
    root: Path  # the site's store
    settings: Path


def make(folder: Path, files: int) -> Path:
    """Files of `folder`/site as IoTDB lays them out, `PER_FOLDER` a time partition; each with its `.resource`."""
    root = folder / "site"
    for number, path in enumerate(_paths(files)):
        if number % PER_FOLDER == 0:
            (root / path).parent.mkdir(parents=True)
        for suffix, size in SIZES.items():
            handle = os.open(f"{root}/{path}{suffix}", os.O_CREAT | os.O_WRONLY, 0o644)
            os.truncate(handle, size)
            os.close(handle)
            os.utime(f"{root}/{path}{suffix}", (MTIME, MTIME))
    (root / "data" / "unsequence").mkdir()
    return root


def settle(folder: Path, root: Path, store: str) -> IdleSite:
    """Settings (the site's `store` lines as given) and a ledger in which every file of `root` has landed."""
    settings = folder / "tidemark.toml"
    settings.write_text(
        f'[ledger]\nurl = "sqlite:///ledger.db"\n\n[receivers.centre]\nstore = "file://{folder / "centre"}"\n\n'
        f'[sites.{LINK}]\nid = "{SITE_ID}"\n{store}\ndata = ["{DATA[0]}", "{DATA[1]}"]\n\n'
        f'[links.{LINK}]\nsite = "{LINK}"\nreceiver = "centre"\n'
    )
    (folder / "centre").mkdir()
    ledger = Ledger("sqlite:///ledger.db", folder)
    try:
        migrate_ledger(ledger)
        return IdleSite(_acknowledge(ledger, root), root, settings)
    finally:
        ledger.close()


def _acknowledge(ledger: Ledger, root: Path) -> int:
    """Write what one run leaves behind that sent everything; the number of files."""
    digest = hashlib.sha256(bytes(SIZES[""])).hexdigest()
    listing = LocalStore(str(root)).list_files(DATA).entries
    tsfiles = (e for e in listing if e.path.endswith(".tsfile"))
    with ledger.write() as connection:
        link_rows.put_site(connection, SITE_ID, LINK, "ms", 604_800_000)
        link_rows.add_link(connection, LINK, SITE_ID, "centre")
        run_rows.add_run(connection, _RUN, LINK, 1, {})
        files = 0
        while batch := list(islice(tsfiles, _AT_ONCE)):
            rows = [Acked(e.path, e.size, e.mtime, e.inode, 0, 1, digest, "", _LANDING) for e in batch]
            link_rows.ack_files(connection, LINK, rows)
            link_rows.put_extents(connection, LINK, {e.path: (("root.bench.d1", MTIME, MTIME + 1),) for e in batch})
            told = {"link": LINK, "run_id": _RUN, "landing": _LANDING, "generation": 1, "sha256": digest}
            events.record_many(connection, "file.acked", [{**told, "path": e.path} for e in batch])
            files += len(batch)
        run_rows.add_landing(
            connection,
            SentLanding(_LANDING, _RUN, LINK, 1, 1, None, "answered", True, MTIME, digest, files, files * SIZES[""]),
        )
        run_rows.set_run(connection, _RUN, state="finished", step="done", files=files)
        link_rows.set_link(connection, LINK, next_sequence=2, last_landing=_LANDING, last_run=_RUN)
        run_rows.set_success(connection, LINK, _RUN, MTIME)
    return files


def _paths(files: int) -> Iterator[str]:
    for number in range(files):
        folder = number // PER_FOLDER
        yield f"{DATA[0]}/root.bench/{folder % 4}/{folder}/{MTIME}{number % 1000:03d}-{number + 1}-0-0.tsfile"
