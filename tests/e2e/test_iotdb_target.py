"""Real IoTDBs beside the catalog: after a load they hold the points that its readers see, each file LOADed once.

2.0.1-beta here; the versions before 2.0 that can be had are those of test_iotdb_before_2.py.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.centre import Centre, Row, d1, rows
from tests.expected import SITES, RealSite
from tests.landing_maker import SITE_B, companions, tsfiles_below
from tests.services import iotdb
from tests.services.iotdb import IoTDB
from tests.services.processes import PartMissing
from tests.small_files import column_of, deletion, file_of, source
from tidemark.receiver.iotdb import server as words
from tidemark.receiver.iotdb.load import load_iotdb
from tidemark.receiver.iotdb.points import server_points, table_of
from tidemark.receiver.iotdb.server import Connected, Span
from tidemark.receiver.iotdb.thrift import Server
from tidemark.receiver.load.result import IotdbResult
from tidemark.tsfiles.devices import is_table
from tidemark.tsfiles.points import column as canonical
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.write.companions import encode_table_deletion

pytestmark = [pytest.mark.full, pytest.mark.real("iotdb"), pytest.mark.timeout(300)]
EVER = Span(-(1 << 62), 1 << 62)


@pytest.fixture
def node(node: IoTDB) -> IoTDB:
    """The server without any database."""
    for name, *_ in node.query("show databases root.**"):
        node.run(f"delete database {name}")
    if any(row[0] == "works" for row in node.query("show databases", table=True)):
        node.run("drop database works", table=True)
    return node


@pytest.fixture
def centre(tmp_path: Path) -> Centre:
    return Centre(tmp_path)


def target(centre: Centre, port: int) -> None:
    centre.receiver = replace(centre.receiver, iotdb=f"iotdb://root@127.0.0.1:{port}")
    centre.reopen()


def give(centre: Centre) -> IotdbResult:
    return load_iotdb(centre.app, centre.receiver)


def asked(port: int, expected: list[Row]) -> list[Row]:
    """What the server answers for the devices of `expected`, as `read --tall` writes it."""
    found: list[Row] = []
    with Connected(Server("127.0.0.1", port, "root", "root")) as server:
        for device in sorted({row[0] for row in expected}):
            table = table_of(server, "works", device.split(".")[1]) if is_table([device]) else None
            for name, column in server_points(server, device, EVER, table).items():
                texts = zip(column.times.tolist(), canonical.format_values(column.type, column.values), strict=True)
                found += [(device, name, time, column.type.name, text) for time, text in texts]
    return sorted(found, key=lambda row: (row[0].encode(), row[1].encode(), row[2]))


def lies(node: IoTDB) -> int:
    """TsFiles in the server's data folders."""
    return len(list((node.folder / "data").rglob("*.tsfile")))


@pytest.mark.parametrize("site", SITES.values(), ids=list(SITES))
def test_a_real_folder_is_at_the_server_point_for_point(site: RealSite, node: IoTDB, centre: Centre) -> None:
    """Tree and table, aligned or not, deletions, V3 and V4: equal to what the server that wrote it answered."""
    port = node.ports["rpc"]
    target(centre, port)
    paths = tsfiles_below(site.root, site.data)
    centre.sender(data=site.data).land({path: companions(site.root, path) for path in paths})
    centre.load()
    result = give(centre)
    assert (result.troubles, result.files) == ((), len(paths))
    assert asked(port, site.rows()) == site.rows()
    assert centre.sql("SELECT DISTINCT state FROM iotdb_partition") == [("equal",)]
    before = lies(node)
    again = give(centre)
    assert (again.files, again.points, lies(node)) == (0, 0, before)


@pytest.mark.parametrize("seed", [3])
def test_real_files_in_any_order_of_arrival(seed: int, node: IoTDB, centre: Centre) -> None:
    """Landing after landing, late files among them: the server follows the catalog."""
    site, port = SITES["2.0.1-beta"], node.ports["rpc"]
    target(centre, port)
    paths = list(np.random.default_rng(seed).permutation(tsfiles_below(site.root, site.data)))
    sender = centre.sender(data=site.data)
    for at in range(0, len(paths), 11):
        sender.land({str(path): companions(site.root, str(path)) for path in paths[at : at + 11]})
        centre.load()
        assert give(centre).troubles == ()
    assert asked(port, site.rows()) == site.rows()


