"""The step transfer_files: send the selected files into the open landing, batch by batch.

`pieces_of` says which files are sent for an item, companions first, and where each is read: the hard links of a pinned
item, else the files themselves. A file counts as sent when its TsFile, `.resource` and mods are durable at the
receiver, their digests agree with the source's, and the TsFile is still the selected one. Many files are recorded in one
transaction. A file that failed all its retries is left out and sent by the next run. The run ends early if an end is
unreachable, or on a full disk, another host key, a lost lease or a closed window.

Copies at the receiver are put into a landing without crossing the wire (`reuse_copies`). The transfer finds the file under
its final name, compares its digest with the source's and counts it as sent. The digests of these copies were compared
before, so that a final name never holds other bytes.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection

from tidemark.errors import DiskFullError, HostKeyError, LeaseLostError, RetryableError, SourceVanishedError, TidemarkError
from tidemark.formats.layout import landed_path
from tidemark.ledger import journal
from tidemark.ledger.sender import runs as run_rows
from tidemark.ledger.sender.bandwidth import SharedLine, place_on
from tidemark.ledger.sender.runs import FAILED, MODS, PINNED, SENT, TO_SEND, VANISHED, RunItem
from tidemark.settings.window import is_open, require_window
from tidemark.stores.agent.block_journal import part_of
from tidemark.stores.protocol import Store
from tidemark.sync.select.quarantine import hold_corrupt
from tidemark.sync.send.batches import Weighed, cut_batches, part_is_full
from tidemark.sync.send.finish import close_part
from tidemark.sync.session import KnownCopies, PartLimits, Work, partition_of
from tidemark.transfer.engine import Failed, SendItem, SendOptions, Sent, send_files
from tidemark.transfer.limits import LineShare

RECORD_FILES = 2_000  # files in one record at most
RECORD_SECONDS = 1.0
TASKS = 32  # batches for an orchestrator, at most
TASK_FILES = 1_000  # and the smallest limit of files in each
HEADROOM_BYTES = 64 << 20  # left free at the receiver for manifests, receipts, the ledger
CULPRITS = 3  # files that may each break a connection before the link itself counts as broken

_ENDS_THE_RUN = (DiskFullError, HostKeyError, LeaseLostError)


@dataclass
class Arrived:
    """The collected outcomes of one item's pieces."""

    digests: dict[str, str] = field(default_factory=dict)
    verified: str = "source"
    wire_bytes: int = 0


def transfer_files(work: Work, batch: int | None = None) -> Mapping[str, int]:
    """Send the unsent files of one of `task_batches`, or of all, and close full parts. Returns {"files", "bytes"} sent by
    this call."""
    with work.ledger.read() as connection:
        todo = [Weighed(path, n) for path, n, state in run_rows.item_sizes(connection, work.run_id) if state in TO_SEND]
        if batch is not None:
            asked = {f.path for f in task_batches(connection, work.run_id, work.site.data)[batch]}
            todo = [f for f in todo if f.path in asked]
        part = len(run_rows.sent_landings(connection, work.link.name, run_id=work.run_id)) + 1
    if not todo:
        return {"files": 0, "bytes": 0}
    _require_ready(work, todo, part)
    line = SharedLine(work.ledger, work.receiver.name, work.receiver.bandwidth)
    with place_on(line, work.run_id, work.identity, work.link.bandwidth) as place:
        sending = Sending(work, part, (len(todo), sum(f.size for f in todo)), place)
        for group in cut_batches(todo, lambda path: partition_of(path, work.site.data), work.limits):
            if sending.is_full():
                close_part(work, last=False)
                sending.next_part()
            sending.send_all([f.path for f in group])
    return {"files": sending.files, "bytes": sending.bytes}


def _require_ready(work: Work, todo: Sequence[Weighed], part: int) -> None:
    """Raise an error unless the window is open, the receiver keeps up with loading, and its disk has room."""
    require_window(work.link, work.clock())
    with work.ledger.read() as connection:
        waiting = run_rows.sent_landings(connection, work.link.name, state="landed")
    if len(waiting) > work.receiver.max_unloaded_landings:
        raise RetryableError(
            f"receiver {work.receiver.name} has not loaded {len(waiting)} landings of link {work.link.name}, more than"
            f" max_unloaded_landings = {work.receiver.max_unloaded_landings}",
            hint="at the receiver: ./tidemark load",
            subject=work.link.name,
        )
    _require_room(work, todo, part)


def _require_room(work: Work, todo: Sequence[Weighed], part: int) -> None:
    """Raise DiskFullError if the missing bytes do not fit on the receiver's disk."""
    free, size = work.target.free_bytes("landing"), sum(f.size for f in todo)
    if free is None or free >= size + HEADROOM_BYTES:
        return
    missing = size - _left_there(work, todo, part)
    if free < missing + HEADROOM_BYTES:
        raise DiskFullError(
            f"receiver {work.receiver.name} has {free:,} bytes free, link {work.link.name} has {missing:,} to send",
            hint=f"free space at the receiver, so that {HEADROOM_BYTES:,} bytes stay free behind them; then run it again",
            subject=work.receiver.name,
        )


