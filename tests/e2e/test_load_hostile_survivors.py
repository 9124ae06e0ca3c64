"""The judgement by points meets files that lie, explode, rot or are garbage: it costs that site's file alone, within limits,
with a word about it, and nothing leaves as compacted that is not proved to live on."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.centre import Centre, d1
from tests.exploding_files import DEVICE, SERIES, many_chunks, many_pages, many_points
from tests.landing_maker import SITE_B, Sender
from tests.small_files import deletion, sealed, source, tsfile
from tests.unit.tsfiles.handmade import PLAIN, Chunk, HandmadeFile, statistics, string, uvarint
from tidemark.engines.task import Limits
from tidemark.errors import CorruptionError
from tidemark.receiver.load import examine as admitting
from tidemark.settings.model import SparkSettings
from tidemark.tsfiles.reader import TsFile
from tidemark.tsfiles.statistics import check_and_describe

GONE, MADE = source(1), source(1, inner=1)


@pytest.fixture
def centre(tmp_path: Path) -> Centre:
    return Centre(tmp_path, engine="auto")


def state(centre: Centre, path: str = GONE) -> list[tuple[str, str | None]]:
    return [
        tuple(row)
        for row in centre.sql("SELECT state, marked FROM catalog_file WHERE path = :p AND role = 'source'", p=path)
    ]


def judged(centre: Centre, sender: Sender, made: dict[str, bytes]) -> tuple[str, float]:
    """The compaction `MADE` of `GONE` comes, and a healthy site's file: why the first does not leave, and the seconds."""
    theirs = centre.sender(SITE_B, name="plant2")
    theirs.land({source(1, database="root.other"): sealed({"root.sg.other": {"s": [(1, 1)]}})})
    sender.land({MADE: made}, superseded=(sender.drop(GONE, MADE),), removed=(GONE,))
    begun = time.monotonic()
    result = centre.load()
    spent = time.monotonic() - begun
    assert centre.sql("SELECT state FROM catalog_file WHERE site_id = :s", s=SITE_B) == [("live",)]
    assert not [one for one in result.troubles if "Traceback" in one.reason]
    return dict(result.pending).get(GONE, ""), spent


def of_device(*times: int, points: dict[int, int] | None = None) -> dict[str, bytes]:
    return sealed({DEVICE: {SERIES: [(t, (points or {}).get(t, 1)) for t in times]}})


def at_one_time() -> bytes:
    return many_chunks(60_000)


