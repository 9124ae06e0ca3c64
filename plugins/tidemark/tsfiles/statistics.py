"""What a TsFile holds, from its index and chunk headers alone: devices, intervals, points, types, encodings."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tidemark.tsfiles.chunks import ChunkHeader, read_header
from tidemark.tsfiles.codes import Compression, DataType, Encoding
from tidemark.tsfiles.devices import file_device, is_table, measurement_name
from tidemark.tsfiles.filebytes import FileBytes
from tidemark.tsfiles.footer import read_footer
from tidemark.tsfiles.series import Series, Statistics
from tidemark.tsfiles.structure import walk_series


@dataclass(frozen=True, slots=True)
class SeriesFacts:
    """A series of a file. Mostly one encoding and compression; several after `ALTER … ENCODING`, in chunk order."""

    type: DataType
    encodings: tuple[Encoding, ...]
    compressions: tuple[Compression, ...]
    points: int

    @property
    def encoding(self) -> str:
        """For people and the ledger: `TS_2DIFF`, or `TS_2DIFF+RLE` where there are several."""
        return "+".join(encoding.name for encoding in self.encodings)

    @property
    def compression(self) -> str:
        return "+".join(compression.name for compression in self.compressions)


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """A device of a file: `start` and `end` are its first and last time, inclusive; `points` are its values, not null."""

    device: str
    start: int
    end: int
    points: int
    series: dict[str, SeriesFacts]
    aligned: bool


@dataclass(frozen=True, slots=True)
class FileFacts:
    """`model` is `tree`, `table` or `mixed`; `tables` maps each table to its number of tag columns.

    `undecodable` lists `device.measurement: ENCODING` of series that this Tidemark cannot read: the file is kept as it
    came, its other series are read.
    """

    version: int
    model: str
    devices: tuple[DeviceFacts, ...]
    tables: dict[str, int]
    undecodable: tuple[str, ...]

    @property
    def points(self) -> int:
        return sum(device.points for device in self.devices)


@dataclass(slots=True)
class _Gathered:
    """What is known of a device while its series are walked."""

    time: Statistics | None = None  # of the time column, where it is aligned
    spans: list[Statistics] = field(default_factory=list)  # of its series that hold points
    series: dict[str, SeriesFacts] = field(default_factory=dict)


def describe(path: Path | str, database: str = "") -> FileFacts:
    """The facts of a TsFile; `database` completes the names of table-model devices.

    Raises as `check_structure`. Intervals of an aligned device are those of its time column. A device whose series hold
    no point at all is left out.
    """
    with FileBytes(path) as file:
        metadata = read_footer(file)
        gathered: dict[str, _Gathered] = {}
        kinds = set()
        undecodable = []
        for segments, series in walk_series(file, metadata):
            device = file_device(segments, database)
            kinds.add(is_table(segments))
            name = series.name if is_table(segments) else measurement_name(series.name)
            chunks = [read_header(file, place.offset, series, metadata.chunks_end) for place in series.chunks]
            problems = _gather(gathered.setdefault(device, _Gathered()), name, series, chunks)
            undecodable += [f"{device}.{name}: {problem}" for problem in problems]
    found = (_device_facts(device, known) for device, known in sorted(gathered.items()))
    devices = tuple(facts for facts in found if facts is not None)
    model = "mixed" if len(kinds) == 2 else "table" if True in kinds or (not kinds and metadata.tables) else "tree"
    tables = {table: len(tags) for table, tags in metadata.tables.items()}
    return FileFacts(metadata.version, model, devices, tables, tuple(undecodable))


def _gather(known: _Gathered, name: str, series: Series, chunks: list[ChunkHeader]) -> list[str]:
    """Add a series to what is known of its device; returns what of it cannot be decoded."""
    from tidemark.tsfiles.decoders import can_decode  # and numpy with it, which nobody needs who only takes the facts

    statistics = series.statistics
    if series.is_time:
        known.time = statistics
        return []
    if statistics.count:
        known.spans.append(statistics)
    encodings = tuple(dict.fromkeys(chunk.encoding for chunk in chunks))
    compressions = tuple(dict.fromkeys(chunk.compression for chunk in chunks))
    known.series[name] = SeriesFacts(series.type, encodings, compressions, statistics.count)
    return [
        f"{encoding.name}/{compression.name}" if can_decode(series.type, encoding) else encoding.name
        for encoding, compression in dict.fromkeys((chunk.encoding, chunk.compression) for chunk in chunks)
        if not can_decode(series.type, encoding, compression)
    ]


def _device_facts(device: str, known: _Gathered) -> DeviceFacts | None:
    """None for a device without points."""
    spans = [known.time] if known.time is not None and known.time.count else known.spans
    if not spans:
        return None
    points = sum(series.points for series in known.series.values())
    start, end = min(span.start for span in spans), max(span.end for span in spans)
    return DeviceFacts(device, start, end, points, known.series, known.time is not None)
