"""Whatever a landing makes a step of its load, of a proof or of a rebuild raise costs that landing: it is named, and the
healthy site behind it loads and is proved. What this machine lacks is nobody's fault but ours (5, 6)."""

from __future__ import annotations

import errno
import inspect
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.commanded import Commanded, Said
from tests.landing_maker import SITE_A, Sender, write_manifest
from tests.small_files import sealed, source
from tidemark.formats import landing as landing_papers
from tidemark.operations.rebuild import history
from tidemark.proof.coverage import site as covered
from tidemark.receiver.load import check, retry, schema
from tidemark.receiver.load import examine as admitting
from tidemark.receiver.load import landings as manifests
from tidemark.receiver.load import load as load_landings
from tidemark.receiver.session import ReceiverSession

EDGE = "20260101T000000-000001-1"  # the edge's first landing
SURPRISES = [
    *(OSError(number, os.strerror(number)) for number in (errno.EIO, errno.EACCES, errno.ENAMETOOLONG, errno.ELOOP)),
    ValueError("x"),
    RecursionError("x"),
    MemoryError(),
    OverflowError("x"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x"),
]
STEPS: list[tuple[Any, str]] = [
    (manifests, "folder_names"),
    (load_landings, "read_found_manifest"),
    (manifests, "decode_manifest"),
    (manifests, "check_sound"),
    (load_landings, "find_site_conflict"),
    (load_landings, "copy_landing"),
    (load_landings, "examine_all"),
    (check, "check_part"),
    (check, "check_and_describe"),
    (load_landings, "called_as_landed"),
    (admitting, "admit_files"),
    (load_landings, "decide_files"),
    (load_landings, "keep_manifest"),
    (load_landings, "place_files"),
    (schema, "append_logs"),
    (load_landings, "unnamed_files"),
    (load_landings, "ask_survivors"),
    (load_landings, "record_landing"),
    (load_landings, "keep_receipt"),
    (load_landings, "read_landed"),
    (load_landings, "clean_landing"),
    (load_landings, "landing_sign"),
    (load_landings, "list_altered"),
]
"""Every step of a load that reads something of one landing, in their order."""
STEPS_OF_ALL = {
    "landing_folders": "lists sites by `folder_names`",
    "odd_landings": "lists sites by `folder_names`",
    "catch_up_answers": "test_what_is_looked_up_before_the_first_landing_costs_its_site_alone",
    "sweep_waiting": "test_waiting_bytes_that_cannot_be_removed_cost_their_site_alone",
    "sweep_taken": "test_copies_that_cannot_be_removed_are_named",
    "replay_refused": "test_a_refused_file_that_raises_costs_itself_alone",
}
"""Steps that go through all sites, and which test or step is about what one of them raises."""
READ_NOTHING = {
    "encode_document": "writes a paper of ours",
    "drops_of_manifest": "takes a decoded manifest apart",
    "make_landing_row": "a row about a decoded manifest",
    "site_of_manifest": "a row about a decoded manifest",
    "in_batches": "groups decoded manifests",
    "order_arrivals": "orders decoded manifests",
    "kept_manifest": "a name of ours",
    "same_answer": "compares what `read_landed` read, and raises no error",
    "is_ours": "asks the ledger, and the rights of folders",
    "remove_copies": "removes copies of ours",
    "site_of": "asks the settings and the ledger",
}


def test_every_step_of_a_load_is_among_those_that_are_tried() -> None:
    """A function that the load calls, and that comes from a module that reads landings, stands in one of the lists."""
    rooms = ("tidemark.formats.answered", "tidemark.formats.landing", "tidemark.receiver.load.")
    no_reading = "tidemark.receiver.load.load"
    called = {
        name
        for name, one in vars(load_landings).items()
        if inspect.isfunction(one) and one.__module__.startswith(rooms) and not one.__module__.startswith(no_reading)
    }
    tried = {name for module, name in STEPS if module is load_landings}
    assert called == tried | STEPS_OF_ALL.keys() | READ_NOTHING.keys()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commanded:
    world = Commanded(tmp_path, monkeypatch)
    world.seal(1)
    assert world.sync("--no-load").code == 0
    edge = Sender(world.root)
    for number in (1, 2):
        edge.land({source(number): sealed({f"root.edge.d{number}": {"s": [(1, 1)]}})})
    return world


def raises_for_the_edge(step: Callable[..., Any], error: Exception, of_any: bool = False) -> Callable[..., Any]:
    """The step as it is, but for what is of the edge's first landing (`of_any`: of any), or of the edge and of no landing.
    What the receiver keeps of the edge is the receiver's own."""

    def stepping(*words: Any, **named: Any) -> Any:
        told = repr([word for word in words if not isinstance(word, ReceiverSession)]) + repr(named)  # it knows all sites
        if SITE_A in told and "answered/" not in told and (of_any or EDGE in told or "20260101T" not in told):
            raise error
        if step is landing_papers.decode_manifest and SITE_A.encode() in words[0]:
            raise error
        return step(*words, **named)

    return stepping


def code_of(name: str, error: Exception) -> int:
    """23: it is named, and the next load tries it again. 7: what was read of a file is not what it should be. 6: a task's
    limit. 5: our own disk does not give the bytes, which is no verdict on them."""
    if name in ("check_part", "check_and_describe"):
        if isinstance(error, OSError):
            return 5 if error.errno in (errno.EIO, errno.EACCES) else 23
        return 6 if isinstance(error, MemoryError) else 7
    return 7 if name == "record_landing" and isinstance(error, UnicodeError) else 23  # 7: so a damaged ledger answers


def each_error_at_each_step() -> Iterator[Any]:
    """One error at each step; `--all` has every one at every step."""
    for place, (module, name) in enumerate(STEPS):
        for number, error in enumerate(SURPRISES):
            marks = () if number == place % len(SURPRISES) else (pytest.mark.soak,)
            yield pytest.param(module, name, error, marks=marks, id=f"{name}-{type(error).__name__}-{error}")


@pytest.mark.full_after(2)
@pytest.mark.parametrize(("module", "name", "error"), [*each_error_at_each_step()])
def test_what_a_step_raises_costs_its_landing_alone(
    world: Commanded, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, error: Exception
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(module, name, raises_for_the_edge(getattr(module, name), error))
        said = world.run("load")
    code = code_of(name, error)
    assert said.code == code, said
    assert "Traceback" not in said.out + said.err
    assert said.json["error"] and said.json["hint"]
    if code != 5:
        named = [trouble["landing"] or trouble["path"] for trouble in said.json["troubles"]]
        assert (EDGE if name != "folder_names" else f"landing/{SITE_A}") in named, said.json
    assert "root.sg.d1" in world.devices()
    again = world.run("load")
    assert again.code in (0, 7), again
    if again.code == 0:  # what could not be read of a file keeps that in quarantine
        kept = {"root.edge.d1"} if code in (6, 7) and name != "record_landing" else set()
        assert {"root.edge.d1", "root.edge.d2"} - kept <= set(world.devices())


def load_while_it_raises(world: Commanded, monkeypatch: pytest.MonkeyPatch, step: tuple[Any, str]) -> Iterator[Said]:
    """Loads of one new file of the healthy site each, while the step raises each of the errors for what is of the edge."""
    module, name = step
    for number, error in enumerate(SURPRISES, 10):
        world.seal(number)
        assert world.sync("--no-load").code == 0
        with monkeypatch.context() as patched:
            patched.setattr(module, name, raises_for_the_edge(getattr(module, name), error, of_any=True))
            said = world.run("load")
        assert said.code == 23 and "Traceback" not in said.out + said.err, said
        assert f"root.sg.d{number}" in world.devices()
        yield said


def land_third(world: Commanded, device: str = "root.edge.d3") -> Path:
    edge = Sender(world.root, sequence=2, previous="20260101T000000-000002-1")
    return edge.land({source(3): sealed({device: {"s": [(9, 9)]}})})


@pytest.mark.full_after(1)
@pytest.mark.parametrize("name", ["read_landed", "read_found_manifest", "landing_sign"])
def test_what_is_looked_up_before_the_first_landing_costs_its_site_alone(
    world: Commanded, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """An older version kept no answers: they are made now, and manifests are looked into for what the ledger lacks."""

    def forget_answers() -> None:
        shutil.rmtree(world.root / "answered" / SITE_A, ignore_errors=True)
        (world.root / "answered" / "format.json").unlink()
        (planted / "receipt.json").write_text("{}")

    assert world.run("load").code == 0
    planted = land_third(world)
    forget_answers()
    for said in load_while_it_raises(world, monkeypatch, (manifests, name)):
        assert planted.name in said.json["error"]  # at least for the receipt that it planted
        forget_answers()
    assert world.run("load").code in (0, 23)
    assert {"root.edge.d1", "root.edge.d3"} <= set(world.devices())


@pytest.mark.full
def test_waiting_bytes_that_cannot_be_removed_cost_their_site_alone(
    world: Commanded, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = next((world.root / "landing" / SITE_A / EDGE).rglob("*.tsfile"))
    file.write_bytes(b"x" * file.stat().st_size)
    assert world.run("load").code == 7
    (held,) = world.run("quarantine", "list").json["quarantine"]
    with monkeypatch.context() as patched:
        unable = raises_for_the_edge(manifests.waiting_files, ValueError("x"), of_any=True)
        patched.setattr(manifests, "waiting_files", unable)
        assert world.run("quarantine", "drop", str(held["id"]), "--yes").code == 0
    for said in load_while_it_raises(world, monkeypatch, (manifests, "waiting_files")):
        assert "cannot be removed" in said.json["error"], said
        assert list((world.root / "quarantine").rglob("*.tsfile"))
    assert world.run("load").code == 0
    assert not list((world.root / "quarantine").rglob("*.tsfile"))


def test_copies_that_cannot_be_removed_are_named(world: Commanded, monkeypatch: pytest.MonkeyPatch) -> None:
    for error in SURPRISES:

        def cannot(_store: object, error: Exception = error) -> None:
            raise error

        with monkeypatch.context() as patched:
            patched.setattr(load_landings, "sweep_taken", cannot)
            said = world.run("load")
        assert said.code == 23 and "cannot be removed" in said.json["error"], said
        assert {"root.sg.d1", "root.edge.d1", "root.edge.d2"} <= set(world.devices())


@pytest.mark.full_after(1)
@pytest.mark.parametrize("name", ["copy_landing", "examine_all", "decide_files", "place_files", "ask_survivors"])
def test_a_refused_file_that_raises_costs_itself_alone(world: Commanded, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert world.run("load").code == 0
    land_third(world, "root.sg.d1")
    assert world.run("load").code == 21
    with monkeypatch.context() as patched:
        patched.setattr(retry, name, raises_for_the_edge(getattr(retry, name), ValueError("x"), of_any=True))
        moved = world.run("owners", "transfer", "root.sg.d1", "--to", SITE_A, "--yes")
        assert moved.json["replayed"] == [], moved
    for said in load_while_it_raises(world, monkeypatch, (retry, name)):
        assert [one["what"] for one in said.json["troubles"]] == ["refused"], said
    assert world.run("load").code == 0


REBUILD = ("ledger", "rebuild", "--replace", "--yes")
PROOFS: list[tuple[Any, str, tuple[str, ...], int]] = [
    (covered, "landings_of", ("verify",), 23),
    (covered, "landings_of", ("coverage",), 20),
    (covered, "read_manifest", ("verify",), 23),
    (covered, "read_manifest", ("coverage",), 20),
    (covered, "landing_sign", ("coverage",), 20),
    (covered, "list_altered", ("verify",), 20),
    (history, "read_found_manifest", REBUILD, 0),  # of a landing that is not loaded yet: the load tells
    (history, "list_altered", REBUILD, 23),
    (manifests, "folder_names", REBUILD, 23),
    (manifests, "decode_manifest", REBUILD, 23),
]
"""Every step of a proof and of a rebuild that reads something of a landing, and the exit code when it fails."""


def errors_of_each_proof() -> Iterator[Any]:
    """Two errors at each step of a proof; `--all` has the others, too."""
    for place, (module, name, words, code) in enumerate(PROOFS):
        for rest, marks in ((False, ()), (True, (pytest.mark.soak,))):
            errors = [error for number, error in enumerate(SURPRISES) if (number % 5 != place % 5) is rest]
            yield pytest.param(
                module, name, words, code, errors, marks=marks, id=f"{words[0]}-{name}-{'rest' if rest else 'two'}"
            )


@pytest.mark.full_after(2)
@pytest.mark.parametrize(("module", "name", "words", "code", "errors"), [*errors_of_each_proof()])
def test_what_a_proof_cannot_read_of_a_landing_costs_its_site_alone(
    world: Commanded,
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    name: str,
    words: tuple[str, ...],
    code: int,
    errors: list[Exception],
) -> None:
    assert world.run("load").code == 0
    land_third(world)
    for error in errors:
        with monkeypatch.context() as patched:
            patched.setattr(module, name, raises_for_the_edge(getattr(module, name), error, of_any=True))
            said = world.run(*words)
        assert said.code == code, (error, said)
        assert "Traceback" not in said.out + said.err
        assert not code or any(named in said.json["error"] for named in (SITE_A, EDGE, "plant1")), said
        assert "root.sg.d1" in world.devices()
    assert words != REBUILD or world.run(*REBUILD).code == 0
    assert world.run("load").code in (0, 23)
    assert {"root.sg.d1", "root.edge.d1", "root.edge.d3"} <= set(world.devices())


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


@pytest.mark.full_after(2)
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
