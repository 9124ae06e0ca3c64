"""IoTDB's compactions as far as a folder shows them: which files are taken, how outputs are named, in which order files
appear and go. Pure: a deed gives steps, a step changes a mapping of path → content.

One time partition of one database. Source: IoTDB's InnerSpaceCompactionTask, CrossSpaceCompactionTask,
InsertionCrossSpaceCompactionTask, TsFileNameGenerator (2.x) and LevelCompactionTsFileManagement (0.12):

| kind | taken | output |
|---|---|---|
| inner, sequence | neighbours by version | created and version of the first, highest inner count + 1 |
| inner, unsequence | neighbours by version | created and version of the last, highest inner count + 1 |
| cross | sequence and the oldest unsequence files | one a sequence file, cross count + 1, up to its last time |
| insertion | the oldest unsequence file that meets no sequence one | its version in `sequence`, created at another time |

A 2.x server writes a log beside the outputs before they get their names and removes it after the sources; 0.12 keeps its log
elsewhere. A killed server does nothing until it starts again. Then 2.x takes the outputs back where all sources are there
(CompactionRecoverTask; an insertion whose output is there it ends), else it removes the sources that are left; 0.12 ends
what it began. An output without points is never named. What is deleted, or null throughout, is not copied; a `.resource`
still counts it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tidemark.tsfiles.names import TsFileName, parse_source_path, rank_of_source

DATA = ("data/sequence", "data/unsequence")
_FOLDER = "data/{space}/root.sg/0/0"
Point = tuple[str, str, int]  # device, measurement, time
Span = tuple[str, str, int, int]  # device, measurement, first and last time of a deletion


@dataclass(frozen=True)
class SiteFile:
    """`points`: as written; `gone`: deletions beside it; `counted`: device → times at its edge that are null throughout."""

    points: Mapping[Point, int]
    gone: tuple[Span, ...] = ()
    counted: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def alive(self) -> dict[Point, int]:
        return {p: v for p, v in self.points.items() if not any(_meets(span, p) for span in self.gone)}

    def extent(self) -> dict[str, tuple[int, int]]:
        """What the `.resource` says: device → first and last time."""
        times: dict[str, list[int]] = {}
        for device, _, time in self.points:
            times.setdefault(device, []).append(time)
        for device, more in self.counted.items():
            times.setdefault(device, []).extend(more)
        return {device: (min(found), max(found)) for device, found in times.items()}


Disk = dict[str, SiteFile]  # sealed files by path, companions with them


@dataclass(frozen=True)
class Step:
    """One change of the folder. `kind`: log | output | remove | unlog."""

    kind: str
    path: str
    file: SiteFile | None = None


@dataclass
class Server:
    """The server's own view (`files`) and what its folder shows (`disk`). `logs`: it keeps compaction logs there (2.x)."""

    logs: bool = True
    files: Disk = field(default_factory=dict)
    disk: Disk = field(default_factory=dict)
    log: str = ""
    version: int = 0
    flushed: dict[str, int] = field(default_factory=dict)  # device → last time in sequence: what is not later is late
    steps: list[Step] = field(default_factory=list)  # of the compaction in work, those still to be done
    sources: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    moves: bool = False  # the compaction in work is an insertion
    killed: bool = False  # until `restart`
    taken_back: set[str] = field(default_factory=set)  # outputs that are no files of the server after all

    # what its users do

    def write(self, points: Mapping[Point, int], counted: Mapping[str, tuple[int, ...]]) -> None:
        """Write and flush: in order into `sequence`, late into `unsequence`. `counted`: null rows of late devices."""
        late = {p for p in points if p[2] <= self.flushed.get(p[0], -1)}
        for unsequence in (False, True):
            mine = {p: v for p, v in points.items() if (p in late) == unsequence}
            devices = {device for device, _, _ in mine}
            if mine:
                null = {device: times for device, times in counted.items() if unsequence and device in devices}
                self._seal(unsequence, SiteFile(mine, (), null))
                for device, _, time in mine:
                    self.flushed[device] = max(self.flushed.get(device, -1), time)

    def _seal(self, unsequence: bool, file: SiteFile) -> None:
        self.version += 1
        name = TsFileName(1_600_000_000_000 + 10 * self.version, self.version, 0, 0)
        path = path_of(unsequence, name)
        self.files[path] = self.disk[path] = file

    def delete(self, span: Span) -> None:
        """A range deletion: into the mods of every file that it may concern, sources of a compaction and outputs too."""
        for place in (self.files, self.disk):
            place |= {path: _with_deletion(file, span) for path, file in place.items()}
        self.steps = [replace(s, file=_with_deletion(s.file, span)) if s.file else s for s in self.steps]

    def drop(self, path: str) -> None:
        """TTL, or somebody's rm."""
        del self.files[path], self.disk[path]

    def shown(self) -> dict[Point, int]:
        """What SELECT answers of what is sealed."""
        return newest(self.files)

    # compactions

    def inner(self, unsequence: bool, first: int, count: int) -> bool:
        """`count` neighbours from the `first` by version. False where there are not as many."""
        there = self._space(unsequence)
        taken = there[first : first + count]
        if len(taken) < 2 or self.steps or self.killed:
            return False
        names = [name_of(path) for path in taken]
        kept = names[-1] if unsequence else names[0]
        name = TsFileName(kept.created, kept.version, max(n.inner for n in names) + 1, max(n.cross for n in names))
        self._begin(taken, {path_of(unsequence, name): newest({p: self.files[p] for p in taken})}, "inner")
        return True

    def cross(self, count: int) -> bool:
        """All sequence files with the `count` oldest unsequence ones."""
        sequence, late = self._space(False), self._space(True)[:count]
        if not sequence or not late or self.steps or self.killed:
            return False
        reach = [{d: last for d, (_, last) in self.files[path].extent().items()} for path in sequence]
        parts: list[dict[Point, int]] = [{} for _ in sequence]
        for point, value in newest({p: self.files[p] for p in (*sequence, *late)}).items():
            holders = [n for n, ends in enumerate(reach) if point[0] in ends]
            fitting = [n for n in holders if reach[n][point[0]] >= point[2]]
            parts[fitting[0] if fitting else holders[-1] if holders else len(parts) - 1][point] = value
        outputs = {}
        for path, points in zip(sequence, parts, strict=True):
            name = name_of(path)
            outputs[path_of(False, name._replace(cross=name.cross + 1))] = points
        self._begin([*sequence, *late], outputs, "cross")
        return True

    def insertion(self) -> bool:
        """The oldest unsequence file moves where it meets no sequence file of its devices."""
        late = self._space(True)[:1]
        if not late or self.steps or self.killed:
            return False
        mine = self.files[late[0]].extent()
        for path in self._space(False):
            for device, (first, last) in self.files[path].extent().items():
                if device in mine and first <= mine[device][1] and last >= mine[device][0]:
                    return False
        name = name_of(late[0])
        target = path_of(False, name._replace(created=name.created + 1))
        self._work(late, {target: self.files[late[0]]}, f"{target}.insertion-compaction.log")
        self.moves = True
        return True

    def _begin(self, taken: list[str], outputs: Mapping[str, dict[Point, int]], kind: str) -> None:
        first = next(iter(outputs)).removesuffix(".tsfile")
        made = {path: SiteFile(points) for path, points in outputs.items() if points}
        self._work(taken, made, f"{first}.{kind}.{kind}-compaction.log")
        self.moves = False

    def _work(self, taken: list[str], made: Disk, log: str) -> None:
        self.sources, self.outputs = tuple(taken), tuple(made)
        for path in taken:
            del self.files[path]
        self.files |= made
        self.taken_back -= made.keys()
        steps = [*(Step("output", path, file) for path, file in made.items()), *(Step("remove", path) for path in taken)]
        self.steps = [Step("log", log), *steps, Step("unlog", log)] if self.logs else steps

    def step(self) -> bool:
        """One step of the compaction in work; False where none is."""
        if not self.steps or self.killed:
            return False
        one = self.steps.pop(0)
        if one.kind == "output" and one.file is not None:
            self.disk[one.path] = one.file
        elif one.kind == "remove":
            self.disk.pop(one.path, None)
        else:
            self.log = one.path if one.kind == "log" else ""
        return True

    def restart(self) -> None:
        """A server that was killed, or is now, starts again: a compaction in work is undone or brought to its end."""
        self.killed = False
        if self.steps and self._rolls_back():
            for path in self.outputs:
                del self.files[path]
                self.disk.pop(path, None)
            self.taken_back |= set(self.outputs)
            self.files |= {path: self.disk[path] for path in self.sources}  # with the deletions made since
            self.steps = []
        while self.step():
            pass
        self.log = ""

    def _rolls_back(self) -> bool:
        if self.moves:
            return self.outputs[0] not in self.disk
        return self.logs and all(path in self.disk for path in self.sources)

    def _space(self, unsequence: bool) -> list[str]:
        found = [p for p in self.files if p.startswith(DATA[unsequence] + "/")]
        return sorted(found, key=lambda path: name_of(path).version)


