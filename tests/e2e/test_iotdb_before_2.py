"""Real IoTDBs before 2.0: what they write is read exactly, what they are LOADed is what readers of the catalog see.

0.12.0 and 1.0.1 are the versions whose servers can be had (tests/services/iotdb_before_2.py says how far).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.centre import Centre, Row, d1, rows
from tests.every_value import SEEDS, START, creating, literal, values_of
from tests.expected import SITES
from tests.landing_maker import companions, tsfiles_below
from tests.services import iotdb_before_2
from tests.services import spark as spark_service
from tests.services.iotdb import IoTDB
from tests.services.iotdb_before_2 import OldIoTDB
from tests.services.processes import PartMissing
from tests.small_files import source
from tidemark.errors import DIFFERENCES_FOUND
from tidemark.receiver.iotdb.load import load_iotdb
from tidemark.receiver.iotdb.points import server_points
from tidemark.receiver.iotdb.server import Connected, Span
from tidemark.receiver.iotdb.session import RefusedError
from tidemark.receiver.iotdb.thrift import Server
from tidemark.receiver.load.result import IotdbResult
from tidemark.tsfiles.points import column as canonical
from tidemark.tsfiles.points.codes import Compression, DataType, Encoding

pytestmark = [pytest.mark.full, pytest.mark.real("iotdb"), pytest.mark.timeout(300)]
DATA = ("data/data/sequence", "data/data/unsequence")
SITE = SITES["0.12.0"]  # files of version 3, which all of them read
HELD = (
    "it comes late, and this server reads only TsFiles of version 3",
    "the server says that it took the file, and did not",  # 0.12.0: two files into one gap between others get one name
)
COUNT = 130  # rows of a device
BREAKS = {  # version → what it accepts and then cannot flush: it ends read-only, or never ends
    "0.12.0": {Compression.GZIP},  # no page that grows by it
    "1.0.1": {Encoding.FREQ},  # no value of 1e19 and more
}
NOT_TAKEN = ("nsupported", "not support", "mismatched input", "No enum", "viable alternative")
Kind = tuple[DataType, Encoding, Compression]


def started(version: str) -> OldIoTDB:
    try:
        return iotdb_before_2.start(version)
    except PartMissing as missing:
        pytest.skip(str(missing))


ONE_AND_MORE = [iotdb_before_2.VERSIONS[0], pytest.param(iotdb_before_2.VERSIONS[1], marks=pytest.mark.soak)]


@pytest.fixture(params=ONE_AND_MORE)
def server(request: pytest.FixtureRequest) -> Iterator[OldIoTDB]:
    """An empty server of each version."""
    running = started(request.param)
    yield running
    running.close()


@pytest.fixture
def centre(tmp_path: Path) -> Centre:
    return Centre(tmp_path)


@dataclass(frozen=True)
class Wrote:
    """What a server wrote into `folder` in every way it knows, and then answered. `kinds`: of its series."""

    folder: Path
    answers: list[Row]
    kinds: set[Kind]


@pytest.fixture(scope="module", params=ONE_AND_MORE)
def wrote(request: pytest.FixtureRequest) -> Iterator[Wrote]:
    """A server with every type, encoding and compression it accepts: two chunks of each series, late rows, deletions."""
    running = started(request.param)
    try:
        kinds = accepted(running)
        shapes = ["", "aligned"] if takes(running, "aligned timeseries root.probe.a(s INT32 encoding=RLE)") else [""]
        devices = [
            write(running, kinds, kind, mood, shape)
            for kind, mood, shape in itertools.product(sorted({kind for kind, *_ in kinds}), SEEDS, shapes)
        ]
        running.run("flush")
        yield Wrote(running.folder, asked(running.port, dict.fromkeys(devices, span(COUNT))), set(kinds))
    finally:
        running.close()


def accepted(server: OldIoTDB) -> list[Kind]:
    """What this server lets a series be."""

    def is_one(kind: DataType, encoding: Encoding, compression: Compression) -> bool:
        series = f"root.probe.p.{kind.name}_{encoding.name}_{compression.name}"
        return takes(
            server, f"timeseries {series} with datatype={kind.name}, encoding={encoding.name}, compressor={compression.name}"
        )

    unfit = BREAKS[server.version]
    compressions = [c for c in Compression if c not in unfit and is_one(DataType.INT32, Encoding.PLAIN, c)]
    kinds = [kind for kind in DataType if kind is not DataType.VECTOR and is_one(kind, Encoding.PLAIN, compressions[0])]
    encodings = [e for e in Encoding if e is not Encoding.PLAIN and e not in unfit]
    coded = [(k, e) for k in kinds for e in (Encoding.PLAIN, *(e for e in encodings if is_one(k, e, compressions[0])))]
    return [(kind, encoding, compression) for kind, encoding in coded for compression in compressions]


def takes(server: OldIoTDB, words: str) -> bool:
    try:
        server.run(f"create {words}")
    except RefusedError as refused:
        if "already" in refused.message:
            return True
        assert any(word in refused.message for word in NOT_TAKEN), refused
        return False
    return True


def write(server: OldIoTDB, kinds: list[Kind], kind: DataType, mood: str, shape: str) -> str:
    """A device with a series of each encoding and compression of a type; its name."""
    random = np.random.default_rng(SEEDS[mood])
    device = f"root.{mood}{shape}.of_{kind.name.lower()}"
    series = {f"{e.name}_{c.name}": (e, c) for k, e, c in kinds if k is kind}
    for statement in creating(device, kind, series, bool(shape)):
        server.run(statement)
    columns = [values_of(kind, mood, random, COUNT) for _ in series]
    for part in (range(30, 90), range(90, COUNT), range(40)):  # the last comes late and writes over some
        told = [
            f"({START + row * 1000}, {', '.join(literal(kind, column[row - part.start]) for column in columns)})"
            for row in part
        ]
        server.insert(f"{device}(timestamp, {', '.join(series)}) {shape}", told)
        server.run("flush")
    for name in list(series)[:3]:
        server.run(f"delete from {device}.{name} where time >= {START + 35_000} and time <= {START + 60_000}")
    return device


def span(count: int) -> Span:
    return Span(START, START + count * 1000)


def asked(port: int, devices: dict[str, Span]) -> list[Row]:
    """What a server answers for devices within a span of each, as `read --tall` writes it."""
    found: list[Row] = []
    with Connected(Server("127.0.0.1", port, "root", "root")) as server:
        for device, within in devices.items():
            for name, column in server_points(server, device, within).items():
                texts = zip(column.times.tolist(), canonical.format_values(column.type, column.values), strict=True)
                found += [(device, name, time, column.type.name, text) for time, text in texts]
    return in_order(found)


def in_order(found: list[Row]) -> list[Row]:
    return sorted(found, key=lambda row: (row[0].encode(), row[1].encode(), row[2]))


def spans(expected: list[Row]) -> dict[str, Span]:
    """The extent of each device."""
    times: dict[str, list[int]] = {}
    for device, _, time, *_ in expected:
        times.setdefault(device, []).append(time)
    return {device: Span(min(some), max(some)) for device, some in times.items()}


def target(centre: Centre, port: int) -> None:
    centre.receiver = replace(centre.receiver, iotdb=f"iotdb://root@127.0.0.1:{port}")
    centre.reopen()


def give(centre: Centre) -> IotdbResult:
    return load_iotdb(centre.app, centre.receiver)


def land(centre: Centre, folder: Path, data: tuple[str, ...]) -> list[str]:
    paths = tsfiles_below(folder, data)
    centre.sender(data=data).land({path: companions(folder, path) for path in paths})
    centre.load()
    return paths


def test_what_it_wrote_is_read_as_it_answers(wrote: Wrote, centre: Centre) -> None:
    """Shipped, loaded and read: type, time and value of every point, in every encoding and compression it knows."""
    land(centre, wrote.folder, DATA)
    assert centre.rows() == wrote.answers
    assert {kind for kind, *_ in wrote.kinds} == {
        DataType.BOOLEAN,
        DataType.INT32,
        DataType.INT64,
        DataType.FLOAT,
        DataType.DOUBLE,
        DataType.TEXT,
    }
    assert len(wrote.kinds) > 40


@pytest.mark.real("spark")
def test_spark_reads_what_it_wrote(wrote: Wrote, tmp_path: Path) -> None:
    try:
        with spark_service.session(tmp_path) as spark:
            frame: Any = spark.read.format("tsfile").options(model="tree", layout="tall")
            found = [tuple(row) for row in frame.load(str(wrote.folder / "data" / "data")).collect()]
    except PartMissing as missing:
        pytest.skip(str(missing))
    assert in_order(found) == wrote.answers


def test_a_server_of_2_takes_what_it_wrote(wrote: Wrote, node: IoTDB, centre: Centre) -> None:
    target(centre, node.ports["rpc"])
    for name, *_ in node.query("show databases root.**"):
        node.run(f"delete database {name}")
    land(centre, wrote.folder, DATA)
    assert give(centre).troubles == ()
    assert asked(node.ports["rpc"], spans(wrote.answers)) == wrote.answers


def test_it_takes_what_it_can_read(server: OldIoTDB, centre: Centre) -> None:
    """V3 files point for point and once; files of 2.x are held with the reason, the catalog has them all the same."""
    target(centre, server.port)
    sender = centre.sender(data=(*SITE.data, "data/sequence"))
    paths = tsfiles_below(SITE.root, SITE.data)
    sender.land({path: companions(SITE.root, path) for path in paths})
    centre.load()
    result = give(centre)
    assert (result.troubles, result.files) == ((), len(paths))
    assert asked(server.port, spans(SITE.rows())) == SITE.rows()
    again = give(centre)
    assert (again.files, again.points) == (0, 0)
    sender.land({source(1): d1((1, 10))})
    centre.load()
    (held,) = [t for t in give(centre).troubles if t.path == source(1)]
    assert "TsFiles up to version 3" in held.reason
    assert centre.files("data"), "LOAD moves what it is given away: never the catalog's own"
    assert centre.rows() == in_order([*SITE.rows(), *rows((1, 10))])


def test_a_late_file_writes_over_nothing(server: OldIoTDB, centre: Centre) -> None:
    """Landings in any order: at no moment has the server a value that readers do not see; what it lacks is held by name."""
    target(centre, server.port)
    paths = list(np.random.default_rng(5).permutation(tsfiles_below(SITE.root, SITE.data)))
    sender = centre.sender(data=SITE.data)
    for some in (paths[:8], paths[8:16], paths[16:]):
        sender.land({str(path): companions(SITE.root, str(path)) for path in some})
        centre.load()
        result = give(centre)
        seen = centre.rows()
        assert set(asked(server.port, spans(seen))) <= set(seen)
        assert all(t.kind == DIFFERENCES_FOUND or t.reason.startswith(HELD) for t in result.troubles)
    held = {t.path for t in result.troubles if t.reason.startswith(HELD)}
    lacking = {row[0] for row in set(seen) - set(asked(server.port, spans(seen)))}
    assert held
    assert lacking == {t.path for t in result.troubles if t.path not in held}  # what is counted tells it, too


class Killing(Connected):
    """Kills the server while it works on a LOAD."""

    victim: OldIoTDB
    after = 0.0

    def run(self, statement: str, table: bool = False) -> None:
        if statement.startswith("load"):
            threading.Timer(self.after, self.victim.kill).start()
        super().run(statement, table)


@pytest.mark.parametrize("after", [0.02, *(pytest.param(at, marks=pytest.mark.soak) for at in (0.1, 0.2, 0.3, 0.6))])
def test_killed_in_the_middle_of_a_load(
    server: OldIoTDB, centre: Centre, after: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody believes a lost answer: the next load asks what is there. All is there, or what differs is told by name."""
    target(centre, server.port)
    land(centre, SITE.root, SITE.data)
    monkeypatch.setattr(Killing, "victim", server, raising=False)
    monkeypatch.setattr(Killing, "after", after)
    assert load_iotdb(centre.app, centre.receiver, connect=Killing).exit_code == 5
    server.again()
    result = give(centre)
    found = asked(server.port, spans(SITE.rows()))
    differing = {row[0] for row in set(found) ^ set(SITE.rows())}
    assert differing == {t.path for t in result.troubles if t.kind == DIFFERENCES_FOUND}
    assert centre.rows() == SITE.rows()
