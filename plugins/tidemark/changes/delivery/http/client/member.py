"""A member of a task without its store and ledger: readers give it blocks, shards and the places of points, over HTTP.

Several readers of one source may have stores of several replicas. A member reads at one of them. It leaves one that is dead,
late or wrong, and goes on at another behind what it gave out, by the GTIDs of that. Points are committed at all readers, so
none of them is needed afterwards.

A reader is not believed: blocks must follow each other without a seam, and begin behind nothing that is not done.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from tidemark.changes.binlog.gtid_sets import uuid_text
from tidemark.changes.delivery.batches import Batch, Cursor
from tidemark.changes.delivery.blocks import Divided, skip_rows
from tidemark.changes.delivery.export import choose_tables
from tidemark.changes.delivery.http.client.fetched import FetchedStretches
from tidemark.changes.delivery.http.client.readers import (
    NO_FENCE,
    Address,
    Look,
    Reader,
    Told,
    most_telling,
    order_readers,
)
from tidemark.changes.delivery.http.client.session import ReaderBehindError
from tidemark.changes.delivery.members import name_holder, shard_lease
from tidemark.changes.delivery.shards import ShardPiece
from tidemark.changes.delivery.storage_points import Place, Start, furthest_point, has_more, proves_start
from tidemark.changes.delivery.stream import LEASE_SECONDS, RENEWED, BatchStream, Held, Options
from tidemark.changes.delivery.tasks import Wanted
from tidemark.changes.store.model import Mark, Op, Record, Rows
from tidemark.errors import CorruptionError, PermanentError, RetryableError, TidemarkError, UnreachableError, UsageError
from tidemark.ledger.delivery import StoragePoint, TaskRow
from tidemark.ledger.leases import Lease

GIVE_UP_SECONDS = 60.0
"""Who does not follow waits so long for any reader."""
BAD_SECONDS = 60.0
"""A reader that told something wrong is not read at for so long."""
Given = Mapping[tuple[str, int], int]


class _ProvenCursor(Cursor):
    """A cursor that begins where a reader said, once the first block shows that all before it is done.

    `given`: by uuid and number of a transaction, how many rows of it are given out, of those that were left half.
    """

    def __init__(self, stream: ReaderStream, shard: int, start: Start, point: StoragePoint, given: Given) -> None:
        super().__init__(stream._blocks, shard, start, controls=stream.options.controls)
        self._unproven: StoragePoint | None = point
        self._half_of = (point.uuid, max(point.transaction_id, 0))
        self.given = given
        self._reading: set[str] = set()

    def _collect(self, found: Divided) -> None:
        if self._unproven is not None and not proves_start(found.stretch, self.key.seq, self._unproven):
            raise CorruptionError(f"the reader would leave something out before seq:{self.key.seq} of shard {self.shard}")
        self._unproven = None
        for piece in found.by_shard[self.shard]:
            if not piece.transaction.gtid:
                self._note_bootstrap(piece)
        super()._collect(found)

    def _note_bootstrap(self, piece: ShardPiece) -> None:
        for record in piece.transaction.records:
            if table := _table_read(record):
                self._reading.add(table)
            elif isinstance(record, Mark) and record.word == "bootstrap_begin":
                self._reading.add(record.text)
            elif isinstance(record, Mark) and record.word == "bootstrap_end":
                self._reading.discard(record.text)

    def find_half_read(self) -> str:
        """A table of which a bootstrap read rows, and not all of them are given out; "": there is none."""
        waiting = [one.record for run, _ in self._pending for one in run]
        tables = [table for record in waiting if (table := _table_read(record))]
        return next(iter([*tables, *sorted(self._reading)]), "")

    def _skip_given(self, piece: ShardPiece) -> ShardPiece:
        info = piece.transaction.info
        half, index = self._half
        if index and piece.seq == half and (uuid_text(info.uuid), info.transaction_id) != self._half_of:
            raise CorruptionError(f"the reader would leave out rows of seq:{half} of shard {self.shard}")
        is_named = self.given and piece.transaction.gtid  # rows that a bootstrap read have the name of who is before them
        rows = self.given.get((uuid_text(info.uuid), info.transaction_id), 0) if is_named else 0
        self._index = max(self._index, rows)
        return skip_rows(super()._skip_given(piece), (piece.seq, rows))


class ReaderStream(BatchStream):
    """A member of a task, by readers. `only`: these shards; None: its share of those that members at its reader have."""

    def __init__(
        self,
        address: Address,
        member: str,
        wanted: Wanted,
        options: Options | None = None,
        *,
        only: Sequence[int] | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._wanted = wanted
        self._only = sorted(set(only)) if only is not None else None
        self._chance = chance
        self._address = address
        self._readers = [Reader(address, url) for url in address.urls]
        self._pool = ThreadPoolExecutor(max(1, len(self._readers)), thread_name_prefix="readers")
        self._number = -1  # the reader that is read at
        self._server: int | None = None
        self._points: dict[int, StoragePoint] = {}  # the furthest that is known, of the task's version
        self._told: Mapping[int, StoragePoint] = {}  # as the reader has them
        self._begun: dict[int, StoragePoint] = {}  # where cursors began
        self._taken: Collection[int] = ()
        self._give: Collection[int] = ()
        self._failed: Exception | None = None
        self._is_moving = False
        self._bad: dict[int, float] = {}
        self._missed: tuple[float, int] | None = None  # since when, and what, the reader lacks that another has
        self._good_at = self._looked_at = self._saved_at = 0.0
        self._until_newest = 0
        self._looks: list[Look] = [Look()] * len(self._readers)
        provisional = TaskRow(wanted.name, wanted.source, wanted.shards or 1, "mixed", "split")
        super().__init__(member, provisional, choose_tables(("**",)), options)

    @property
    def reader(self) -> str:
        """The address of the reader that is read at now; "" before the first."""
        return self._readers[self._number].url if self._number >= 0 else ""

    # begin and end

    def join(self) -> None:
        """Find the task, and the reader to begin at. The first reader's error where none can be read at."""
        self._good_at = self._saved_at = self.clock()
        try:
            told = self._look_at_all()
            known = [one for one in told if one is not None and one.task is not None]
            if known:
                best = max(known, key=lambda one: _version_of(one.task))
                same = [one for one in known if one.task == best.task]
                self._adopt(best)
                for one in same:
                    self._points = {shard: furthest_point(point, one.points[shard]) for shard, point in self._points.items()}
            refused: list[Exception] = [one.trouble for one in self._looks if one.trouble is not None]
            for number in order_readers(self._looks, (), self._address.late_seconds, self._chance):
                try:
                    self._enter(number)
                    break
                except TidemarkError as wrong:
                    refused.append(wrong)
            else:
                raise most_telling(refused)
            self._spread(self._points, self._readers)
            self.beat()
        except BaseException:
            self.close()
            raise

    def _leave(self) -> None:
        with self._beating, suppress(TidemarkError):
            if self._number >= 0:
                self._commit()
                # CRASH WINDOW: points are behind what is done, leases are held by a process that is gone. They expire, and
                # rows behind the points come again.
                for reader, look in zip(self._readers, self._looks, strict=True):
                    if look.trouble is None:
                        with suppress(TidemarkError):
                            reader.hold(self.task, self.name, (), self._only, leaves=True)
        with self._state:
            self._held = {}
        self._pool.shutdown(wait=False, cancel_futures=True)
        for reader in self._readers:
            reader.close()

    # the beat

    def beat(self) -> None:
        with self._beating:
            failed = self._failed
            if failed is None:
                try:
                    self._hold()
                except UsageError:  # of a point that the consumer kept: no reader is to blame
                    raise
                except TidemarkError as wrong:
                    failed = wrong
            if failed is None:
                self._good_at = self.clock()
                if len(self._readers) > 1 and self.clock() - self._looked_at >= self._address.look_seconds:
                    self._look_at_all()
                if self._is_late():
                    self._change_reader(UnreachableError(f"the reader {self.reader} is late", subject=self.reader))
            else:
                self._change_reader(failed)
            with self._state:
                self._blocks.forget([held.cursor.key for held in self._held.values()])
                self._state.notify_all()

    def _hold(self) -> None:
        """Renew, give, take; write points where that is due."""
        reader, began = self._readers[self._number], self.clock()
        with self._state:
            leaving = [held for held in self._held.values() if held.is_leaving and not held.undone]
        if leaving or began - self._saved_at >= self.options.checkpoint_seconds:
            self._saved_at = began
            self._commit()
        with self._state:
            for held in leaving:
                self._held.pop(held.shard, None)
            release = [shard for shard in self._give if shard not in self._held]
        told = reader.hold(self.task, self.name, release, self._only)
        self._note_hold(told)
        self._valid_until = max(self._valid_until, began + LEASE_SECONDS * RENEWED)  # it renews what has less left

    def _note_hold(self, told: Told) -> None:
        assert told.task is not None
        is_former = told.task.generation != self.task.generation
        self._refuse_older(told)
        with self._state:
            self._taken, self._give = set(told.taken) - set(told.held), told.give
            self._end = max(self._end, told.end)
            self._looks[self._number] = Look(told.load, told.newest)
            for held in list(self._held.values()):
                held.is_leaving = is_former or held.shard in told.give
                if not is_former:
                    self._note_shard(held, told)
            if is_former and not self._held:
                self._adopt(told)
                is_former = False
            elif not is_former:
                self.task = told.task
        self._told = told.points
        mine = set(told.held) - set(told.give) - set(self._held)
        for shard in () if is_former else sorted(mine):
            self._take(shard, told)

    def _note_shard(self, held: Held, told: Told) -> None:
        fence, point = told.held.get(held.shard), told.points[held.shard]
        if fence is None:
            del self._held[held.shard]  # another has it
            return
        was_elsewhere = fence != held.lease.fence and point != self._told.get(held.shard)
        if point.version_ts != held.saved.version_ts or was_elsewhere:
            self._points[held.shard] = point
            self._begin_again(held, point)
        held.lease = replace(held.lease, fence=fence)

    def _take(self, shard: int, told: Told) -> None:
        point, known = told.points[shard], self._points.get(shard)
        if known is not None and known.version_ts == point.version_ts:
            point = furthest_point(point, known)
        lease = Lease(shard_lease(self.task.name, shard), told.held[shard], name_holder(self.name, self.task.generation))
        held = Held(shard, lease, point, self._make_cursor(shard, point))
        with self._state:
            self._held[shard] = held

    def _refuse_older(self, told: Told) -> None:
        """Raise CorruptionError where a reader tells of the task as it was, or of another one under its name."""
        task = told.task
        assert task is not None
        is_older = _version_of(task) < _version_of(self.task)
        if task.generation == self.task.generation:
            is_older |= replace(task, version_ts=self.task.version_ts) != self.task
            is_older |= any(told.points[shard].version_ts < known.version_ts for shard, known in self._points.items())
        if is_older:
            raise self._lie(f"tells of another task {task.name}, or of an older version of it")

    def _lie(self, what: str) -> CorruptionError:
        return CorruptionError(f"the reader {self.reader} {what}", subject=self.reader)

    def _adopt(self, told: Told) -> None:
        """Read the task as it is told, from its points on."""
        assert told.task is not None
        if self._only is not None and self._only and self._only[-1] >= told.task.shards:
            raise UsageError(
                f"task {told.task.name} has no shard {self._only[-1]}: 0 to {told.task.shards - 1}", subject=told.task.name
            )
        self.task = told.task
        self.wants = choose_tables(told.task.tables)
        self._points = dict(told.points)
        self._blocks.close()
        self._blocks = self._make_blocks()

    # points

    def _commit(self) -> None:
        """Commit what is done at the reader, and then at the others, so that each of them may be the next.

        A shard that the reader refuses was another's meanwhile, or was rewound. It goes at once: what is given out of it
        moves no point any more, and where it is ours again it begins at the point that it has then.
        """
        with self._state:
            places = [(held, held.find_place()) for held in self._held.values()]
        moves = [
            (held, place.as_point(version) if place is not None else replace(self._begun[held.shard], version_ts=version))
            for held, place in places
            for version in (held.saved.version_ts,)
        ]
        points = {held.shard: point for held, point in moves if point != held.saved}
        if not points:
            return
        leases = {held.shard: held.lease for held, _ in moves}
        told = self._readers[self._number].commit(self.task, points, self.name, leases)
        # CRASH WINDOW: points are written at one reader. Who begins looks at all, and takes the furthest of each shard.
        self._told = {**self._told, **{shard: told.points[shard] for shard in points if shard in told.points}}
        with self._state:
            for held, point in moves:
                if held.shard in told.refused:
                    self._held.pop(held.shard, None)
                else:
                    held.saved = self._points[held.shard] = point
        points = {shard: point for shard, point in points.items() if shard not in told.refused}
        self._spread(points, [reader for number, reader in enumerate(self._readers) if number != self._number])

    def _spread(self, points: Mapping[int, StoragePoint], readers: Sequence[Reader]) -> None:
        """Commit points at readers that are no more than told of them: one that is behind, or away, is told later."""
        free = [one for one, look in zip(self._readers, self._looks, strict=True) if look.trouble is None and one in readers]

        def commit(reader: Reader) -> None:
            with suppress(TidemarkError):
                reader.commit(self.task, points, self.name)

        if len(self._readers) > 1 and points:
            list(self._pool.map(commit, free))

    # readers

    def _look_at_all(self) -> list[Told | None]:
        """Look at every reader at once. A task that one lacks, or has of an older version, begins there with our points."""
        self._looked_at = self.clock()
        task = self.task if self._points else None

        def look(reader: Reader) -> tuple[Look, Told | None]:
            try:
                told = reader.begin(replace(self._wanted, start=""), task, self._points)
                return Look(told.load, told.newest), told
            except TidemarkError as wrong:
                return Look(trouble=wrong), None

        found = list(self._pool.map(look, self._readers))
        self._looks = [seen for seen, _ in found]
        return [told for _, told in found]

    def _is_late(self) -> bool:
        """Whether the reader lacks since a while what another has, and all that it has is given out."""
        if self._number < 0 or self._looks[self._number].trouble is not None:
            return False
        own = self._looks[self._number].newest
        best = max(one.newest for one in self._looks if one.trouble is None)
        if self._missed is None or own >= self._missed[1]:
            self._missed = (self.clock(), best) if best > own else None
        with self._state:
            has_more = any(self._has_more(held) for held in self._held.values())
        return self._missed is not None and not has_more and self.clock() - self._missed[0] >= self._address.late_seconds

    def _change_reader(self, why: TidemarkError | Exception) -> None:
        """Go on at the best reader that takes us, at the former one too if it does again. Raises what ends this member."""
        former, now = self._number, self.clock()
        if isinstance(why, CorruptionError):
            self._bad[former] = now + BAD_SECONDS
        self._look_at_all()
        bad = {number for number, until in self._bad.items() if until > now}
        is_lasting = not isinstance(why, RetryableError)
        if is_lasting and now - self._good_at >= self._address.patience_seconds:
            raise why
        reasons: list[Exception] = [why, *(one.trouble for one in self._looks if one.trouble is not None)]
        for number in order_readers(self._looks, {former}, self._address.late_seconds, self._chance):
            if number in bad or (number == former and is_lasting):
                continue
            try:
                self._enter(number)
                return
            except TidemarkError as wrong:
                reasons.append(wrong)
        waited = now - self._good_at
        lasting = [one for one in reasons if not isinstance(one, RetryableError)]
        if lasting and (len(lasting) >= len(self._readers) or waited >= self._address.patience_seconds):
            raise most_telling(lasting)
        if not self.options.follow and waited >= GIVE_UP_SECONDS:
            raise PermanentError(f"no reader can be read at since {waited:.0f} s: {why}") from why

    def _enter(self, number: int) -> None:
        """Read at this reader: what is held goes on behind what was given out. Raises where it cannot."""
        reader = self._readers[number]
        task = self.task if self._points else None
        told = reader.begin(self._wanted, task, self._points)
        if told.task is None:
            raise CorruptionError(f"the reader {reader.url} did not begin task {self._wanted.name}", subject=reader.url)
        if task is not None:
            self._refuse_older(told)
        if not self.options.follow and told.newest < self._until_newest:
            raise ReaderBehindError(f"the reader {reader.url} has less than was there at the beginning", subject=reader.url)
        with self._state:
            self._is_moving = True
        try:
            if task is None or _version_of(told.task)[0] != task.generation:
                with self._state:
                    self._held = {}
                    self._adopt(told)
            found = {shard: self._find_next(held) for shard, held in self._held.items()}
            for shard in [shard for shard, (point, _) in found.items() if has_more(told.points[shard], point)]:
                with self._state:
                    del self._held[shard], found[shard]  # another had it: it begins anew where it is ours
            places = {shard: point for shard, (point, _) in found.items()}
            if self._number not in (-1, number):
                self._refuse_other_store(told, places)
            starts = reader.locate(told.task, places) if places else {}
            with self._state:
                self._number, self._server, self._failed, self._missed = number, told.server, None, None
                self._told, self._end, self._until = told.points, told.end, told.end
                self._until_newest = self._until_newest or told.newest
                self._blocks.close()
                self._blocks = self._make_blocks()
                for shard, start in starts.items():
                    self._begun[shard] = places[shard]
                    held = self._held[shard]
                    held.cursor = _ProvenCursor(self, shard, start, *found[shard])
                    held.lease = replace(held.lease, fence=NO_FENCE)
        finally:
            with self._state:
                self._is_moving = False
                self._state.notify_all()

    def _find_next(self, held: Held) -> tuple[StoragePoint, Given]:
        """The point behind what was given out of a shard, done or not, and what was given out of half transactions.

        Another reader may have others before a half one, and this member may be gone from there before it comes to it: no
        point tells of that.
        """
        place, given = held.cursor.next_place, held.cursor.given if isinstance(held.cursor, _ProvenCursor) else {}
        point = self._begun[held.shard] if place is None else place.as_point(held.saved.version_ts)
        if place is not None and point.event_index and _is_named(place):
            given = {**given, (point.uuid, point.transaction_id): point.event_index}
            point = replace(point, event_index=0)
        return point, given

    def _refuse_other_store(self, told: Told, points: Mapping[int, StoragePoint]) -> None:
        """Raise PermanentError where no GTIDs say where to go on in another store."""
        cursors = [held.cursor for held in self._held.values() if isinstance(held.cursor, _ProvenCursor)]
        for table in [table for cursor in cursors if (table := cursor.find_half_read())]:
            raise PermanentError(
                f"rows that a bootstrap read of {table} are not all given out; other readers have them at another place",
                hint="wait for the reader; or ./tidemark changes rewind TASK --to earliest at another one",
                subject=self.task.name,
            )
        if told.server == self._server or all(one.gtids or not one.change_id for one in points.values()):
            return
        raise PermanentError(
            f"the changes have no GTIDs, so another reader must have the logs of server {self._server}; this one has those"
            f" of {told.server}",
            hint="give readers of the same server; or let the server write GTIDs",
            subject=self.task.name,
        )

    # blocks

    def _begin_stretches(self, seq: int) -> FetchedStretches:
        reader, task = self._readers[self._number], self.task
        return FetchedStretches(lambda at: reader.connect(task, at), seq, self._note_end, self._note_failure)

    def _note_end(self, seq: int) -> None:
        with self._state:
            self._end = max(self._end, seq)
            self._state.notify_all()

    def _note_failure(self, stretches: FetchedStretches, wrong: Exception) -> None:
        with self._state:
            if self._blocks.has(stretches):
                self._failed = self._failed or wrong

    def _locate(self, shard: int, point: StoragePoint) -> Start:
        found = self._readers[self._number].locate(self.task, {shard: point})[shard]
        self._begun[shard] = point
        return found

    def _new_cursor(self, shard: int, start: Start) -> Cursor:
        return _ProvenCursor(self, shard, start, self._begun[shard], {})

    def _find_batch(self, one_a_shard: bool, rows: int) -> Batch | None:
        if self._is_moving or self._failed is not None:
            return None
        try:
            return super()._find_batch(one_a_shard, rows)
        except CorruptionError as lie:
            self._failed = lie
        except (ArithmeticError, ValueError, TypeError, LookupError, UsageError) as wrong:
            self._failed = self._lie(f"sent blocks that cannot be read: {wrong}")
        return None

    def _look_for_more(self) -> bool:
        return False  # who fetches tells

    def _are_all_held(self) -> bool:
        wanted = range(self.task.shards) if self._only is None else self._only
        return set(wanted) <= {*self._taken, *self._held}


def _table_read(record: Record) -> str:
    """The table of rows that a bootstrap read; "" of any other record."""
    is_read = isinstance(record, Rows) and record.count and record.batch.column(0)[0].as_py() == Op.READ
    return f"{record.shape.database}.{record.shape.table}" if is_read and isinstance(record, Rows) else ""


def _is_named(place: Place) -> bool:
    """Whether the transaction of a place has a GTID."""
    return any(piece.seq == place.seq and piece.transaction.gtid for piece in place.stretch.pieces)


def _version_of(task: TaskRow | None) -> tuple[int, int]:
    return (0, 0) if task is None else (task.generation, task.version_ts)