def newest(files: Mapping[str, SiteFile]) -> dict[Point, int]:
    """The files' points laid over each other, the highest rank last."""
    out: dict[Point, int] = {}
    for path in sorted(files, key=_rank):
        out |= files[path].alive()
    return out


def path_of(unsequence: bool, name: TsFileName) -> str:
    folder = _FOLDER.format(space="unsequence" if unsequence else "sequence")
    return f"{folder}/{name.created}-{name.version}-{name.inner}-{name.cross}.tsfile"


def name_of(path: str) -> TsFileName:
    parsed = parse_source_path(path, DATA)
    assert parsed is not None
    return parsed.name


def may_come_from(path: str, source: str) -> bool:
    """Whether a compaction names its output so: a count is raised, or an insertion kept the version."""
    made, before = name_of(path), name_of(source)
    return made.inner > 0 or made.cross > 0 or (made.version == before.version and path != source)


def _rank(path: str) -> tuple[int, ...]:
    parsed = parse_source_path(path, DATA)
    assert parsed is not None
    return rank_of_source(parsed)


def _with_deletion(file: SiteFile, span: Span) -> SiteFile:
    first, last = file.extent().get(span[0], (1, 0))
    meets = first <= span[3] and last >= span[2] and span not in file.gone
    return replace(file, gone=(*file.gone, span)) if meets else file


def _meets(span: Span, point: Point) -> bool:
    return span[:2] == point[:2] and span[2] <= point[2] <= span[3]
