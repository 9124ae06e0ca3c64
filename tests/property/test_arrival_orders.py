"""Small files in any order, cut into any runs, their deletions with them or later, merges anywhere: one content."""

from __future__ import annotations

import tempfile
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import given, settings

from tests.centre import Centre, Row
from tests.small_files import deletion, sealed, source

DEVICES = ("root.sg.d1", "root.sg.d2", "root.sg.d3")
WEEK = 604_800_000
TIMES = (-WEEK, -1, 0, 1, 2, WEEK - 1, WEEK)
Points = dict[tuple[str, int], int]  # (device, time) → value


@st.composite
def site_files(draw: st.DrawFn) -> list[tuple[bool, Points, tuple[str, int, int] | None]]:
    """Files in rank order: sequence ones, then unsequence ones; each may have a deletion: device, first and last time."""
    points = st.dictionaries(st.tuples(st.sampled_from(DEVICES), st.sampled_from(TIMES)), st.integers(0, 99), min_size=1)
    gone = st.none() | st.tuples(st.sampled_from(DEVICES), st.sampled_from(TIMES), st.sampled_from(TIMES))
    files = draw(st.lists(st.tuples(st.booleans(), points, gone), min_size=2, max_size=6))
    return sorted(files, key=lambda file: file[0])


def content(file: Points, mods: str) -> dict[str, bytes]:
    devices: dict[str, dict[str, list[tuple[int, int]]]] = {}
    for (device, time), value in sorted(file.items()):
        devices.setdefault(device, {}).setdefault("s", []).append((time, value))
    return sealed(devices, mods)


@given(data=st.data(), files=site_files())
@settings(max_examples=settings.default.max_examples // 3)  # each is a receiver with loads and merges
def test_any_order_any_runs_and_merges_in_between_give_one_content(data: st.DataObject, files: list) -> None:  # type: ignore[type-arg]
    seen: Points = {}
    waiting: list[tuple[str, dict[str, bytes]]] = []
    late: dict[str, dict[str, bytes]] = {}
    for number, (unsequence, points, gone) in enumerate(files, 1):
        path = source(number, unsequence=unsequence)
        mods = deletion(f"{gone[0]}.s", *sorted(gone[1:])) if gone else ""
        deleted = {key for key in points if gone and key[0] == gone[0] and min(gone[1:]) <= key[1] <= max(gone[1:])}
        seen |= {key: value for key, value in points.items() if key not in deleted}
        parts = content(points, mods)
        if mods and data.draw(st.booleans()):
            late[path] = {".mods": parts.pop(".mods")}
        waiting.append((path, parts))
    expected: list[Row] = [(device, "s", time, "INT64", str(value)) for (device, time), value in sorted(seen.items())]
    with tempfile.TemporaryDirectory() as folder:
        centre = Centre(Path(folder))
        arrive(centre, data, waiting, late)
        assert centre.rows() == expected
        assert centre.merge().exit_code == 0
        assert centre.rows() == expected
        centre.app.ledger.close()


def arrive(
    centre: Centre, data: st.DataObject, waiting: list[tuple[str, dict[str, bytes]]], late: dict[str, dict[str, bytes]]
) -> None:
    """Runs of random files, deletions that come late after their TsFile; merges anywhere."""
    sender = centre.sender()
    waiting = data.draw(st.permutations(waiting))
    while waiting:
        run = dict(waiting[: data.draw(st.integers(1, len(waiting)))])
        waiting = waiting[len(run) :]
        sender.land(run)
        waiting += [(path, late.pop(path)) for path in run if path in late]
        if data.draw(st.booleans()):
            assert centre.load().troubles == ()
        if data.draw(st.booleans()):
            assert centre.merge().exit_code == 0
    assert centre.load().troubles == ()
