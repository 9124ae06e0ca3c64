"""What an edge's disk may hold besides sound files: each bad file is named, the others go on, nothing is half or twice."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.commanded import Commanded, row
from tests.services.privileges import as_anybody
from tests.services.processes import PartMissing
from tests.services.sshd import Sshd
from tests.small_files import sealed
from tidemark.transfer.limits import TokenBucket


@pytest.fixture
def edge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commanded:
    return Commanded(tmp_path, monkeypatch)


@pytest.fixture
def anybody() -> Iterator[None]:
    try:
        with as_anybody():
            yield
    except PartMissing as missing:
        pytest.skip(str(missing))


WAYS_IN = [
    "file",
    "sshd",
    pytest.param("sshd_posix", marks=pytest.mark.full),
    pytest.param("sshd_sftp_only", marks=pytest.mark.full),
]


def site_over(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Commanded:
    """A site on this machine, or behind a server of that kind."""
    through: Sshd | None = None if way == "file" else request.getfixturevalue(way)
    keys = {} if through is None else {"host_key": through.host_key, "key": str(through.key)}
    store = "site" if through is None else through.url(tmp_path / "site")
    return Commanded(tmp_path, monkeypatch, store=store, site_keys=keys)


def skipped(edge: Commanded) -> dict[str, str]:
    return {one["path"]: one["reason"] for one in edge.run("plan", "plant1").json["skipped"]}


# --- names


ODD_DATABASES = [
    "root.a b",
    "root.'q\"",
    "root.new\nline",
    "-root.dash",
    "root.é漢🚀",
    "root.$(reboot)`x`",
    "root.*[a]?",
    "root.\\n",
    "root.%2F",
    "~",
]
BAD_NAMES = [
    b"-rf.tsfile",
    b"x\ny.tsfile",
    b" .tsfile",
    b"..tsfile",
    b"a" * 248 + b".tsfile",
    b"caf\xe9-1-0-0.tsfile",
    b"1-1-0-0.tsfile\xff",
]


def fill_with_odd_names(edge: Commanded) -> None:
    for number, database in enumerate(ODD_DATABASES, 1):
        edge.seal(number, database, device=f"root.odd.d{number}")
    folder = edge.site / "data/sequence/root.sg/0/0"
    folder.mkdir(parents=True)
    for name in BAD_NAMES:
        (folder / os.fsdecode(name)).write_bytes(b"x" * 100)
    (folder / os.fsdecode(b"caf\xe9")).mkdir()


@pytest.mark.parametrize("way", WAYS_IN)
def test_odd_folder_names_arrive_and_odd_file_names_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, way: str
) -> None:
    edge = site_over(way, tmp_path, monkeypatch, request)
    fill_with_odd_names(edge)

    told = skipped(edge)
    said = edge.sync()

    assert said.code == 0, said
    assert (said.json["files"], said.json["loaded"]) == (len(ODD_DATABASES),) * 2
    assert edge.devices() == sorted(f"root.odd.d{n}" for n in range(1, len(ODD_DATABASES) + 1))
    for name in (b"caf\\xe9-1-0-0.tsfile", b"caf\\xe9", b"1-1-0-0.tsfile\\xff"):
        assert any(path.endswith(name.decode()) and "UTF-8" in reason for path, reason in told.items()), name
    edge.assert_in_step()


@pytest.mark.parametrize("way", WAYS_IN)
def test_links_and_special_files_are_never_followed_and_are_gaps_where_data_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, way: str
) -> None:
    edge = site_over(way, tmp_path, monkeypatch, request)
    edge.seal(1)
    outside = tmp_path / "outside"
    outside.mkdir()
    parts = sealed({"root.secret.d": {"s": [(1, 1)]}})
    data, folder = edge.site / "data/sequence", edge.site / "data/sequence/root.sg/0/0"
    for end, content in parts.items():
        (outside / f"1600000000002-2-0-0.tsfile{end}").write_bytes(content)
        (folder / f"1600000000002-2-0-0.tsfile{end}").symlink_to(outside / f"1600000000002-2-0-0.tsfile{end}")
    (data / "root.linked").symlink_to(outside)
    (data / "root.sg/1").symlink_to(outside)
    (data / "root.sg/0/7").symlink_to("nowhere")
    (data / os.fsdecode(b"caf\xe9")).mkdir()
    (folder / "notes.txt").symlink_to(outside)
    (folder / "below").mkdir()
    (folder / "below/link").symlink_to(outside)
    os.mkfifo(folder / "1600000000003-3-0-0.tsfile")
    (folder / "1600000000003-3-0-0.tsfile.resource").write_bytes(parts[".resource"])
    (folder / "1600000000004-4-0-0.tsfile").mkdir()
    os.mkfifo(folder / "pipe")
    (folder / ".hidden").symlink_to(outside)
    gaps = {
        "root.linked": "is a symlink",
        "root.sg/1": "is a symlink",
        "root.sg/0/7": "is a symlink",
        "root.sg/0/0/1600000000002-2-0-0.tsfile": "is a symlink",
        "root.sg/0/0/1600000000002-2-0-0.tsfile.resource": "is a symlink",
        "root.sg/0/0/1600000000003-3-0-0.tsfile": "is neither file nor folder",
        "caf\\xe9": "is a folder whose name is not UTF-8",
    }
    expected = {f"data/sequence/{path}": f"cannot be listed: {why}" for path, why in gaps.items()}

    told = skipped(edge)
    said = edge.sync()

    assert said.code == 23
    assert {one["path"]: one["reason"] for one in said.json["left_out"]} == expected
    assert expected.items() <= told.items()
    assert {note for note in said.json["notes"] if "verified" not in note} == {
        "2 files are passed over, reason: is a symlink; ./tidemark plan plant1 lists them",
        "1 file is passed over, reason: is neither file nor folder; ./tidemark plan plant1 lists it",
    }
    status = edge.run("status").json["links"][0]
    assert (status["state"], status["notes"]) == ("partial", said.json["notes"])
    coverage = edge.run("coverage")
    assert coverage.code == 20 and all(json.dumps(path)[1:-1] in coverage.out for path in expected), coverage.json
    verified = edge.run("verify")
    assert verified.code == 20 and all(json.dumps(path)[1:-1] in verified.out for path in expected), verified.json
    assert edge.devices() == ["root.sg.d1"]
    assert len(list((edge.root / "data").rglob("*.tsfile"))) == 1

    for path in gaps:
        place = data / (os.fsdecode(b"caf\xe9") if path.startswith("caf") else path)
        place.rmdir() if place.is_dir() and not place.is_symlink() else place.unlink()
    again = edge.sync()
    assert again.code == 0, again
    edge.assert_in_step()


def test_links_among_the_schema_are_gaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edge = Commanded(tmp_path, monkeypatch, site_keys={"schema": "schema"})
    edge.seal(1)
    (edge.site / "schema/root.sg").mkdir(parents=True)
    (edge.site / "schema/root.sg/mlog.bin").symlink_to(tmp_path / "elsewhere")
    (edge.site / "schema/root.two").symlink_to(tmp_path)
    said = edge.sync()
    assert said.code == 23
    assert [one["path"] for one in said.json["left_out"]] == ["schema/root.sg/mlog.bin", "schema/root.two"]
    assert "schema" in str([c for c in edge.run("doctor").json["checks"] if not c["ok"]])


# --- contents


def test_files_that_are_not_sealed_or_empty_are_told_and_wait(edge: Commanded) -> None:
    edge.seal(1)
    open_file, empty, short = (f"data/sequence/root.sg/0/0/160000000000{n}-{n}-0-0.tsfile" for n in (2, 3, 4))
    parts = sealed({"root.sg.d2": {"s": [(1, 201)]}})
    for path, content in ((open_file, parts[""]), (empty, b""), (short, b"TsFile")):
        (edge.site / path).write_bytes(content)
    for path in (empty, short):
        (edge.site / (path + ".resource")).write_bytes(parts[".resource"])

    told = skipped(edge)
    assert edge.sync().code == 0

    assert "still open" in told[open_file] and "zero length" in told[empty] and "too short" in told[short]
    assert edge.devices() == ["root.sg.d1"]
    why = edge.run("why", empty)
    assert why.code == 0 and "zero length" in str(why.json)
    edge.put(empty, sealed({"root.sg.d3": {"s": [(1, 301)]}}))  # whole at last
    assert edge.sync().json["files"] == 1
    edge.assert_in_step()


def cut(data: bytes) -> bytes:
    return data[: len(data) - 20]


def flip_tail(data: bytes) -> bytes:
    return data[:-9] + bytes([data[-9] ^ 0x40]) + data[-8:]


def not_a_tsfile(data: bytes) -> bytes:
    return b"#!/bin/sh\n" + data[10:]


@pytest.mark.full_after(1)
@pytest.mark.parametrize("damage", [cut, flip_tail, not_a_tsfile])
def test_a_file_damaged_at_the_edge_is_quarantined_and_its_next_content_loaded(
    edge: Commanded, damage: Callable[[bytes], bytes]
) -> None:
    edge.seal(1)
    bad = edge.seal(2)
    whole = edge.sealed[bad]
    edge.put(bad, {**whole, "": damage(whole[""])})

    said = edge.sync()

    said.refused(7, Path(bad).name)
    assert (said.json["loaded"], said.json["quarantined"]) == (1, 1)
    assert edge.devices() == ["root.sg.d1"]
    held = edge.run("quarantine", "list").json["quarantine"]
    assert [one["path"] for one in held] == [bad]
    why = edge.run("why", bad).json
    assert why["state"] == "in quarantine" and "quarantine" in why["next"], why
    assert edge.run("coverage").json["complete"] is False

    edge.put(bad, whole)
    again = edge.sync()
    assert (again.code, again.json["loaded"]) == (0, 1), again
    assert row("root.sg", 2, 1) in edge.rows()
    edge.assert_in_step()


def test_a_file_nobody_may_read_is_left_out_and_goes_once_it_may(edge: Commanded, anybody: None) -> None:
    edge.seal(1)
    secret = edge.seal(2)
    (edge.site / secret).chmod(0)

    said = edge.sync()

    said.refused(23, secret, "Permission denied")
    assert (said.json["loaded"], said.json["left_out"][0]["path"]) == (1, secret)
    assert edge.devices() == ["root.sg.d1"]
    assert "Permission denied" in str(edge.run("why", secret).json)
    (edge.site / secret).chmod(0o644)
    assert edge.sync().code == 0
    edge.assert_in_step()


@pytest.mark.parametrize("data", [".iotdb/data/sequence", "/.iotdb/data/sequence", "./data/sequence", "data/sequence/"])
def test_a_server_may_live_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str) -> None:
    """In a hidden folder, too: it brought nothing, and all was well."""
    folder = f"{tmp_path}{data}" if data.startswith("/") else data
    edge = Commanded(tmp_path, monkeypatch, site_keys={"data": [folder]})
    edge.seal(1)
    real = edge.site / folder
    if not real.exists():
        real.parent.mkdir(parents=True)
        (edge.site / "data/sequence").rename(real)
    said = edge.sync()
    assert (said.code, said.json["files"], said.json["loaded"]) == (0, 1, 1), said
    assert edge.devices() == ["root.sg.d1"]
    assert (edge.run("verify").code, edge.run("coverage").code, edge.sync().json["state"]) == (0, 0, "nothing")


@pytest.mark.full_after(1)
@pytest.mark.parametrize("kind", ["symlink", "symlink above", "file"])
@pytest.mark.parametrize("way", WAYS_IN)
def test_a_data_folder_that_is_none_is_no_quiet_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, kind: str, way: str
) -> None:
    """No link is followed; a run that saw nothing for that reason did not end well, and drops nothing."""
    edge = site_over(way, tmp_path, monkeypatch, request)
    edge.seal(1)
    assert edge.sync().code == 0
    edge.seal(2, "root.two")
    data, real = edge.site / ("data" if "above" in kind else "data/sequence"), tmp_path / "elsewhere"
    data.rename(real)
    data.write_text("") if kind == "file" else data.symlink_to(real)

    said = edge.sync()

    said.refused(23, "data/sequence", "cannot be listed", "not a folder" if kind == "file" else "symlink")
    assert "name the folder that it leads to" in said.json["hint"] and said.json["dropped"] == 0
    assert edge.run("status").json["links"][0]["state"] == "partial"
    edge.run("coverage").refused(20, "data/sequence cannot be listed")
    troubles = [one["name"] for one in edge.run("doctor").json["checks"] if not one["ok"]]
    assert "site plant1: data" in troubles
    data.unlink()
    real.rename(data)
    assert edge.sync().code == 0
    edge.assert_in_step()


def test_schema_logs_that_nobody_may_list_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anybody: None) -> None:
    edge = Commanded(tmp_path, monkeypatch, site_keys={"schema": "system/schema"})
    edge.seal(1)
    closed = edge.site / "system/schema"
    closed.mkdir(parents=True)
    closed.chmod(0)
    said = edge.sync()
    assert skipped(edge) == {"system/schema": "cannot be listed: Permission denied"}
    said.refused(23, "system/schema", "cannot be listed: Permission denied")
    assert edge.devices() == ["root.sg.d1"]
    closed.chmod(0o755)
    assert edge.sync().code == 0 and skipped(edge) == {}
    edge.assert_in_step()


def test_a_folder_nobody_may_list_drops_nothing_and_is_told(edge: Commanded, anybody: None) -> None:
    """What is there, nobody knows: that is no run that ended well."""
    kept = edge.seal(1, "root.one")
    edge.seal(2, "root.two")
    assert edge.sync().code == 0
    edge.seal(3, "root.two")
    closed = edge.site / "data/sequence/root.one"
    closed.chmod(0)
    try:
        said = edge.sync()
        told = skipped(edge)
        (status,) = edge.run("status").json["links"]
        why = edge.run("why", "data/sequence/root.one").json
        coverage = edge.run("coverage")
        verify = edge.run("verify")
    finally:
        closed.chmod(0o755)
    said.refused(23, "data/sequence/root.one", "cannot be listed: Permission denied")
    assert (status["state"], status["next"]) == ("partial", "./tidemark why data/sequence/root.one")
    assert "Permission denied" in status["reason"] and "let the site's user list it" in why["next"]
    coverage.refused(20, "root.one cannot be listed")
    assert verify.code == 20 and [one["path"] for one in verify.json["differences"]] == ["data/sequence/root.one"]
    assert (said.json["files"], said.json["dropped"]) == (1, 0), said
    assert "cannot be listed" in told["data/sequence/root.one"]
    assert {"root.one.d1", "root.two.d3"} <= set(edge.devices())
    assert kept in edge.sealed
    assert edge.sync().code == 0 and edge.run("status").json["links"][0]["state"] == "idle"
    edge.assert_in_step()


# --- files that move while they are sent, at a site without snapshots


@pytest.fixture
def in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commanded:
    """A slow link to a site whose files are read where they are. Its large file takes a second."""
    keys = {"bandwidth": "2 MB/s", "block_bytes": 262_144, "retries": 1}
    return Commanded(tmp_path, monkeypatch, site_keys={"snapshot": ""}, link_keys=keys)


def large(edge: Commanded, number: int) -> str:
    path = edge.seal(number)
    chance = random.Random(number)
    parts = sealed({f"root.sg.d{number}": {"s": [(t, chance.getrandbits(62)) for t in range(120_000)]}})
    edge.put(path, parts)
    assert len(parts[""]) > 800_000
    return path


def once_half_sent(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Between two pieces of the large file, by whoever sends it."""
    pieces: list[int] = []
    take = TokenBucket.consume_tokens

    def taken(bucket: TokenBucket, count: int) -> None:
        if sum(pieces) < 500_000 <= sum(pieces) + count:
            act()
        pieces.append(count)
        take(bucket, count)

    monkeypatch.setattr(TokenBucket, "consume_tokens", taken)


