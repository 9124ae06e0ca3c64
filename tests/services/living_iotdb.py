"""Real IoTDBs that compact as they please while a test writes to them: 2.0.1-beta and 0.12.0, small and in a hurry.

Both are asked series by series: `select *` of 2.0.1-beta answers overwritten values of aligned devices wrongly.

2.0.1-beta can seal a file without any device: all rows that went into it were deleted before. The `.resource` still names
the device, and from then on every query that meets the file's times fails. Such a query is asked in halves.

A scan of 0.12.0 over unsequence files that overlap can answer a time twice, out of order, first with the value that won, and
then with an overwritten one: `17, 86, 87, 51, 52, 86, 87`. It can also end early: 9 points where `count` says 133. A scan
of a shorter time finds those that it left out. Now and then it refuses such a scan ("overlapped data should be consumed
first"). So a scan is believed where it agrees with the count; else halves of its time are asked, down to a time alone.

0.12.0 also answers an overwritten value for good. A batch that begins before the last flush goes into the open unsequence
file as a whole, over times that lie in the open sequence file. Where the unsequence file was opened first, its version is
the lower one, and this release compares versions alone. Tidemark answers what was written last: the unsequence file's.

0.12.0 can leave two values of one time in two sequence files that overlap: a late batch is merged into one of them, and the
value of before stays in the other, be its version higher or lower. The server counts two points at that time and answers
either, whichever the query meets first. Nothing in its files tells which was written last, so either is right (`twice`).

0.12.0 writes a deletion that comes amid a merge into the `.mods` of the merged file's name. The `.resource` names the
`.mods` of before. So the server that runs goes by the deletion, and one that is started again does not. Tidemark goes by it.

0.12.0 merges late files into sequence ones only where each of them has every device of the database; else a merge ends with
"Device … is not in tsFileMetaData", every time again.
"""

from __future__ import annotations

import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from bench import sync_tool
from tests.expected import SITES, RealSite
from tests.services import iotdb, iotdb_before_2
from tidemark.receiver.iotdb.session import RefusedError

Point = tuple[str, str, int]  # device, measurement, time
INNER, CROSS, INSERTION = "inner compaction", "cross compaction", "insertion compaction"
STILL_SECONDS, STILL_WITHIN = 1.5, 60.0
LAST_TIME = 2_000_000_000  # ms since 1970; of all that a test writes
_BAD_SCAN = "overlapped data should be consumed first"
_NO_DEVICE = "is not in tsFileMetaData"
_DELETED_MEANWHILE = '"schema" is null'  # 0.12.0 counts points of a series that goes in this moment: asked again it has none
_NAME = re.compile(r"\b(sequence|unsequence)/(.+)/(\d+)-(\d+)-(\d+)-(\d+)\.tsfile$")
_AT_WORK = re.compile(r"compaction\.log$|\.(inner|cross|settle|target|merge|vm)$|\.(resource\.temp|tsfile\.merge)$")


class LivingServer(Protocol):
    """`site`: its folders as a Tidemark site names them; `root`: the store's root."""

    site: RealSite
    root: Path
    aligned: bool  # it knows aligned devices, and rows with nulls
    stale: bool  # after compactions it answers overwritten values, until it is started again on the same files
    answers_overwritten: bool  # of two files it takes the higher version, even that of a sequence file
    forgets_deletions: bool  # points that were deleted while it merged their file come back when it is started again
    one_device: bool  # it merges late files only in a database of one device
    twice: Mapping[Point, set[str]]  # of which it counts two at a time alone: all values that it answered
    kinds: frozenset[str]  # of its compactions
    create: str  # a database
    time_to_live: str  # that points of a database are gone after so many ms
    no_time_to_live: str

    def run(self, statement: str) -> None:
        """RuntimeError with the server's message."""

    def insert(self, into: str, rows: Sequence[str]) -> None:
        """Rows `(time, value, …)` into `device(time, measurement, …)`."""

    def series(self, device: str, measurement: str) -> dict[int, str]:
        """Its answer: time → value as it prints it."""

    def kill(self) -> None:
        """As a power cut would."""

    def stop(self) -> None:
        """In order, as an operator does."""

    def again(self) -> None:
        """Start what was killed or stopped on what it left."""

    def close(self) -> None: ...


