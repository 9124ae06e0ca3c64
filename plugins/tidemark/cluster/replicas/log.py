"""The log of a data group in its member's folder: compare and append, read, seal, retain.

    log = GroupLog(store, "log/7")
    voted = log.vote(Fence(coordinator, epoch, master))
    answer = log.append(records, fence, expect=voted.tail)     # no question first: one call, one round trip
    for stored in log.read(version): ...

The log is a chain of files with numbers: `0000000007.log`. The last one grows until it is closed; then the next one is
made. Where there is SFTP alone each append is a file. A pack of a block of files, `0000000065-0000000128.log`, takes
their place. `core.segment` says what is in a file, `core.epochs` what a member accepts.

Who appends shows the mark that he read last, so of all that read the same end one appends. A vote is an append too:
nothing of an older epoch comes after it, however late its worker wakes up. If a call returns False, or its reply is lost,
the end is read and judged again. A record that is there already is a duplicate, and acknowledged once it is durable.

Not guaranteed: durable names where there is SFTP alone. Format: docs/formats/group-log.md.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice

from tidemark.cluster.replicas.core.continuity import Log
from tidemark.cluster.replicas.core.epochs import Fence, Verdict, judge_batch, judge_fence
from tidemark.cluster.replicas.core.record import StoredRecord, encode_stored
from tidemark.cluster.replicas.core.roles import ORIGIN, LogEnd, Position
from tidemark.cluster.replicas.core.segment import MARK_BYTES, Mark, Segment, decode_mark, encode_mark, read_segment
from tidemark.errors import (
    CorruptionError,
    NotFoundError,
    PermanentError,
    SchemaTooNewError,
    SourceVanishedError,
    TidemarkError,
    UnreachableError,
)
from tidemark.stores.protocol import Entry, FileEnd, Store, without_password

SEGMENT_BYTES = 4 << 20  # a file of so many bytes is closed
LONGEST_APPEND = 32 << 20
BLOCK = 64  # files in a pack
_LONGEST_FILE = SEGMENT_BYTES + LONGEST_APPEND + (1 << 20)
_NAME = re.compile(r"(\d{10})(?:-(\d{10}))?\.log")
_SHORT = 1 << 16  # bytes of a file that is read with those of other logs
_TRIES = 8
_OLD_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class _File:
    """A file of the chain with the numbers that it covers."""

    first: int
    last: int
    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a log as it was read, and what an append has to find there. `fence` is None for a member without a log.
    `filling`: it was emptied and has not got all again."""

    end: LogEnd = ORIGIN
    fence: Fence | None = None
    number: int = 0  # of the last file
    file: FileEnd | None = None  # None: the next append makes a file
    filling: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What the member said, and its log's end then. Only ACCEPT and DUPLICATE mean yes."""

    verdict: Verdict
    tail: Tail

    @property
    def is_yes(self) -> bool:
        return self.verdict in (Verdict.ACCEPT, Verdict.DUPLICATE)