@pytest.mark.full
def test_a_file_renamed_while_it_is_sent_is_left_out_and_arrives_once_under_its_new_name(
    in_place: Commanded, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge = in_place
    edge.seal(1)
    moving = large(edge, 2)
    moved = moving.replace("-2-0-0", "-2-1-0")

    def rename() -> None:
        for end in ("", ".resource"):
            (edge.site / (moving + end)).rename(edge.site / (moved + end))

    once_half_sent(monkeypatch, rename)
    said = edge.sync()

    said.refused(23, moving)
    assert edge.devices() == ["root.sg.d1"]
    edge.sealed[moved] = edge.sealed.pop(moving)
    edge.link_keys = {}
    edge.write_settings()
    again = edge.sync()
    assert (again.code, again.json["files"], again.json["dropped"]) == (0, 1, 0), again
    assert edge.devices() == ["root.sg.d1", "root.sg.d2"]
    edge.assert_in_step()


@pytest.mark.full
def test_a_file_that_grows_while_it_is_sent_is_left_out_until_it_stands_still(
    in_place: Commanded, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge = in_place
    edge.seal(1)
    growing = large(edge, 2)
    grown = edge.sealed[growing][""]

    def grow() -> None:
        with (edge.site / growing).open("ab") as file:
            file.write(b"and more")
        os.utime(edge.site / growing, (1_900_000_000, 1_900_000_000))

    once_half_sent(monkeypatch, grow)
    said = edge.sync()

    said.refused(23, growing)
    assert edge.devices() == ["root.sg.d1"]
    edge.link_keys = {}
    edge.write_settings()
    edge.put(growing, {**edge.sealed[growing], "": grown})
    assert edge.sync().code == 0
    edge.assert_in_step()


# --- bit rot at rest


def rot(place: Path) -> None:
    """One bit, under the same size and time."""
    seen = place.stat()
    data = bytearray(place.read_bytes())
    data[len(data) // 3] ^= 1
    place.write_bytes(data)
    os.utime(place, ns=(seen.st_atime_ns, seen.st_mtime_ns))


def test_bit_rot_in_the_catalog_is_found_and_mended(edge: Commanded) -> None:
    path = edge.seal(1)
    edge.seal(2)
    assert edge.sync().code == 0
    before = edge.rows()
    (place,) = (edge.root / "data").rglob(f"*{Path(path).name}")
    rot(place)

    for options in ((), ("--deep",)):
        said = edge.run("verify", *options)
        said.refused(20)
        assert path in str(said.json["differences"]), said
    assert edge.run("coverage").json["complete"] is False
    assert edge.run("verify", "--repair").code in (0, 20)
    edge.sync()

    assert edge.run("verify", "--deep").code == 0
    assert edge.rows() == before
    assert edge.run("coverage").json["complete"] is True


def test_bit_rot_in_a_landing_is_quarantined_and_sent_again(edge: Commanded) -> None:
    path = edge.seal(1)
    edge.seal(2)
    assert edge.sync("--no-load").code == 0
    (place,) = (edge.root / "landing").rglob(f"*{Path(path).name}")
    rot(place)
    edge.run("verify").refused(20)

    said = edge.run("load")

    said.refused(7, path)
    assert (said.json["loaded"], said.json["quarantined"]) == (1, 1)
    assert edge.sync().code == 0  # the sender reads the receipt: these bytes never came
    assert edge.devices() == ["root.sg.d1", "root.sg.d2"]
    assert edge.run("verify", "--deep").code == 0
    edge.assert_in_step()


def test_bit_rot_at_the_edge_is_found_and_what_the_centre_has_stays(edge: Commanded) -> None:
    path = edge.seal(1)
    assert edge.sync().code == 0
    before = edge.rows()
    rot(edge.site / path)
    assert edge.sync().json["state"] == "nothing"  # same size and time: unchanged, by the rule
    said = edge.run("verify", "--deep")
    said.refused(20)
    assert path in str(said.json["differences"])
    assert edge.rows() == before
