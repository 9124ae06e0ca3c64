"""Coverage: what a reader must know though no cell shows it, and what is no news of the site."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace

from tests.unit.proof.conftest import Deployment
from tidemark.proof.prove import coverage, why


def _notes(d: Deployment) -> list[str]:
    notes: list[str] = coverage(d.app, d.receiver).as_json()["notes"]
    return notes


def test_a_link_that_never_ran_is_noted(deploy) -> None:
    d = deploy(3)
    never = ["plant1: link plant1 never ran: nothing is known of what the site has"]
    assert _notes(d) == never
    d.sync(no_load=True)
    assert _notes(d) == [] and not coverage(d.app, d.receiver).is_complete
    d.load()
    assert _notes(d) == [] and coverage(d.app, d.receiver).is_complete


def test_a_file_that_changed_after_it_was_excluded_is_noted(deploy) -> None:
    d = deploy(3)
    d.sync()
    link = replace(d.app.settings.links["plant1"], exclude=("**",))
    d.app = replace(d.app, settings=replace(d.app.settings, links={"plant1": link}))
    changed = d.files()[0]
    changed.write_bytes(changed.read_bytes() + b"\0")
    os.utime(changed, (1_900_000_000, 1_900_000_000))
    d.sync()
    assert _notes(d) == [
        "plant1: 1 file is left out by the link's patterns",
        "plant1: 1 of them changed since they were sent: the catalog keeps what they were before",
    ]
    alone = replace(d.app, settings=replace(d.app.settings, sites={}, links={}))
    assert coverage(alone, d.receiver).as_json()["notes"] == _notes(d), "the manifests tell it as well"


def test_a_stray_copy_of_an_old_landing_says_nothing_of_the_site(deploy) -> None:
    d = deploy(3)
    d.sync()
    (old,) = (p for p in d.centre.glob("landing/*/*") if p.is_dir())
    gone = d.files()[0]
    for companion in gone.parent.glob(gone.name + "*"):
        companion.unlink()
    d.sync()
    before = coverage(d.app, d.receiver).as_json()
    assert before["complete"]
    shutil.copytree(old, old.with_name("20990101T000000Z-abcdef-1"))
    assert coverage(d.app, d.receiver).as_json()["cells"] == before["cells"]
    d.load()
    after = coverage(d.app, d.receiver).as_json()
    assert after["cells"] == before["cells"]
    assert [cell["device"] for cell in after["red"]] == ["*"], "the stray folder alone is named"


def test_a_landing_that_was_taken_away_before_it_was_loaded_is_gone(deploy) -> None:
    d = deploy(3)
    d.sync(no_load=True)
    (folder,) = (p for p in d.centre.glob("landing/*/*") if p.is_dir())
    assert why(d.app, folder.name).state == "landed"
    away = folder.rename(d.app.settings.root / "away")
    told = why(d.app, folder.name)
    assert (told.state, told.final) == ("gone", False)
    assert folder.relative_to(d.centre).as_posix() in told.cause and "put the folder back" in told.next
    away.rename(folder)
    d.load()
    shutil.rmtree(folder)
    assert why(d.app, folder.name).state == "loaded", "what is loaded needs its folder no more"