class GroupLog:
    """The log in `folder` of a member's store. Keeps nothing between two calls; any number of processes may have one."""

    def __init__(self, store: Store, folder: str, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._store = store
        self._folder = folder
        self._segment_bytes = min(segment_bytes, SEGMENT_BYTES)
        self._known: Mapping[str, bytes] = {}  # files that were read with those of other logs

    def read_tail(self) -> Tail:
        """Return the log's end by a listing and 256 bytes. A torn append makes it read the last file as a whole."""
        for _ in range(_TRIES):
            try:
                return self._find_tail(self._list_chain())
            except SourceVanishedError:  # packed since it was listed
                continue
        raise self._busy_error()

    def vote(self, asked: Fence, *, first: bool = False) -> Answer:
        """Make the member obey `asked`. The first vote begins the log; unless its group has none yet (`first`), it is one
        that was emptied: `filling` until `note_whole`. The tail of a yes has the end that the vote tells."""
        for _ in range(_TRIES):
            tail = self.read_tail()
            verdict = judge_fence(tail.fence, asked)
            if verdict is not Verdict.ACCEPT:
                return Answer(verdict, tail)
            if tail.fence == asked:
                self._make_durable(tail)
                return Answer(verdict, tail)
            after = self._write(replace(tail, filling=tail.filling or (tail.fence is None and not first)), (), asked)
            if after is not None:
                return Answer(verdict, after)
        raise self._busy_error()

    def note_whole(self, tail: Tail) -> Answer:
        """Note that an emptied log, which ends with this tail, has all again. UnreachableError if it ends elsewhere."""
        assert tail.fence is not None
        after = self._write(replace(tail, filling=False), (), tail.fence)
        if after is None:
            raise self._busy_error()
        return Answer(Verdict.ACCEPT, after)

    def append(self, records: Sequence[StoredRecord], writer: Fence, *, expect: Tail | None = None) -> Answer:
        """Append records in a row, all or none; those that the member has already are left out.

        `expect`: the tail of the answer before. If the log still ends so, this is one call. Else its end is read first.
        """
        for number in range(_TRIES):
            hinted = number == 0 and expect is not None
            tail = expect if expect is not None and hinted else self.read_tail()
            try:
                log = self._log_at(tail, records)
            except SourceVanishedError:
                continue
            verdict, known = judge_batch(tail.fence, log, writer, [stored.head for stored in records])
            if verdict is Verdict.ACCEPT:
                after = self._write(tail, records[known:], writer)
                if after is not None:
                    return Answer(verdict, after)
            elif not hinted:
                if verdict is Verdict.DUPLICATE:
                    self._make_durable(tail)
                return Answer(verdict, tail)
        raise self._busy_error()

    def read(self, from_version: int) -> Iterator[StoredRecord]:
        """Yield the records from this version on, up to the end as it is now. Holds one file at a time.

        NotFoundError for a version that is no longer kept. CorruptionError with file and offset where the log is damaged.
        """
        failures = 0
        while True:
            try:
                for stored in self._read_chain(self._list_chain(), from_version):
                    yield stored
                    from_version, failures = stored.head.position.version + 1, 0
                return
            except SourceVanishedError:  # packed or retained since it was listed
                failures += 1
                if failures == _TRIES:
                    raise

    def read_kept(self) -> Iterator[StoredRecord]:
        """Yield all records that are kept: from version 1 on, or behind `read_base`. Errors as `read`."""
        yield from self.read(self.read_base().position.version + 1)

    def read_whole(self) -> bool:
        """Read every record that is kept: nothing else shows damage in the middle. Return whether there are any. Errors as
        `read`."""
        return sum(1 for _ in self.read_kept()) > 0

    def read_base(self) -> LogEnd:
        """Return the end of what is no longer kept; ORIGIN if everything is."""
        for _ in range(_TRIES):
            chain = self._list_chain()
            try:
                first = self._read_begins(chain[:1])
            except SourceVanishedError:  # packed or retained since it was listed
                continue
            return first[0].end if first and first[0] is not None else ORIGIN
        raise self._busy_error()

    def begin_at(self, base: LogEnd, fence: Fence) -> Answer:
        """Begin the log of a member that has none behind `base`, and let it obey `fence`. UnreachableError if it has one."""
        after = self._write(Tail(base, filling=True), (), fence) if self.read_tail().fence is None else None
        if after is None:
            raise self._busy_error()
        return Answer(Verdict.ACCEPT, after)

    def count_bytes(self) -> int:
        """Return the bytes of the log."""
        return sum(file.size for file in self._list_chain())

    def seal(self) -> None:
        """Close the last file, and pack each whole block of small ones."""
        tail = self.read_tail()
        if tail.fence is not None and tail.file is not None and tail.file.size > 2 * MARK_BYTES:
            self._write(tail, (), tail.fence, closed=True)  # if somebody else appends meanwhile, the next call closes it
        chain = self._list_chain()[:-1]
        blocks: dict[int, list[_File]] = {}
        for file in chain:
            blocks.setdefault((file.last - 1) // BLOCK, []).append(file)
        for number, files in blocks.items():
            if len(files) == BLOCK and sum(file.size for file in files) <= SEGMENT_BYTES:
                self._pack(number * BLOCK + 1, files)
        kept = {file.path for file in self._list_chain()}
        # CRASH WINDOW: a pack stands beside the files whose place it took. Nobody reads them; the next call removes them.
        self._remove([file for file in self._list_between(chain) if file.path not in kept])

    def retain(self, to_version: int) -> None:
        """Give up the files that hold nothing above this version. The last two stay."""
        chain = self._list_chain()
        begins = self._read_begins(chain)
        gone = 0
        while gone < len(chain) - 2 and (begin := begins[gone + 1]) is not None and begin.end.position.version <= to_version:
            gone += 1
        # CRASH WINDOW: the oldest of them are gone. What is left is still a chain; the next call removes the rest.
        self._remove(self._list_between(chain[:gone]))
        entries = self._list_files()[1]
        newest = max((entry.mtime for entry in entries), default=0)
        old = [entry.path for entry in entries if entry.path.endswith(".tmp") and entry.mtime < newest - _OLD_SECONDS]
        self._store.remove(old)

    def set_aside(self) -> None:
        """Move the files of a log that is damaged, or parted from its master's, to a new folder beside it. The member has no
        log then, and proves nothing until it has the master's."""
        aside = f"{self._folder}.parted-{uuid.uuid4().hex[:8]}"
        self._store.make_folders([aside])
        for file in reversed(self._list_files()[0]):
            # CRASH WINDOW: its newest files are aside. What is left is a chain with an older end: it continues the
            # master's, or is set aside too.
            self._store.seal_parts([(file.path, f"{aside}/{file.path.rpartition('/')[2]}")])

    # the end

    def _find_tail(self, chain: list[_File]) -> Tail:
        number = chain[-1].last if chain else 0
        for file in reversed(chain):
            is_last = file.last == number
            tail = self._read_bytes(file, max(0, file.size - MARK_BYTES), MARK_BYTES)
            mark, sound = self._decode_mark(file, tail), file.size
            if mark is None:
                segment = self._read_file(file)
                mark, sound = segment.last, segment.sound
                if mark is None:  # its very first mark is torn: the next file goes on from the one before
                    continue
                tail = encode_mark(mark)
            grows = is_last and not mark.closed
            return Tail(mark.end, mark.fence, number, FileEnd(file.size, sound, tail) if grows else None, mark.filling)
        if chain:
            raise self._damage_error(chain[0], 0)
        return Tail()

    def _log_at(self, tail: Tail, records: Sequence[StoredRecord]) -> Log:
        """Return what the member has of these records, in a log that ends where it does."""
        version = records[0].head.position.version
        if version > tail.end.position.version or tail.fence is None:
            return Log(tail.end)
        try:
            heads = [stored.head for stored in islice(self.read(version), len(records))]
        except NotFoundError:
            heads = []
        if not heads:
            return Log(tail.end)
        return Log(LogEnd(Position(0, version - 1), heads[0].previous_crc), tuple(heads))

    def _write(self, tail: Tail, records: Sequence[StoredRecord], fence: Fence, *, closed: bool = False) -> Tail | None:
        """Append behind `tail`. Returns the new tail, None if the log does not end there any more."""
        end = records[-1].head.end if records else tail.end
        data = b"".join(encode_stored(stored) for stored in records)
        if len(data) > LONGEST_APPEND:
            raise ValueError(f"an append has {len(data)} bytes, at most {LONGEST_APPEND} may be")
        alone = not self._store.properties.appends
        at = tail.file.offset if tail.file is not None else MARK_BYTES
        size = at + len(data) + MARK_BYTES
        closed = closed or alone or size >= self._segment_bytes
        mark = encode_mark(Mark(end, fence, closed, tail.filling))
        if tail.file is not None:
            if alone:
                raise PermanentError(
                    f"{self._place_of(_path_of(self._folder, tail.number))} was written by a shell; there is SFTP alone now",
                    hint="let the node be reached as before",
                    subject=self._folder,
                )
            number = tail.number
            done = self._store.append_if(_path_of(self._folder, number), data + mark, tail.file)
        else:
            number = tail.number + 1
            begin = encode_mark(Mark(tail.end, tail.fence or fence, alone, tail.filling))
            done = self._make_file(number, begin + data + mark)
        return Tail(end, fence, number, None if closed else FileEnd(size, size, mark), tail.filling) if done else None

    def _make_file(self, number: int, data: bytes) -> bool:
        """Make the file with this number. False if it was there, or is no part of the chain: it is removed then.

        The name alone does not say that nobody was here: an older file of this number may have been packed or retained, or
        the disk been emptied. The chain is looked at afterwards: then it has a higher number, or lacks the one before.
        """
        path = _path_of(self._folder, number)
        if number > 1 and self._store.properties.appends:
            self._make_durable(Tail(number=number - 1))
        if not self._store.append_if(path, data, None):
            return False
        # CRASH WINDOW: a file that is no part of the chain. Nobody reads it, `seal` or `retain` removes it. Where the disk
        # was emptied it is alone, and counts as damage: the member is recovered.
        chain = _chain_of(self._list_files()[0])
        if any(file.path == path for file in chain) and (number == 1 or any(file.last == number - 1 for file in chain)):
            return True
        self._store.remove([path])
        return False

    def _make_durable(self, tail: Tail) -> None:
        """Sync what an append may have left in the far end's memory as it died."""
        files = [file for file in self._list_chain() if tail.number - 1 <= file.last <= tail.number]
        with suppress(SourceVanishedError):  # packed meanwhile: a pack is durable
            self._store.seal_parts([(f"{file.path}.part", file.path) for file in files])

    # files

    def _list_files(self) -> tuple[list[_File], Sequence[Entry]]:
        """Return the files of the log by number, the widest first, and everything in the folder."""
        entries = self._store.list_files([self._folder]).entries
        return _files_of(self._folder, entries), entries

    def _list_chain(self) -> list[_File]:
        """Return the files that are the log: from the highest number down, without a gap, a pack before what it holds."""
        return self._require_chain(self._list_files()[0])

    def _require_chain(self, files: Sequence[_File]) -> list[_File]:
        chain = _chain_of(files)
        if len(chain) == 1 and chain[0].first > 1:  # retention leaves two: the folder was emptied, see `_make_file`
            raise self._damage_error(chain[0], 0)
        return chain

    def _list_between(self, chain: list[_File]) -> list[_File]:
        """Return all files with numbers of this part of the chain, those that a pack took the place of too."""
        if not chain:
            return []
        return [file for file in self._list_files()[0] if chain[0].first <= file.first and file.last <= chain[-1].last]

    def _remove(self, files: Sequence[_File]) -> None:
        """Remove files, oldest first."""
        self._store.remove([file.path for file in files])

    def _read_chain(self, chain: list[_File], from_version: int) -> Iterator[StoredRecord]:
        begins = self._read_begins(chain)
        starts = [n for n, begin in enumerate(begins) if begin is not None and begin.end.position.version < from_version]
        if not starts:
            if not chain:
                return
            if begins[0] is not None:
                raise NotFoundError(
                    f"{self._place_of(self._folder)} no longer keeps version {from_version}: it begins with {chain[0].path}",
                    hint="recover by files, then by the log",
                    subject=self._folder,
                )
        before: Mark | None = None
        torn: tuple[_File, int] | None = None
        for file in chain[starts[-1] if starts else 0 :]:
            segment = self._read_file(file)
            if segment.first is not None and before is not None and not _is_behind(before, segment.first):
                raise self._damage_error(*(torn or (file, 0)))
            for stored in segment.records:
                if stored.head.position.version >= from_version:
                    yield stored
            before = segment.last or before
            torn = (file, segment.sound) if segment.sound < file.size else None

    def _read_begins(self, chain: list[_File]) -> list[Mark | None]:
        """Return the first mark of each file. None if it is unreadable."""
        read = self._store.read_many([file.path for file in chain], [MARK_BYTES] * len(chain))
        marks = []
        for file, (_, data) in zip(chain, read, strict=True):
            if data is None:
                raise SourceVanishedError(f"{file.path} is gone", subject=file.path)
            marks.append(self._decode_mark(file, data))
        return marks

    def _read_file(self, file: _File) -> Segment:
        if file.size > _LONGEST_FILE:
            raise self._damage_error(file, _LONGEST_FILE)
        try:
            segment = read_segment(self._read_bytes(file, 0, file.size))
        except SchemaTooNewError as newer:
            raise self._newer_error(file, newer) from newer
        if segment.damage is not None:
            raise self._damage_error(file, segment.damage)
        return segment

    def _read_bytes(self, file: _File, offset: int, length: int) -> bytes:
        known = self._known.get(file.path, b"")
        return known[offset : offset + length] if len(known) == file.size else self._store.read(file.path, offset, length)

    def _decode_mark(self, file: _File, data: bytes) -> Mark | None:
        try:
            return decode_mark(data)
        except SchemaTooNewError as newer:
            raise self._newer_error(file, newer) from newer

    def _pack(self, first: int, files: list[_File]) -> None:
        """Write the sound bytes of a block's files into one. Two packers make the same file: blocks never overlap."""
        data = b""
        for file in files:
            data += self._store.read(file.path, 0, self._read_file(file).sound)
        segment = read_segment(data)
        if segment.damage is not None or segment.sound < len(data):
            raise self._damage_error(files[0], segment.sound)
        self._store.append_if(f"{self._folder}/{first:010d}-{files[-1].last:010d}.log", data, None)

    # errors

    def _place_of(self, path: str) -> str:
        return f"{without_password(self._store.url).rstrip('/')}/{path}"

    def _damage_error(self, file: _File, offset: int) -> CorruptionError:
        text = f"{self._place_of(file.path)} is damaged at byte {offset}"
        return CorruptionError(text, hint="the member has to be recovered", subject=file.path)

    def _newer_error(self, file: _File, newer: SchemaTooNewError) -> SchemaTooNewError:
        return SchemaTooNewError(f"{self._place_of(file.path)}: {newer.message}", hint=newer.hint, subject=file.path)

    def _busy_error(self) -> UnreachableError:
        text = f"{self._place_of(self._folder)}: others appended each time that this process tried"
        return UnreachableError(text, hint="run again", subject=self._folder)


def read_all_tails(store: Store, folders: Sequence[str]) -> dict[str, Tail | TidemarkError]:
    """Return folder → the end of the log there, or why it has none: by one listing and one reading of all short files. A log
    whose last file is long costs a read of 256 bytes more."""
    by_folder: dict[str, list[Entry]] = {folder: [] for folder in folders}
    for entry in store.list_files(folders).entries:
        if (mine := by_folder.get(entry.path.rpartition("/")[0])) is not None:
            mine.append(entry)
    files = {folder: _files_of(folder, entries) for folder, entries in by_folder.items()}
    short = [(mine[-1].path, mine[-1].size) for mine in files.values() if mine and mine[-1].size <= _SHORT]
    read = store.read_many([path for path, _ in short], [size for _, size in short])
    known = {path: data for path, data in read if data is not None}
    found: dict[str, Tail | TidemarkError] = {}
    for folder in folders:
        log = GroupLog(store, folder)
        log._known = known
        try:
            found[folder] = log._find_tail(log._require_chain(files[folder]))
        except SourceVanishedError:  # packed since it was listed
            found[folder] = GroupLog(store, folder).read_tail()
        except TidemarkError as broken:
            found[folder] = broken
    return found


def _files_of(folder: str, entries: Sequence[Entry]) -> list[_File]:
    files = []
    for entry in entries:
        match = _NAME.fullmatch(entry.path.removeprefix(f"{folder}/"))
        if match is not None:
            files.append(_File(int(match[1]), int(match[2] or match[1]), entry.path, entry.size))
    return sorted(files, key=lambda file: (file.first, -file.last))


def _chain_of(files: Sequence[_File]) -> list[_File]:
    widest = {file.last: file for file in reversed(files)}
    chain: list[_File] = []
    at = max(widest, default=0)
    while at in widest:
        chain.append(widest[at])
        at = widest[at].first - 1
    return chain[::-1]


def _is_behind(before: Mark, first: Mark) -> bool:
    """Tell whether a file that begins with `first` follows one that ends with `before`."""
    return (before.end, before.fence) == (first.end, first.fence)


def _path_of(folder: str, number: int) -> str:
    return f"{folder}/{number:010d}.log"
