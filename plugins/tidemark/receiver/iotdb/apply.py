"""Carry out the plan at an IoTDB, with one record before and one after each effect. A restart takes the same path.

A file is recorded as `giving` before the server hears of it. A later load that finds such a record compares the server's
points first. Nothing is LOADed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tidemark.errors import PartialError, PermanentError, RetryableError, TidemarkError
from tidemark.ledger.database import Ledger
from tidemark.ledger.journal import record_many
from tidemark.ledger.leases import Lease, assert_held
from tidemark.ledger.receiver import iotdb as iotdb_rows
from tidemark.ledger.receiver.catalog import CatalogFile
from tidemark.ledger.receiver.iotdb import FileRow, Target
from tidemark.receiver.iotdb import server as iotdb_server
from tidemark.receiver.iotdb.count import count_devices, count_table
from tidemark.receiver.iotdb.plan import Batch, Gone, Held, SourceStatus
from tidemark.receiver.iotdb.points import Mended, Mender, table_name
from tidemark.receiver.iotdb.server import Span, load_into
from tidemark.receiver.iotdb.session import RefusedError
from tidemark.receiver.iotdb.staging import require_unchanged

_REFUSALS = 10  # of single files in a row: then the server is at fault (its disk is full, it cannot see the path)


@dataclass
class Done:
    """What was done so far. `files`: LOADed unchanged. `points`: files sent as points. `found`: files that were there
    already. `gone`: files removed. `deleted`: spans deleted."""

    files: int = 0
    points: int = 0
    found: int = 0
    gone: int = 0
    deleted: int = 0


@dataclass
class Giver:
    """Sends files to one server, with a record in the ledger of everything it does."""

    ledger: Ledger
    target: Target
    lease: Lease
    root: Path
    mender: Mender
    clock: Callable[[], float]
    done: Done
    made: set[tuple[str, bool]]
    refusals: int = 0  # in a row

    def resolve_outcome(self, one: SourceStatus) -> SourceStatus:
        """Compare a file of unknown outcome with the server: `given` if it now agrees, `new` if it has none of the
        points."""
        try:
            found = self.mender.compare_devices(one.file, one.devices)
        except RetryableError:
            raise
        except TidemarkError as trouble:
            self.hold_file(one.file, trouble)
            return replace(one, state="unknown")
        if any(d.missing for d in found.values()) and not any(d.alike or d.other for d in found.values()):
            return replace(one, state="new")
        return replace(one, state="given" if self.give_missing_points(one) else "unknown")

    def has_earlier_points(self, batch: Batch) -> bool:
        """Whether the server has points where this load sends files for the first time: somebody else wrote them."""
        devices = sorted({d.device for one in batch.files for d in one.devices})
        extents = [d for one in batch.files for d in one.devices]
        if not extents:
            return False
        span = Span(min(d.start for d in extents), max(d.end for d in extents))
        if batch.table:
            names = {table_name(device) for device in devices}
            return any(count_table(self.mender.server, batch.database, name, span) for name in sorted(names))
        return any(count_devices(self.mender.server, devices, span).values())

    def load_batch(self, batch: Batch) -> list[SourceStatus]:
        """LOAD a batch unchanged. Refused files are returned as `unknown`, to be resolved."""
        files = self._sound_ones(batch)
        if not files:
            return []
        self._record_giving([one.file for one in files])
        # CRASH WINDOW: recorded and maybe LOADed: the next load compares with the server before it sends them again.
        try:
            self._create_database(batch)
            self.mender.stage.clear_folder()
            folder = self.mender.stage.place_files([one.file for one in files])
            load_into(self.mender.server, folder, batch.database, batch.table)
            passed = self._passed_over(files)
            for one in files:
                if self._leaves_deletions(one.file):
                    self.mender.delete_unseen_points(one.file, one.devices)
        except RefusedError as refused:
            if len(files) == 1:
                return self._handle_refusal(files[0], refused)
            return [replace(one, state="unknown") for one in files]
        files = [one for one in files if one not in passed]
        # CRASH WINDOW: LOADed, not recorded: the same.
        self._record_outcome([FileRow(one.file.file_id, "given", "file") for one in files], "iotdb.given", files)
        self.done.files += len(files)
        self.refusals = 0
        return self._retry_passed_over(passed, len(batch.files))

    def give_missing_points(self, one: SourceStatus) -> bool:
        """Send what readers see of a file and the server lacks. Return whether the server agrees now."""
        self._record_giving([one.file])
        # CRASH WINDOW: some of it may be there: the next load compares again and sends the rest.
        try:
            self._create_database(Batch(one.file.database, one.file.model == "table", (one,)))
            mended = self.mender.mend_file(one.file, one.devices, self._leaves_deletions(one.file))
        except RetryableError:
            raise
        except TidemarkError as trouble:
            self.hold_file(one.file, trouble)
            return False
        self._record_mended(one.file, mended)
        return True

    def delete_gone_points(self, gone: Gone) -> None:
        """Delete from the server what only a file brought that left the catalog."""
        try:
            mended = self.mender.mend_file(gone.file, gone.devices, leaves=True)
        except RetryableError:
            raise
        except TidemarkError as trouble:
            self.hold_file(gone.file, trouble)
            return
        # CRASH WINDOW: deleted, not recorded: the next load finds nothing left to delete.
        self._record_outcome(
            [FileRow(gone.file.file_id, "gone")], "iotdb.gone", [SourceStatus(gone.file, gone.devices, "given")]
        )
        self.done.gone += 1
        self.done.deleted += mended.deleted

    def hold_file(self, file: CatalogFile, trouble: TidemarkError) -> None:
        """Record why a file is not at the server; the next load tries again."""
        self.hold_files([Held(file, trouble.message)], trouble.kind)

    def hold_files(self, held: Sequence[Held], kind: int) -> None:
        rows = [FileRow(one.file.file_id, "held", "", one.reason, kind) for one in held]
        with self.ledger.write() as connection:
            assert_held(connection, self.lease)
            known = iotdb_rows.file_rows(connection, self.target, [row.file_id for row in rows])
            iotdb_rows.put_files(connection, self.target, rows, self.clock())
            fresh = [h for h, row in zip(held, rows, strict=True) if known.get(row.file_id) != row]
            record_many(connection, "iotdb.held", [{**_event_fields(h.file), "reason": h.reason} for h in fresh])

    def _passed_over(self, files: Sequence[SourceStatus]) -> list[SourceStatus]:
        """Return files that an old server skipped in spite of its success reply: two of one name, in one time partition."""
        if not self.mender.server.version.moves_files:
            return []
        left = {file.file_id for file in self.mender.stage.find_left_files([one.file for one in files])}
        return [one for one in files if one.file.file_id in left]

    def _retry_passed_over(self, passed: Sequence[SourceStatus], together: int) -> list[SourceStatus]:
        """Return skipped files to be sent one by one. A file that was alone is held."""
        if passed and together == 1:
            self.hold_file(passed[0].file, PartialError("the server says that it took the file, and did not"))
            return []
        return [replace(one, state="unknown") for one in passed]

    def _leaves_deletions(self, file: CatalogFile) -> bool:
        """Whether the server loads a file without its deletions, as old ones do: these must be run as statements."""
        return self.mender.server.version.moves_files and bool(file.mods_location)

    def _sound_ones(self, batch: Batch) -> list[SourceStatus]:
        """Return the files of a batch that are byte for byte what the load checked. The others are held."""
        found = []
        for one in batch.files:
            try:
                require_unchanged(self.root, one.file)
            except RetryableError:
                raise
            except TidemarkError as trouble:
                self.hold_file(one.file, trouble)
            else:
                found.append(one)
        return found

    def _handle_refusal(self, one: SourceStatus, refused: RefusedError) -> list[SourceStatus]:
        """Compare a refused file with the server before it is held: an error does not mean that nothing happened."""
        found = self.mender.compare_devices(one.file, one.devices)
        if any(d.alike or d.other for d in found.values()):
            self.give_missing_points(one)
            return []
        self.hold_file(one.file, refused)
        self.refusals += 1
        if self.refusals == _REFUSALS:
            hint = "mend the server, then ./tidemark load: it goes on where it stopped"
            raise PermanentError(
                f"{_REFUSALS} files refused one after another, the rest waits: {refused.message}", hint=hint
            )
        return []

    def _create_database(self, batch: Batch) -> None:
        """Create the database by its own name: LOAD would create one from its first nodes."""
        key = (batch.database, batch.table)
        if key in self.made:
            return
        server = self.mender.server
        try:
            server.run(iotdb_server.database_statement(server.version, batch.database, batch.table), batch.table)
        except RefusedError as refused:
            if not iotdb_server.is_already_there(refused.message):
                raise
        self.made.add(key)

    def _record_giving(self, files: Sequence[CatalogFile]) -> None:
        at = self.clock()
        with self.ledger.write() as connection:
            assert_held(connection, self.lease)
            iotdb_rows.put_files(connection, self.target, [FileRow(f.file_id, "giving") for f in files], at)
            touched = {(f.database, f.partition_from) for f in files}
            iotdb_rows.raise_fences(connection, self.target, touched, at)

    def _record_mended(self, file: CatalogFile, mended: Mended) -> None:
        how = "points" if mended.written else "found"
        self.done.points += mended.written > 0
        self.done.found += mended.written == 0
        self._record_outcome([FileRow(file.file_id, "given", how)], "iotdb.given", [SourceStatus(file, (), "given")])

    def _record_outcome(self, rows: Iterable[FileRow], event: str, of: Sequence[SourceStatus]) -> None:
        with self.ledger.write() as connection:
            assert_held(connection, self.lease)
            iotdb_rows.put_files(connection, self.target, rows, self.clock())
            record_many(connection, event, [{**_event_fields(one.file), "server": self.target.server} for one in of])


def _event_fields(file: CatalogFile) -> dict[str, object]:
    return {"site_id": file.site_id, "landing": file.landing, "path": file.path, "file_id": file.file_id}
