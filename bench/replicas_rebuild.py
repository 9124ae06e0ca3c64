"""The catalog of 100,000 files from the log of one group, in a process of its own: for `bench replicas`.

The log is made first: 500 loads of 200 files, four devices in each. Then its records are read, folded and written into a new
ledger, as `read --from-nodes` and `ledger rebuild` do. The log lies in a folder: what SSH adds is the transfer of its bytes.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from bench.replicas_data import DATABASE, add_file
from bench.rows import say
from tidemark.app import App
from tidemark.cluster.replicas.core.epochs import Fence
from tidemark.cluster.replicas.core.record import RecordKind
from tidemark.cluster.replicas.core.roles import ORIGIN
from tidemark.cluster.replicas.log import GroupLog
from tidemark.cluster.replicas.records.fold import fold_group, join_groups
from tidemark.cluster.replicas.records.operation import FileEntry, Operation, records_of, without_ledger
from tidemark.ledger.database import Ledger
from tidemark.ledger.leases import this_process
from tidemark.ledger.migrations import migrate_ledger
from tidemark.ledger.receiver.catalog import CatalogDevice, CatalogFile
from tidemark.operations.rebuild.from_nodes import write_told
from tidemark.settings.model import LedgerSettings, ReceiverSettings, Settings
from tidemark.stores.local import LocalStore

FILES, LOADED, DEVICES = 100_000, 200, 4
PARTITIONS = 500
LOG = "log"


def measure(below: Path, ratios: dict[str, float], ours: dict[str, Any]) -> None:
    """`rebuild_100k_s`, and `rebuild_100k_mb`, the most memory of the process."""
    below.mkdir(parents=True)
    size = make_log(below)
    done = subprocess.run([sys.executable, "-m", "bench.replicas_rebuild", str(below)], capture_output=True, check=True)
    told = json.loads(done.stdout)
    ratios |= {"rebuild_100k_s": told["fold_s"] + told["write_s"], "rebuild_100k_mb": told["mb"]}
    ours["rebuild"] = {"log_bytes": size, **told}
    say(f"replicas: rebuild: {ratios['rebuild_100k_s']:.1f} s, {told['mb']:.0f} MB")


def make_log(below: Path) -> int:
    """Write the log of a member; return its bytes."""
    log, fence = GroupLog(LocalStore(str(below)), LOG), Fence("bench", 1, "n1")
    tail, end = log.vote(fence).tail, ORIGIN
    gained = [Operation(RecordKind.GAIN_SLOT, slots=tuple(range(PARTITIONS)), table=1)]
    for start in range(0, FILES, LOADED):
        files = tuple(_entry_of(number) for number in range(start, start + LOADED))
        operations = [*gained, Operation(RecordKind.ADD_FILES, files)]
        records = records_of(str(uuid.uuid4()), operations, ["n1"], end, epoch=1)
        tail, end, gained = log.append(records, fence, expect=tail).tail, records[-1].head.end, []
    return sum(path.stat().st_size for path in (below / LOG).iterdir())


def rebuild(below: Path) -> dict[str, float]:
    """Make the catalog from the log; return seconds of both halves, and MB."""
    began = time.perf_counter()
    told = join_groups({"n1": fold_group(GroupLog(LocalStore(str(below)), LOG).read(1), _slots_of)}, _slots_of)
    folded = time.perf_counter()
    if len(told.files) != FILES:
        raise SystemExit(f"{len(told.files)} files instead of {FILES}")
    ledger = Ledger(f"sqlite:///{below}/ledger.db")
    migrate_ledger(ledger)
    receiver = ReceiverSettings("centre", f"file://{below}")
    settings = Settings(below / "tidemark.toml", LedgerSettings(ledger.url), receivers={"centre": receiver})
    began_writing = time.perf_counter()
    write_told(App(settings=settings, ledger=ledger, identity=this_process()), receiver, told)
    ended = time.perf_counter()
    ledger.close()
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"fold_s": folded - began, "write_s": ended - began_writing, "mb": megabytes}


def _entry_of(number: int) -> FileEntry:
    file = without_ledger(add_file(number, number % PARTITIONS))
    devices = [CatalogDevice(f"{DATABASE}.line{n}.d{number % 50}", number, number + 100, 25) for n in range(DEVICES)]
    return FileEntry(file, tuple(devices))


def _slots_of(file: CatalogFile) -> tuple[int, ...]:
    return (file.partition_from,)


if __name__ == "__main__":
    print(json.dumps(rebuild(Path(sys.argv[1]))))