class TestExplosions:
    @pytest.mark.parametrize("which", [pytest.param("gone", marks=pytest.mark.full), "made"])
    @pytest.mark.parametrize(
        "exploding",
        [
            pytest.param(lambda: many_points(40, 1 << 22), id="points without end"),
            pytest.param(lambda: many_pages(250_000), id="pages without end", marks=pytest.mark.full),
            pytest.param(at_one_time, id="chunks without end", marks=pytest.mark.full),
        ],
    )
    def test_it_ends_within_its_limits(self, centre: Centre, which: str, exploding: Callable[[], bytes]) -> None:
        """Each holds ones from time 0 on; the other file has no point in common with it."""
        sender = centre.sender()
        large, small = {"": exploding()}, of_device(0, 1, points={0: 7, 1: 7})
        sender.land({GONE: large if which == "gone" else small})
        assert centre.load().troubles == ()
        why, spent = judged(centre, sender, small if which == "gone" else large)
        assert spent < 40
        if why:
            ends = ("used up its CPU time, the 10 s", "not done after 30 s")  # the second on a machine that is busy
            assert which == "gone" and "could not be compared" in why and any(end in why for end in ends)
            assert state(centre) == [("live", None)]
        else:  # compacted only where each time of what vanished stands there, overwritten
            chunks = exploding is at_one_time  # all at time 0
            compacted = chunks if which == "gone" else not chunks
            assert state(centre) == [("retired", None) if compacted else ("live", "dropped")]

    @pytest.mark.full
    def test_memory_stays_bounded_however_many_points_a_file_has(
        self, centre: Centre, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """16 million points in some thousand bytes: judged a stretch of time after the other."""
        peak = Peak(monkeypatch)
        sender = centre.sender()
        sender.land({GONE: {"": many_points(16, 1 << 20)}})
        centre.load()
        _, spent = judged(centre, sender, of_device((16 << 20) - 1))
        assert state(centre) == [("retired", None)] and spent < 20
        assert peak.memory < 641 << 20

    @pytest.mark.full
    def test_a_site_of_explosions_costs_its_own_few(self, centre: Centre, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(admitting, "survival_limits", lambda _: Limits(wall_seconds=1))
        sender = centre.sender()
        exploding = {"": many_pages(250_000)}
        many = {source(v): exploding for v in range(1, 9)}
        sender.land(many)
        assert centre.load().troubles == ()
        made = {source(v, inner=1): of_device(300_000 + v) for v in range(1, 9)}
        told = tuple(sender.drop(source(v), source(v, inner=1)) for v in range(1, 9))
        sender.land(made, superseded=told, removed=tuple(many))
        begun = time.monotonic()
        pending = dict(centre.load().pending)
        assert time.monotonic() - begun < 25
        assert len(pending) == 8 and all("could not be compared" in why for why in pending.values())
        assert sum("not done after 1 s" in why for why in pending.values()) in (3, 4)
        assert sum("others of its site" in why for why in pending.values()) >= 4


class Peak:
    """The memory that children of the judgement may use at most, as it was given to them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.memory = 0
        given = admitting.survival_limits

        def watched(*arguments: object) -> Limits:
            limits = given(*arguments)  # type: ignore[arg-type]
            self.memory = max(self.memory, limits.memory_bytes)
            return limits

        monkeypatch.setattr(admitting, "survival_limits", watched)


def with_statistics(lie: Callable[[bytes], bytes]) -> bytes:
    return lie(tsfile({DEVICE: {SERIES: [(1, 1), (2, 2)]}}))


class TestLies:
    def test_a_series_whose_statistics_are_not_those_of_its_chunks_is_refused_by_the_load(self, tmp_path: Path) -> None:
        for count in (0, 1, 1 << 60):
            place = tmp_path / "1-1-0-0.tsfile"
            place.write_bytes(two_chunks(count))
            with pytest.raises(CorruptionError, match="statistics"):
                check_and_describe(place)

    def test_pages_outside_of_what_the_index_says_are_no_secret(self, tmp_path: Path) -> None:
        """A read of other times passed them over, and nobody knew."""
        place = tmp_path / "1-1-0-0.tsfile"
        sound = HandmadeFile(DEVICE, [[Chunk(SERIES, PLAIN, [([1, 2], [1, 2]), ([8, 9], [8, 9])])]]).data()
        said, lie = statistics(2, [1, 2, 8, 9]), uvarint(4) + struct.pack(">qq", 1, 2) + bytes(40)
        assert sound.count(said) == 1
        place.write_bytes(sound.replace(said, lie))
        with TsFile(place) as file, pytest.raises(CorruptionError, match="times"):
            file.read_column(DEVICE, SERIES, 1, 3)

    @pytest.mark.full_after(1)
    @pytest.mark.parametrize("deletes", ["keep", "apply"])
    def test_a_file_that_says_it_has_no_points_is_read_before_it_leaves(self, centre: Centre, deletes: str) -> None:
        sender = centre.sender(deletes=deletes)
        one = HandmadeFile(DEVICE, [[Chunk(SERIES, PLAIN, [([1, 2], [1, 2])])]]).data()
        said, lie = statistics(2, [1, 2]), uvarint(0) + struct.pack(">qq", 1, 2) + bytes(40)
        sender.land({GONE: {"": one.replace(said, lie)}})
        if centre.load().quarantined:
            return
        sender.land({}, dropped=(sender.drop(GONE),), removed=(GONE,))
        pending = dict(centre.load().pending)
        assert state(centre) == [("live", None)] and "could not be compared" in pending[GONE]


def two_chunks(count: int) -> bytes:
    sound = HandmadeFile(
        DEVICE, [[Chunk(SERIES, PLAIN, [([1, 2], [1, 2])])], [Chunk(SERIES, PLAIN, [([5, 6], [5, 6])])]]
    ).data()
    said, lie = statistics(2, [1, 2, 5, 6]), uvarint(count) + struct.pack(">qq", 1, 6) + bytes(40)
    head, tail = sound.split(said)
    assert len(lie) == len(said) or count >= 128
    return head + lie + tail if len(lie) == len(said) else moved(head, lie, tail, len(lie) - len(said))


def moved(head: bytes, lie: bytes, tail: bytes, by: int) -> bytes:
    """The file with a longer entry: the places of the index behind it are moved."""
    node = tail.rindex(b"TsFile")
    size = struct.unpack(">i", tail[node - 4 : node])[0]
    metadata = tail[node - 4 - size : node - 4]
    before = tail[: node - 4 - size]

    def shifted(data: bytes, least: int) -> bytes:
        out, at = bytearray(data), 0
        while at + 8 <= len(out):
            (value,) = struct.unpack(">q", out[at : at + 8])
            if least < value < 10_000:
                out[at : at + 8] = struct.pack(">q", value + by)
                at += 8
            else:
                at += 1
        return bytes(out)

    edge = len(head)
    return head + lie + shifted(before, edge) + shifted(metadata, edge) + tail[node - 4 :]


class TestRot:
    """What was loaded is not what lies there any more."""

    @pytest.mark.full_after(1)
    @pytest.mark.parametrize("deletes", ["keep", "apply"])
    @pytest.mark.parametrize("victim", ["gone", "made"])
    def test_rotten_bytes_prove_nothing(self, centre: Centre, victim: str, deletes: str) -> None:
        """`GONE` was dropped by hand; rot makes its only point equal to one that stands in a file made since."""
        sender = centre.sender(deletes=deletes)
        sender.land({GONE: d1((1, 10)), source(2, inner=1): d1((1, 11))})
        centre.load()
        place = placed(centre, GONE if victim == "gone" else source(2, inner=1))
        place.chmod(0o644)
        place.write_bytes(tsfile({"root.sg.d1": {"s": [(1, 11 if victim == "gone" else 10)]}}))
        sender.land({}, dropped=(sender.drop(GONE),), removed=(GONE,))
        pending = dict(centre.load().pending)
        assert state(centre) == [("live", None)]
        assert "could not be compared" in pending[GONE] and place.name in pending[GONE]

    @pytest.mark.full_after(1)
    @pytest.mark.parametrize("how", ["cut", "zeros", "gone", "folder", "empty"])
    def test_a_damaged_file_waits_and_says_so(self, centre: Centre, how: str) -> None:
        sender = centre.sender(deletes="apply")
        sender.land({GONE: d1((1, 10), (2, 20))})
        centre.load()
        place = placed(centre, GONE)
        data = place.read_bytes()
        place.unlink()
        if how == "folder":
            place.mkdir()
        elif how != "gone":
            place.write_bytes({"cut": data[: len(data) // 2], "zeros": bytes(len(data)), "empty": b""}[how])
        why, _ = judged(centre, sender, d1((1, 11), (2, 20)))
        assert [s for s, _ in state(centre)] == ["live"]
        assert "could not be compared" in why and place.name in why

    @pytest.mark.full
    def test_deletions_that_rotted_prove_nothing(self, centre: Centre) -> None:
        sender = centre.sender()
        sender.land({GONE: d1((1, 10), mods=deletion("root.sg.d1.s", 5, 6))})
        centre.load()
        [(at,)] = centre.sql("SELECT mods_location FROM catalog_file WHERE path = :p", p=GONE)
        place = centre.root / at
        place.chmod(0o644)
        place.write_text(deletion("root.sg.d1.s", 1, 6))
        sender.land({}, dropped=(sender.drop(GONE),), removed=(GONE,))
        assert "could not be compared" in dict(centre.load().pending)[GONE]
        assert state(centre) == [("live", None)]
        place.write_bytes(b"\xff\xfeDELETION,,,\n" * 40)
        sender.land({})
        assert "could not be compared" in dict(centre.load().pending)[GONE]

    @pytest.mark.full
    def test_it_is_judged_once_it_is_whole_again(self, centre: Centre) -> None:
        sender = centre.sender()
        sender.land({GONE: d1((1, 10))})
        centre.load()
        place = placed(centre, GONE)
        data = place.read_bytes()
        place.chmod(0o644)
        place.write_bytes(data[:-9])
        why, _ = judged(centre, sender, d1((1, 10)))
        assert "could not be compared" in why
        place.write_bytes(data)
        assert centre.load().pending == ()
        sender.land({})
        assert centre.load().pending == () and [s for s, _ in state(centre)] == ["retired"]


def placed(centre: Centre, path: str) -> Path:
    [(at,)] = centre.sql("SELECT location FROM catalog_file WHERE path = :p AND state = 'live'", p=path)
    return centre.root / at


@pytest.mark.full
def test_very_many_devices(centre: Centre) -> None:
    """What an index takes is in proportion to its bytes."""
    sender = centre.sender()
    sender.land({GONE: {"": many_devices(4_000, 1)}})
    assert centre.load().troubles == ()
    why, spent = judged(centre, sender, {"": many_devices(4_000, 2)})
    assert (why, state(centre)) == ("", [("retired", None)]) and spent < 60


def many_devices(count: int, value: int) -> bytes:
    """Each with a point at time 1."""
    out, places = bytearray(b"TsFile\x03"), []
    names = [f"root.sg.d{n:06d}" for n in range(count)]
    for name in names:
        chunk = Chunk(SERIES, PLAIN, [([1], [value])])
        out += b"\x00" + string(name)
        chunk.offset = len(out)
        out += chunk.data()
        places.append(chunk)
    chunks_end = len(out)
    out += b"\x02"
    entries = []
    for chunk in places:
        at = len(out)
        out += HandmadeFile._series(SERIES, [chunk])
        entries.append((at, len(out)))
    nodes = []
    for at, end in entries:
        nodes.append(len(out))
        out += HandmadeFile._node([(SERIES, at)], end, 3)
    root = HandmadeFile._node(list(zip(names, nodes, strict=True)), len(out), 1)
    metadata = root + struct.pack(">q", chunks_end) + b"\x00"
    return bytes(out) + metadata + struct.pack(">i", len(metadata)) + b"TsFile"


@pytest.mark.full
def test_with_spark_as_the_engine_the_pool_judges(centre: Centre, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no Spark job for it: a landing with a vanished file failed."""

    def none(_settings: object) -> object:
        raise AssertionError("Spark was chosen for the judgement")

    monkeypatch.setattr("tidemark.engines.choose._open_spark_engine", none)
    sender = centre.sender()
    sender.land({GONE: d1((1, 10))})
    centre.load()
    sender.land({MADE: d1((1, 10))})
    centre.load()
    sender.land({}, superseded=(sender.drop(GONE, MADE),), removed=(GONE,))
    centre.app.settings = replace(centre.app.settings, spark=SparkSettings(engine="spark"))
    assert centre.load().pending == ()
    assert [s for s, _ in state(centre)] == ["retired"]