class LivingIoTDB2:
    """2.0.1-beta. Compactions are looked for three times a second, files that are older than a time to live twice; two files
    are enough for one."""

    aligned, stale, answers_overwritten, forgets_deletions, one_device = True, False, False, False, False
    kinds = frozenset({INNER, CROSS, INSERTION})
    create = "create database {database}"
    time_to_live, no_time_to_live = "set ttl to {database}.** {ms}", "set ttl to {database}.** INF"

    def __init__(self) -> None:
        self.twice: dict[Point, set[str]] = {}
        self.node = iotdb.start(
            {
                "compaction_schedule_interval_in_ms": "300",
                "ttl_check_interval": "500",
                "inner_compaction_candidate_file_num": "3",
                "inner_compaction_total_file_num_threshold": "4",
                "min_cross_compaction_unseq_file_level": "0",
                "compaction_thread_count": "2",
                "compaction_write_throughput_mb_per_sec": "0",
                "data_region_per_data_node": "1",
            },
            heap="512m",
        )
        self.site, self.root = SITES["2.0.1-beta"], self.node.folder
        self.line = threading.Lock()  # its command line is one for all

    def run(self, statement: str) -> None:
        with self.line:
            self.node.run(statement)

    def insert(self, into: str, rows: Sequence[str]) -> None:
        self.run(f"insert into {into} values {', '.join(rows)}")

    def series(self, device: str, measurement: str) -> dict[int, str]:
        return _in_halves(partial(self._scan, device, measurement), 0, LAST_TIME)

    def _scan(self, device: str, measurement: str, first: int, last: int) -> dict[int, str] | None:
        where = "" if (first, last) == (0, LAST_TIME) else f" where time >= {first} and time <= {last}"
        try:
            with self.line:
                rows = self.node.query(f"select {measurement} from {device}{where}")
        except RuntimeError as error:
            if "does not exist" in str(error):
                return {}
            if _NO_DEVICE not in str(error):
                raise
            return {} if first == last else None  # a time of the file that has nothing
        return {int(time): value for time, value in rows if value != "null"}

    def kill(self) -> None:
        with self.line:
            self.node.kill()

    def stop(self) -> None:
        with self.line:
            self.node.stop()

    def again(self) -> None:
        with self.line:
            self.node.again()

    def close(self) -> None:
        self.node.close()


