"""Whatever a landing makes a step of its load raise costs that landing: it is named (23 or 7), and the healthy site
behind it loads. What this machine lacks is nobody's fault but ours (5, 6)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.commanded import Commanded
from tests.landing_maker import SITE_A, Sender, write_manifest
from tests.small_files import sealed, source
from tidemark.formats import landing as landing_papers
from tidemark.receiver.load import check, schema
from tidemark.receiver.load import examine as admitting
from tidemark.receiver.load import landings as manifests
from tidemark.receiver.load import load as load_landings

SURPRISES = [
    OSError(errno.ENAMETOOLONG, "File name too long"),
    ValueError("x"),
    RecursionError("x"),
    MemoryError(),
    OverflowError("x"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x"),
]
STEPS: list[tuple[Any, str]] = [
    (load_landings, "read_found_manifest"),
    (manifests, "decode_manifest"),
    (manifests, "check_sound"),
    (load_landings, "examine_all"),
    (check, "check_part"),
    (check, "check_and_describe"),
    (admitting, "admit_files"),
    (load_landings, "decide_files"),
    (load_landings, "keep_manifest"),
    (load_landings, "place_files"),
    (schema, "append_logs"),
    (load_landings, "unnamed_files"),
    (load_landings, "record_landing"),
    (load_landings, "clean_landing"),
]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commanded:
    world = Commanded(tmp_path, monkeypatch)
    world.seal(1)
    assert world.sync("--no-load").code == 0
    edge = Sender(world.root)
    for number in (1, 2):
        edge.land({source(number): sealed({f"root.edge.d{number}": {"s": [(1, 1)]}})})
    return world


def raises_for_the_edge(step: Callable[..., Any], error: Exception) -> Callable[..., Any]:
    """The step as it is, but for what is of the edge's first landing."""

    def stepping(*words: Any, **named: Any) -> Any:
        told = repr(words) + repr(named)
        if SITE_A in told and "20260101T000000-000001-1" in told:
            raise error
        if step is landing_papers.decode_manifest and SITE_A.encode() in words[0]:
            raise error
        return step(*words, **named)

    return stepping


@pytest.mark.parametrize("error", SURPRISES, ids=lambda error: f"{type(error).__name__}-{error}")
@pytest.mark.parametrize(("module", "name"), STEPS, ids=lambda value: value if isinstance(value, str) else "")
def test_what_a_step_raises_costs_its_landing_alone(
    world: Commanded, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, error: Exception
) -> None:
    if (name, type(error)) in {("check_part", OSError), ("inspect", OSError)}:
        pytest.skip("a disk that does not answer is no verdict on a file")
    with monkeypatch.context() as patched:
        patched.setattr(module, name, raises_for_the_edge(getattr(module, name), error))
        said = world.run("load")
    assert said.code in (23, 7, 6), said
    assert said.code != 6 or isinstance(error, MemoryError), "a task's limit"
    assert "Traceback" not in said.out + said.err
    assert said.json["error"] and said.json["hint"]
    assert any("20260101T000000-00000" in trouble["landing"] for trouble in said.json["troubles"]), said.json
    assert "root.sg.d1" in world.devices()
    again = world.run("load")
    assert again.code in (0, 7), again
    if again.code == 0:  # what could not be read of a file keeps that in quarantine
        kept = {"root.edge.d1"} if name in ("check_part", "check_and_describe") else set()
        assert {"root.edge.d1", "root.edge.d2"} - kept <= set(world.devices())


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, 6), (errno.EDQUOT, 6), (errno.EMFILE, 5)])
def test_what_this_machine_lacks_is_no_fault_of_a_landing(
    world: Commanded, monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    with monkeypatch.context() as patched:
        lacking = raises_for_the_edge(load_landings.decide_files, OSError(number, os.strerror(number)))
        patched.setattr(load_landings, "decide_files", lacking)
        said = world.run("load")
    said.refused(code, os.strerror(number))
    assert "root.sg.d1" in world.devices()
    assert world.run("load").code == 0
    assert {"root.edge.d1", "root.edge.d2"} <= set(world.devices())


def stray(name: bytes) -> Callable[[Commanded], None]:
    def put(world: Commanded) -> None:
        landing = next((world.root / "landing" / SITE_A).iterdir())
        (landing / os.fsdecode(name)).touch()

    return put


def folder_of_bytes(world: Commanded) -> None:
    (world.root / "landing" / os.fsdecode(b"caf\xe9")).mkdir()


def landing_of_bytes(world: Commanded) -> None:
    (world.root / "landing" / SITE_A / os.fsdecode(b"caf\xe9")).mkdir()


def changed(**change: Any) -> Callable[[Commanded], None]:
    def put(world: Commanded) -> None:
        Sender(world.root, sequence=2, previous="20260101T000000-000002-1").land(
            {source(3): sealed({"root.edge.d3": {"s": [(1, 1)]}})}, schema=[("s.log", 1, 0, b"x")], change=change
        )

    return put


def schema_at(path: str) -> Callable[[Commanded], None]:
    def put(world: Commanded) -> None:
        folder = Sender(world.root, sequence=2, previous="20260101T000000-000002-1").land(schema=[("s.log", 1, 0, b"x")])
        manifest = landing_papers.decode_manifest((folder / "manifest.json").read_bytes())
        write_manifest(folder, replace(manifest, schema=(replace(manifest.schema[0], path=path),)))

    return put


def huge_size(world: Commanded) -> None:
    folder = next((world.root / "landing" / SITE_A).glob("*-000002-1"))
    manifest = landing_papers.decode_manifest((folder / "manifest.json").read_bytes())
    file = manifest.files[0]
    assert file.tsfile is not None
    size = (1 << 63) - 1
    write_manifest(folder, replace(manifest, files=(replace(file, tsfile=replace(file.tsfile, size=size)),)))


ODD = {
    "stray file whose name is not UTF-8": stray(b"caf\xe9"),
    "folder of a site whose name is not UTF-8": folder_of_bytes,
    "folder of a landing whose name is not UTF-8": landing_of_bytes,
    "size of 2^63-1": huge_size,
    "schema path of 256 bytes": schema_at("x" * 256),
    "schema path 2,000 deep": schema_at("/".join(["x"] * 2000)),
    "schema path out of the receiver": schema_at("../../../x"),
    "sequence of 2^63-1": changed(sequence=(1 << 63) - 1),
}


@pytest.mark.parametrize("put", ODD.values(), ids=ODD.keys())
def test_an_odd_landing_costs_its_site_alone(world: Commanded, put: Callable[[Commanded], None]) -> None:
    put(world)
    said = world.run("load")
    assert said.code in (0, 5, 7, 23), said
    assert "Traceback" not in said.out + said.err
    assert {"root.sg.d1", "root.edge.d1"} <= set(world.devices())
    for words in (("verify",), ("coverage",), ("status",), ("ledger", "rebuild", "--replace", "--yes"), ("load",)):
        after = world.run(*words)
        assert after.code not in (1, 6), after
    assert {"root.sg.d1", "root.edge.d1"} <= set(world.devices())
    said_out = said.out + said.err
    assert "\udce9" not in said_out