def test_an_older_file_late_and_deletions_late(node: IoTDB, centre: Centre) -> None:
    port = node.ports["rpc"]
    target(centre, port)
    sender = centre.sender()
    sender.land({source(2): d1((1, 11), (2, 21)), source(3): d1((7, 70), (8, 80))})
    centre.load()
    give(centre)
    sender.land({source(1): d1((0, 5), (1, 10), (3, 30))})
    sender.land({source(3): {".mods": deletion("root.sg.d1.s", 7, 7).encode()}}, added=())
    centre.load()
    result = give(centre)
    assert (result.files, result.gone, result.troubles) == (0, 1, ())
    wanted = rows((0, 5), (1, 11), (2, 21), (3, 30), (8, 80))
    assert asked(port, wanted) == centre.rows() == wanted


def test_a_site_with_a_prefix_stands_beside_one_of_the_same_names(node: IoTDB, centre: Centre) -> None:
    """Its files, late ones and deletions too, reach the server under the catalog's names of their devices."""
    port = node.ports["rpc"]
    target(centre, port)
    plain, ship = centre.sender(), centre.sender(SITE_B)
    plain.land({source(1): d1((1, 10), (2, 20))})
    ship.land({source(2): d1((1, 11), (2, 21)), source(3): d1((7, 70), (8, 80))}, prefix="root.ship7")
    centre.load()
    assert give(centre).troubles == ()
    ship.land({source(1): d1((0, 5), (1, 9), (3, 30))}, prefix="root.ship7")
    ship.land({source(3): {".mods": deletion("root.sg.d1.s", 7, 7).encode()}}, added=(), prefix="root.ship7")
    centre.load()
    assert give(centre).troubles == ()
    of_ship = [("root.ship7.sg.d1", *row[1:]) for row in rows((0, 5), (1, 11), (2, 21), (3, 30), (8, 80))]
    wanted = rows((1, 10), (2, 20)) + of_ship
    assert sorted(asked(port, wanted)) == sorted(centre.rows()) == sorted(wanted)
    assert centre.merge().exit_code == 0
    assert give(centre).troubles == ()
    assert sorted(asked(port, wanted)) == sorted(centre.rows()) == sorted(wanted)


def test_an_older_file_late_of_a_table_that_gained_a_tag(node: IoTDB, centre: Centre) -> None:
    """Its points go to the server in one new file, whose table has all tags, whichever files the devices lie in."""
    port = node.ports["rpc"]
    target(centre, port)
    newer = {("t", "z"): {"f": column_of(DataType.INT64, {2: 20})}}
    older = {
        ("t", "x", "y"): {"f": column_of(DataType.INT64, {1: 1, 2: 2})},
        ("t", "z"): {"f": column_of(DataType.INT64, {1: 1, 2: 2, 3: 3})},
    }
    late = source(9, database="works", unsequence=True)
    sender = centre.sender()
    sender.land({late: file_of(newer, tables={"t": ["tag"]})})
    centre.load()
    assert give(centre).troubles == ()
    sender.land({source(1, database="works"): file_of(older, tables={"t": ["tag", "more"]})})
    centre.load()
    assert give(centre).troubles == ()
    answered = asked(port, centre.rows())
    points = [("works.t.x.y", 1, "1"), ("works.t.x.y", 2, "2")]
    points += [("works.t.z.\\N", 1, "1"), ("works.t.z.\\N", 2, "20"), ("works.t.z.\\N", 3, "3")]
    assert answered == centre.rows() == [(device, "f", time, "INT64", text) for device, time, text in points]


class Ending(Connected):
    """Ends where rows of a table were deleted."""

    def run(self, statement: str, table: bool = False) -> None:
        super().run(statement, table)
        if statement.startswith("delete"):
            raise KeyboardInterrupt


