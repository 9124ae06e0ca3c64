"""A load that dies before or after any of its effects, and is started again, loses nothing and loads nothing twice."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.centre import Centre
from tests.crash.dying_centre import dying
from tests.crash.explorer import Effects, explore, explore_double
from tests.landing_maker import SITE_B
from tests.small_files import deletion, sealed, source
from tidemark.operations.decisions import owners_dismiss, owners_transfer
from tidemark.tsfiles.companions.schema_log import decode_log

LOG = b"2,root.sg\n0,root.sg.d1.s,2,2,1,,,-1\n0,root.sg.d9.t,1,2,1,,,-1\n"


def build_landings(centre: Centre) -> None:
    """Two sites and everything that can become of a file: see EXPECTED."""
    one, two = centre.sender(), centre.sender(SITE_B, name="plant2")
    old = sealed({"root.sg.d1": {"s": [(1, 10), (2, 20)]}}, deletion("root.sg.d1.s", 2, 2))
    torn = sealed({"root.sg.d3": {"s": [(1, 1)]}})
    one.land(
        {
            source(1): old,
            source(2): sealed({"root.sg.d1": {"s": [(5, 50)]}}),
            source(3, unsequence=True): sealed({"root.sg.d1": {"s": [(5, 51)]}}),
            source(4): torn,
        },
        schema=[("schema/mlog.txt", 1, 0, LOG[:30])],
    )
    bad = next((centre.root / "landing").rglob(source(4).rpartition("/")[2]))
    bad.write_bytes(torn[""][:-1])
    one.land({source(2): {".mods": deletion("root.sg.d1.s", 5, 5).encode()}}, schema=[("schema/mlog.txt", 1, 30, LOG[30:])])
    two.land({source(1): sealed({"root.sg.d1": {"s": [(7, 70)]}}), source(2): sealed({"root.sg.d2": {"s": [(7, 71)]}})})
    compacted = sealed({"root.sg.d1": {"s": [(1, 10)]}})
    one.land({source(1, inner=1): compacted}, superseded=(one.drop(source(1), source(1, inner=1)),), removed=(source(1),))


EXPECTED = [
    ("root.sg.d1", "s", 1, "INT64", "10"),  # by the file that superseded the first
    ("root.sg.d1", "s", 5, "INT64", "51"),  # unsequence wins; the later mods only touch their own file
    ("root.sg.d2", "s", 7, "INT64", "71"),
]
TRANSFERRED = [*EXPECTED[:2], ("root.sg.d1", "s", 7, "INT64", "70"), EXPECTED[2]]


class LoadWorld:
    """Landings wait; a life is a load, and a transfer of ownership where asked for."""

    def __init__(self, folder: Path, landed: Path, transfer: bool = False) -> None:
        self.centre = Centre(folder)
        shutil.copytree(landed, self.centre.root)
        self.transfer = transfer

    def live(self, effects: Effects) -> None:
        centre = self.centre
        with dying(centre, effects):
            centre.load()
            if self.transfer:
                owners_transfer(centre.app, centre.receiver, "root.sg.*", "plant2")

    def check(self) -> None:
        centre = self.centre
        centre.reopen()
        assert centre.rows() == (TRANSFERRED if self.transfer else EXPECTED)
        assert centre.sql("SELECT DISTINCT state FROM landing") == [("loaded",)]
        assert {Path(name).name for name in centre.files("landing")} == {"manifest.json", "receipt.json"}
        live = centre.sql("SELECT path, site_id, count(*) FROM catalog_file WHERE state = 'live' GROUP BY path, site_id")
        assert len(live) == (5 if self.transfer else 4) and all(times == 1 for *_, times in live)
        self._check_files()
        assert centre.sql("SELECT path, state FROM quarantine") == [(source(4), "held")]
        assert centre.sql("SELECT path, state FROM refusal") == [(source(1), "replayed" if self.transfer else "refused")]
        assert centre.sql("SELECT path, state FROM pending_drop") == [(source(1), "done")]
        assert (centre.root / f"schema/{self._site()}/schema/mlog.txt.1").read_bytes() == LOG
        series = [record.series for record in decode_log(LOG, "text")[0] if record.kind == "create"]
        declared = centre.sql("SELECT series FROM schema_series WHERE source = 'schema/mlog.txt'")
        assert sorted(s for (s,) in declared) == series

    def _check_files(self) -> None:
        """What lies at the receiver is what the ledger names: no half file, nothing left behind, nothing missing."""
        centre = self.centre
        named = centre.sql("SELECT location, mods_location FROM catalog_file")
        assert centre.files("data") == sorted({n.removeprefix("data/") for row in named for n in row if n})
        held = centre.sql("SELECT location FROM quarantine")[0][0]
        assert centre.files("quarantine") == [held.removeprefix("quarantine/") + end for end in ("", ".resource")]
        refused = centre.sql("SELECT location FROM refusal WHERE state = 'refused'")
        assert centre.files("refused") == [r.removeprefix("refused/") + e for (r,) in refused for e in ("", ".resource")]

    def _site(self) -> str:
        return str(self.centre.sender().site_id)

    def close(self) -> None:
        self.centre.app.ledger.close()
        shutil.rmtree(self.centre.folder)

    def lose_power(self) -> None:
        pass


@pytest.fixture
def worlds(tmp_path: Path) -> Callable[..., LoadWorld]:
    """Fresh worlds with the same landings."""
    template = tmp_path / "template"
    template.mkdir()
    build_landings(Centre(template))
    counter = iter(range(1_000_000))

    def build(transfer: bool = False) -> LoadWorld:
        folder = tmp_path / str(next(counter))
        folder.mkdir()
        return LoadWorld(folder, template / "centre", transfer)

    return build


def test_a_load_may_die_at_any_effect(worlds: Callable[..., LoadWorld], when: str) -> None:
    explored = explore(worlds, when=when)
    assert explored.all_died and explored.points > 30


def test_a_transfer_of_ownership_may_die_at_any_effect(worlds: Callable[..., LoadWorld]) -> None:
    calm = Effects()
    world = worlds()
    world.live(calm)
    world.close()
    total = Effects()
    world = worlds(True)
    world.live(total)
    world.close()
    before_each = range(calm.count + 1, total.count + 1, 2)
    explored = explore(lambda: worlds(True), before_each)
    assert explored.all_died and len(before_each) > 5


def test_a_dismissal_may_die_at_any_effect(worlds: Callable[..., LoadWorld]) -> None:
    class DismissWorld:
        def __init__(self) -> None:
            self.inner = worlds()
            self.inner.centre.load()

        def live(self, effects: Effects) -> None:
            with dying(self.inner.centre, effects):
                owners_dismiss(self.inner.centre.app, self.inner.centre.receiver, "plant2")

        def check(self) -> None:
            centre = self.inner.centre
            centre.reopen()
            assert centre.sql("SELECT path, state, location FROM refusal") == [(source(1), "dismissed", "")]
            assert centre.files("refused") == [] and centre.rows() == EXPECTED
            assert centre.sql("SELECT action FROM audit") == [("owners dismiss",)]

        def close(self) -> None:
            self.inner.close()

        def lose_power(self) -> None:
            self.inner.lose_power()

    explored = explore(DismissWorld)
    assert explored.all_died and explored.points > 3


def test_recovery_may_die_too(worlds: Callable[..., LoadWorld]) -> None:
    assert explore_double(worlds, pairs=15).crashes > 15


@pytest.mark.soak
@pytest.mark.timeout(14_400)
def test_recovery_may_die_at_any_pair_of_effects(worlds: Callable[..., LoadWorld]) -> None:
    explore_double(worlds, pairs=3000)