def _left_there(work: Work, todo: Sequence[Weighed], part: int) -> int:
    """Return the bytes of these files that an earlier try left in the open part. They are resumed, or freed by a restart."""
    landing = work.landing_of_part(part)
    with work.ledger.read() as connection:
        items = run_rows.items_at(connection, work.run_id, [f.path for f in todo])
    wanted = {p.send.target_path: p.send.size for item in items for p in pieces_of(work, item, landing)}
    wanted.update({part_of(path): size for path, size in wanted.items()})
    found = work.target.list_files([work.landing_folder(landing)])
    return sum(min(entry.size, wanted.get(entry.path, 0)) for entry in found.entries)


def task_batches(connection: Connection, run_id: str, data: Sequence[str]) -> list[list[Weighed]]:
    """Return the run's files, sent or not, in few batches (see TASKS): the same ones whatever the run's progress."""
    files = [Weighed(path, size) for path, size, _ in run_rows.item_sizes(connection, run_id)]
    limits = PartLimits(
        batch_bytes=max(PartLimits.batch_bytes, sum(f.size for f in files) // TASKS),
        batch_files=max(TASK_FILES, len(files) // TASKS),
    )
    return list(cut_batches(files, lambda path: partition_of(path, data), limits))


class Sending:
    """Sends files into the open part. `total`: files and bytes to send. `line`: our share of the receiver's bandwidth."""

    def __init__(self, work: Work, part: int, total: tuple[int, int], line: LineShare | None = None) -> None:
        self.work = work
        self.part = part
        self.files = 0
        self.bytes = 0
        self._total = total
        self._line = line
        self._bytes_in_part = 0
        self._opened = time.monotonic()
        self._wire = 0
        self._unrecorded_wire = 0
        self._culprits = 0

    def is_full(self) -> bool:
        return bool(self._bytes_in_part) and part_is_full(
            self._bytes_in_part, time.monotonic() - self._opened, self.work.limits
        )

    def next_part(self) -> None:
        self.part += 1
        self._bytes_in_part = 0
        self._opened = time.monotonic()

    def send_all(self, paths: Sequence[str]) -> None:
        with self.work.ledger.read() as connection:
            todo = list(run_rows.items_at(connection, self.work.run_id, paths))
        while todo:
            down = self._send_items(todo)
            if not down:
                break
            todo = self._without_culprit(todo, down)
        if self.must_stop():
            require_window(self.work.link, self.work.clock())

    def must_stop(self) -> bool:
        return not is_open(self.work.link.window, self.work.link.timezone, self.work.clock())

    def _send_items(self, todo: Sequence[RunItem]) -> list[Failed]:
        """Send the items and record their outcomes. Returns the failures because an end was not reachable."""
        landing = self.work.landing_of_part(self.part)
        travelling = {item.path: pieces_of(self.work, item, landing) for item in todo}
        pieces = {p.send.target_path: p for several in travelling.values() for p in several}
        waiting = {path: len(several) for path, several in travelling.items()}
        arrived: dict[str, Arrived] = defaultdict(Arrived)
        failed: dict[str, Failed] = {}
        complete: list[RunItem] = []
        down: list[Failed] = []
        recorded = time.monotonic()
        reuse_copies(
            self.work.copies, self.work.target, [(p.item.path, p.send) for p in pieces.values() if p.role == TSFILE]
        )
        for outcome in self._transfer_items([p.send for p in pieces.values()]):
            piece = pieces[outcome.item.target_path]
            path = piece.item.path
            self._unrecorded_wire += outcome.wire_bytes
            waiting[path] -= 1
            if isinstance(outcome, Sent):
                arrived[path].digests[piece.role] = outcome.sha256
                arrived[path].verified = "target" if outcome.verified == "target" else arrived[path].verified
            elif isinstance(outcome.error, _ENDS_THE_RUN):
                self._record_sent(complete, arrived)
                raise outcome.error
            elif isinstance(outcome.error, RetryableError):
                down.append(outcome)
                waiting[path] = -1  # no outcome: it is tried again, or the run ends
            else:
                failed.setdefault(path, outcome)
            if waiting[path] == 0 and path not in failed:
                complete.append(piece.item)
            if len(complete) >= RECORD_FILES or time.monotonic() - recorded >= RECORD_SECONDS:
                self._record_sent(complete, arrived)
                complete, recorded = [], time.monotonic()
        self._record_sent(complete, arrived)
        self._record_failures({path: outcome.error for path, outcome in failed.items()})
        return down

    def _transfer_items(self, items: Sequence[SendItem]) -> Iterator[Sent | Failed]:
        options = SendOptions.of(self.work.link, reserve=HEADROOM_BYTES, line=self._line, should_stop=self.must_stop)
        return send_files(self.work.source, self.work.target, items, options, self._on_bytes)

    def _on_bytes(self, count: int) -> None:
        self._wire += count
        self.work.beat(self.files, self._total[0], self._wire, self._total[1])

    def _record_sent(self, items: Sequence[RunItem], arrived: Mapping[str, Arrived]) -> None:
        """Record files that are durable. A file that changed since the selection is recorded as vanished instead."""
        if not items and not self._unrecorded_wire:
            return
        whole = [item for item in items if item.action != MODS]
        found = self.work.source.stat_many([source_of(self.work, item, item.path) for item in whole])
        now = {item.path: entry and (entry.size, entry.mtime) for item, entry in zip(whole, found, strict=True)}
        same = [item for item in items if item.action == MODS or now[item.path] == (item.size, item.mtime)]
        # CRASH WINDOW: durable, not recorded; the rerun finds the bytes at the receiver and sends nothing.
        with self.work.write_under_lease() as connection:
            run_rows.set_items(connection, self.work.run_id, [self._sent_columns(i, arrived[i.path]) for i in same])
            run_rows.add_to_run(connection, self.work.run_id, sent_bytes=self._unrecorded_wire)
        self._unrecorded_wire = 0
        self.files += len(same)
        size = sum(run_rows.item_bytes(i) for i in same)
        self.bytes += size
        self._bytes_in_part += size
        self.work.beat(self.files, self._total[0], self._wire, self._total[1])
        kept = {item.path for item in same}
        error = SourceVanishedError("it changed or went away while it was sent", hint="the next run sends it")
        self._record_failures({i.path: error for i in items if i.path not in kept})

    def _sent_columns(self, item: RunItem, arrived: Arrived) -> dict[str, Any]:
        return {
            "path": item.path,
            "state": SENT,
            "part": self.part,
            "sha256": arrived.digests.get(TSFILE, item.sha256),
            "mods_sha256": arrived.digests.get(MODS_FILE),
            "resource_sha256": arrived.digests.get(RESOURCE),
            "verified": arrived.verified,
        }

    def _record_failures(self, errors: Mapping[str, TidemarkError]) -> None:
        if not errors:
            return
        run_id, link = self.work.run_id, self.work.link.name
        changes = [
            {"path": p, "state": VANISHED if isinstance(e, SourceVanishedError) else FAILED, "reason": e.message}
            for p, e in errors.items()
        ]
        with self.work.write_under_lease() as connection:
            kept = hold_corrupt(connection, self.work, errors)
            run_rows.set_items(connection, run_id, [c | {"reason": kept.get(c["path"], c["reason"])} for c in changes])
            rows = [{"link": link, "run_id": run_id, "path": p, "error": e.message} for p, e in errors.items()]
            journal.record_many(connection, "file.failed", rows)

    def _without_culprit(self, todo: Sequence[RunItem], down: Sequence[Failed]) -> list[RunItem]:
        """Find the file that broke a connection. If both ends answer now, leaves the first failed file out and returns the
        other unsent items. Raises the error if an end is down, or after more than `CULPRITS` such files."""
        self._culprits += 1
        try:
            self.work.source.list_folder("")
            self.work.target.list_folder("landing")
        except TidemarkError:
            raise down[0].error from None
        if self._culprits > CULPRITS:
            raise down[0].error
        landing = self.work.landing_of_part(self.part)
        owner = {p.send.target_path: item.path for item in todo for p in pieces_of(self.work, item, landing)}
        culprit = owner[down[0].item.target_path]
        self._record_failures({culprit: down[0].error})
        with self.work.ledger.read() as connection:
            left = run_rows.items_at(connection, self.work.run_id, [i.path for i in todo])
        return [i for i in left if i.state in TO_SEND]


TSFILE, RESOURCE, MODS_FILE = "tsfile", "resource", "mods"


class Piece(NamedTuple):
    """One file to send for an item: its TsFile, `.resource` or mods."""

    item: RunItem
    role: str
    send: SendItem


def pieces_of(work: Work, item: RunItem, landing: str) -> list[Piece]:
    """Return the files to send for an item, companions first: the hard links of a pinned item, else the files themselves."""
    folder = work.landing_folder(landing)

    def piece(role: str, path: str, size: int) -> Piece:
        return Piece(item, role, SendItem(source_of(work, item, path), f"{folder}/{landed_path(path)}", size))

    mods = [piece(MODS_FILE, item.mods_path, item.mods_size)] if item.mods_path else []
    if item.action == MODS:
        return mods
    resource = [piece(RESOURCE, item.path + ".resource", item.resource_size)] if item.resource_size else []
    return [*resource, *mods, piece(TSFILE, item.path, item.size)]


def source_of(work: Work, item: RunItem, path: str) -> str:
    """Return the path at the source where one of the item's files is read."""
    return work.folders.link_path(work.run_id, path) if item.state == PINNED else path


_PIECE = 1 << 20


def reuse_copies(copies: KnownCopies, target: Store, wanted: Iterable[tuple[str, SendItem]]) -> None:
    """Write the copy of each (source path, item) to the item's final name, unless that exists."""
    if copies.store is None:
        return
    for path, item in wanted:
        place = copies.places.get(path)
        if place is None or target.stat(item.target_path) is not None:
            continue
        part = part_of(item.target_path)
        target.write_part(part, 0, copies.store.read_chunks(place, 0, item.size, _PIECE))
        target.seal_parts([(part, item.target_path)])