class LivingIoTDB0:
    """0.12.0. Compactions are looked for at every flush; two files are enough for one of a level.

    Files that are older than a time to live are looked for when it is set and once a minute: no setting changes that.
    """

    aligned, stale, answers_overwritten, forgets_deletions, one_device = False, True, True, True, True
    kinds = frozenset({INNER, CROSS})  # levels, and late files into sequence ones
    create = "set storage group to {database}"
    time_to_live, no_time_to_live = "set ttl to {database} {ms}", "unset ttl to {database}"

    def __init__(self) -> None:
        self.twice: dict[Point, set[str]] = {}
        self.node = iotdb_before_2.start(
            sync_tool.VERSION,
            {
                "compaction_strategy": "LEVEL_COMPACTION",
                "enable_unseq_compaction": "true",
                "seq_file_num_in_each_level": "2",
                "unseq_file_num_in_each_level": "2",
                "seq_level_num": "3",
                "unseq_level_num": "2",
                "merge_interval_sec": "1",
                "continue_merge_after_reboot": "true",
            },
        )
        self.site, self.root = SITES["0.12.0"], self.node.folder

    def run(self, statement: str) -> None:
        try:
            self.node.run(statement)
        except RefusedError as refused:
            raise RuntimeError(refused.message) from refused

    def insert(self, into: str, rows: Sequence[str]) -> None:
        self.node.insert(into, rows)

    def series(self, device: str, measurement: str) -> dict[int, str]:
        for point in [point for point in self.twice if point[:2] == (device, measurement)]:
            self.twice.pop(point, None)
        return _in_halves(partial(self._scan, device, measurement, defaultdict(set)), 0, LAST_TIME)

    def _scan(
        self, device: str, measurement: str, told: defaultdict[int, set[str]], first: int, last: int
    ) -> dict[int, str] | None:
        """`told`: all values of a time in the scans before, also in those that are not to be believed."""
        where = f"from {device} where time >= {first} and time <= {last}"
        try:
            scanned = self._answers(f"select {measurement} {where}")
            [count] = [int(value) for _, value in self._answers(f"select count({measurement}) {where}")] or [0]
        except RefusedError as refused:
            if _BAD_SCAN not in str(refused) or first == last:
                raise
            scanned, count = [], -1
        for at, value in scanned:
            told[at].add(value)
        if first == last:
            if count > 1:
                self.twice[device, measurement, first] = told[first]
            return dict(scanned)
        times = [at for at, _ in scanned]
        return dict(scanned) if times == sorted(set(times)) and len(times) == count else None

    def _answers(self, query: str, tries: int = 5) -> list[tuple[int, str]]:
        try:
            rows = self.node.rows(query)
        except RefusedError as refused:
            if _DELETED_MEANWHILE not in str(refused) or tries == 1:
                raise
            time.sleep(0.2)
            return self._answers(query, tries - 1)
        cells = rows.cells[0].decode_texts() if rows.cells else []
        return [(at, value) for at, value in zip(rows.times.tolist(), cells, strict=True) if value is not None]

    def kill(self) -> None:
        self.node.kill()

    def stop(self) -> None:
        self.node.stop()

    def again(self) -> None:
        self.node.again()

    def close(self) -> None:
        self.node.close()


VERSIONS: dict[str, type[LivingIoTDB2] | type[LivingIoTDB0]] = {"2.0.1-beta": LivingIoTDB2, "0.12.0": LivingIoTDB0}


def _in_halves(scan: Callable[[int, int], dict[int, str] | None], first: int, last: int) -> dict[int, str]:
    """What a scan of these times answers. Where it is not to be believed (None) each half is asked, down to a time alone."""
    answer = scan(first, last)
    if answer is not None:
        return answer
    middle = (first + last) // 2
    return _in_halves(scan, first, middle) | _in_halves(scan, middle + 1, last)


def wait_until_still(server: LivingServer) -> None:
    """Until no compaction has moved a file for STILL_SECONDS. TimeoutError after STILL_WITHIN."""
    deadline = time.monotonic() + STILL_WITHIN
    before, since = look(server), time.monotonic()
    while time.monotonic() - since < STILL_SECONDS:
        if time.monotonic() > deadline:
            raise TimeoutError(f"compactions went on for {STILL_WITHIN:.0f} s: {before}")
        time.sleep(0.1)
        if (now := look(server)) != before or any(_AT_WORK.search(name) for name, _ in now):
            before, since = now, time.monotonic()


def look(server: LivingServer) -> list[tuple[str, int]]:
    """All files of its data folders with their sizes."""
    return sorted(_files(server))


def tell_compactions(files: Collection[tuple[str, int]]) -> set[str]:
    """What kinds of compaction there were, by the names and sizes of files that were there at one time or another.

    An insertion takes a late file as it is. Its version alone does not tell it: after a restart one may be given again.
    """
    named = [(*found.groups(), size) for name, size in files if (found := _NAME.search(name))]
    late = {(group, version, size) for space, group, _, version, _, _, size in named if space == "unsequence"}
    told = set()
    for space, group, _, version, inner, cross, size in named:
        if int(inner):
            told.add(INNER)
        if int(cross):
            told.add(CROSS)
        if space == "sequence" and inner == cross == "0" and (group, version, size) in late:
            told.add(INSERTION)
    return told


def _files(server: LivingServer) -> Iterator[tuple[str, int]]:
    for folder in server.site.data:
        for place in (server.root / folder).rglob("*"):
            try:
                if place.is_file():
                    yield place.relative_to(server.root).as_posix(), place.stat().st_size
            except FileNotFoundError:
                continue