def test_a_field_of_a_row_that_goes_leaves_the_others(node: IoTDB, centre: Centre) -> None:
    """The server deletes whole rows alone: what stays of them is written again, also by the load after one that died."""
    port = node.ports["rpc"]
    target(centre, port)
    fields = {name: column_of(DataType.INT64, {1: 1, 2: 2, 3: 3, 4: 4}) for name in ("f", "g")}
    path = source(1, database="works")
    sender = centre.sender()
    sender.land({path: file_of({("t", "x"): fields, ("t", "y"): fields}, tables={"t": ["tag"]})})
    centre.load()
    assert give(centre).troubles == ()
    node.run("use works", table=True)
    node.run("alter table t add column more int64 field", table=True)
    node.run("insert into t(time, tag, f, more) values (2, 'x', 22, 5), (9, 'x', 9, null)", table=True)
    theirs = {("works.t.x", "f", 9): "9", ("works.t.x", "more", 2): "5"}

    def assert_same(*gone: tuple[str, str, int]) -> None:
        ours = {(device, name, time): value for device, name, time, _, value in centre.rows()}
        there = {(device, name, time): value for device, name, time, _, value in asked(port, centre.rows())}
        assert there == ours | theirs
        assert len(ours) == 16 - len(gone) and not ours.keys() & set(gone)

    first = encode_table_deletion((2, 2), "t", ("t", "x"), ("f",)) + encode_table_deletion((4, 4), "t", ("t", "y"))
    sender.land({path: {".mods2": first}}, added=())
    centre.load()
    assert {trouble.kind for trouble in give(centre).troubles} == {20}, "what others wrote is counted"
    assert_same(("works.t.x", "f", 2), ("works.t.y", "f", 4), ("works.t.y", "g", 4))
    second = encode_table_deletion((3, 3), "t", ("t", "x"), ("f",))
    sender.land({path: {".mods2": first + second}}, added=())
    centre.load()
    with pytest.raises(KeyboardInterrupt):
        load_iotdb(centre.app, centre.receiver, connect=Ending)
    assert ("works.t.x", "g", 3, "INT64", "3") not in asked(port, centre.rows())
    give(centre)
    assert_same(*[("works.t.x", "f", time) for time in (2, 3)], *[("works.t.y", name, 4) for name in ("f", "g")])


def test_a_damaged_head_is_not_handed_over(node: IoTDB, centre: Centre) -> None:
    """The server would answer with an error and keep all its points."""
    target(centre, node.ports["rpc"])
    centre.sender().land({source(1): d1((1, 10)), source(2): d1((5, 50))})
    centre.load()
    (place,) = (
        centre.root / location
        for (location,) in centre.sql("SELECT location FROM catalog_file WHERE path LIKE '%-1-0-0.tsfile'")
    )
    data = bytearray(place.read_bytes())
    data[0] ^= 0xFF
    place.unlink()
    place.write_bytes(data)
    result = give(centre)
    assert [t.kind for t in result.troubles if t.path == source(1)] == [7]
    assert node.query("select s from root.sg.d1") == [["1970-01-01T00:00:00.005Z", "50"]] or asked(
        node.ports["rpc"], rows((5, 50))
    ) == rows((5, 50))


def test_a_series_of_another_type_is_refused_by_name(node: IoTDB, centre: Centre) -> None:
    target(centre, node.ports["rpc"])
    node.run("create database root.sg")
    node.run("create timeseries root.sg.d1.s boolean")
    centre.sender().land({source(1): d1((1, 10))})
    centre.load()
    (held,) = [t for t in give(centre).troubles if t.path == source(1)]
    assert "1100" in held.reason or "BOOLEAN" in held.reason
    node.run("delete timeseries root.sg.d1.s")
    assert give(centre).troubles == ()


class Killing(Connected):
    """Kills the server while it works on a LOAD."""

    node: IoTDB
    after = 0.0

    def run(self, statement: str, table: bool = False) -> None:
        if statement.startswith("load"):
            threading.Timer(self.after, self.node.kill).start()
        super().run(statement, table)


@pytest.mark.parametrize("after", [0.05, *(pytest.param(at, marks=pytest.mark.soak) for at in (0.0, 0.4))])
def test_a_server_killed_in_the_middle_has_it_all_after_the_next_load(
    after: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        node = iotdb.start()
    except PartMissing as missing:
        pytest.skip(str(missing))
    try:
        centre = Centre(tmp_path)
        site, port = SITES["2.0.1-beta"], node.ports["rpc"]
        target(centre, port)
        paths = tsfiles_below(site.root, site.data)
        centre.sender(data=site.data).land({path: companions(site.root, path) for path in paths})
        centre.load()
        monkeypatch.setattr(Killing, "node", node, raising=False)
        monkeypatch.setattr(Killing, "after", after)
        broken = load_iotdb(centre.app, centre.receiver, connect=Killing)
        assert broken.exit_code == 5
        node.again()
        assert give(centre).troubles == ()
        assert asked(port, site.rows()) == site.rows()
        assert centre.sql("SELECT DISTINCT state FROM iotdb_file") == [("given",)]
    finally:
        node.close()


def test_words_of_the_client_are_those_of_the_server(node: IoTDB) -> None:
    with Connected(Server("127.0.0.1", node.ports["rpc"], "root", "root")) as server:
        assert (server.version.major, server.unit) == (2, "ms")
        server.run(words.database_statement(server.version, "root.x.y", False))
        with pytest.raises(Exception, match="already") as caught:
            server.run(words.database_statement(server.version, "root.x.y", False))
        assert words.is_already_there(str(caught.value))
