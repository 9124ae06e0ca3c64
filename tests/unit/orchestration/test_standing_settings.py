"""Settings that stand: a broken edit neither hides nor stops the links that were sound."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tidemark.errors import UsageError
from tidemark.orchestration import settings as standing_settings
from tidemark.orchestration.settings import EDITION, load_sound_settings, read_settings

WhileWaiting = Callable[[Callable[[float], object]], None]

SOUND = """
[receivers.centre]
store = "centre"

[sites.plant1]
id = "5d0f6a1e-7c5b-4f0e-9a57-2f6f3a1c7e01"
store = "plant1"

[links.plant1]
site = "plant1"
schedule = "*/15 * * * *"
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "home").mkdir()
    (tmp_path / "tidemark.toml").write_text(SOUND)
    return {"TIDEMARK_CONFIG": str(tmp_path / "tidemark.toml"), "AIRFLOW_HOME": str(tmp_path / "home")}


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], object]:
    return (tmp_path / "tidemark.toml").write_text


@pytest.fixture
def while_waiting(monkeypatch: pytest.MonkeyPatch) -> WhileWaiting:
    """What happens instead of waiting, to this module alone: threads of other tests sleep on."""

    def happens(instead: Callable[[float], object]) -> None:
        clock = SimpleNamespace(time=time.time, monotonic=time.monotonic, sleep=instead)
        monkeypatch.setattr(standing_settings, "time", clock)

    return happens


def test_a_broken_edit_leaves_the_last_sound_edition_in_force(
    environ: dict[str, str], write: Callable[[str], object], tmp_path: Path
) -> None:
    before = load_sound_settings(environ)
    write(SOUND.replace("schedule", "shedule"))
    assert load_sound_settings(environ) == before
    assert before.receivers["centre"].store == f"file://{tmp_path}/centre", "relative paths stay below the settings' folder"


def test_the_error_is_still_told_with_its_line(environ: dict[str, str], write: Callable[[str], object]) -> None:
    load_sound_settings(environ)
    write(SOUND.replace("schedule", "shedule"))
    with pytest.raises(UsageError, match=r"tidemark.toml:11.*shedule"):
        read_settings(environ)


@pytest.mark.full
def test_a_mended_file_is_taken_at_once(environ: dict[str, str], write: Callable[[str], object]) -> None:
    load_sound_settings(environ)
    write("[links")
    load_sound_settings(environ)
    write(SOUND.replace("*/15", "*/5"))
    assert load_sound_settings(environ).links["plant1"].schedule == "*/5 * * * *"


def test_a_file_that_is_being_saved_is_read_once_it_is_whole(
    environ: dict[str, str], write: Callable[[str], object], while_waiting: WhileWaiting
) -> None:
    """An editor empties it and writes it anew: without links it would be sound, and every link's DAG would go."""
    before = load_sound_settings(environ)
    lines = SOUND.splitlines(keepends=True)
    written: list[str] = []

    def pause(_seconds: float) -> None:  # instead of waiting, the editor gets on: each of its writes is now
        if len(written) < len(lines):
            written.append(lines[len(written)])
            write("".join(written))
        else:
            os.utime(environ["TIDEMARK_CONFIG"], (1, 1))

    while_waiting(pause)
    write("")
    assert load_sound_settings(environ) == before
    write(SOUND.replace("schedule", "shedule"))
    assert load_sound_settings(environ) == before, "no edition was kept on the way"


def test_a_file_that_is_written_without_end_is_read_as_it_is(
    environ: dict[str, str], write: Callable[[str], object], while_waiting: WhileWaiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing_settings, "PATIENCE_SECONDS", 0.5)
    while_waiting(lambda _: write(SOUND.replace("*/15", "*/5")))
    assert load_sound_settings(environ).links["plant1"].schedule == "*/5 * * * *"


def test_settings_that_never_were_sound_stand_for_nothing(environ: dict[str, str], write: Callable[[str], object]) -> None:
    write("[links")
    with pytest.raises(UsageError):
        load_sound_settings(environ)


def test_a_broken_variable_is_outlived_too(environ: dict[str, str]) -> None:
    before = load_sound_settings(environ)
    assert load_sound_settings(environ | {"TIDEMARK__LINKS__PLANT1__RETRIES": "many"}) == before


@pytest.mark.full
def test_an_edition_of_another_file_or_torn_is_not_taken(
    environ: dict[str, str], write: Callable[[str], object], tmp_path: Path
) -> None:
    load_sound_settings(environ)
    (tmp_path / "other.toml").write_text("[links")
    with pytest.raises(UsageError):
        load_sound_settings(environ | {"TIDEMARK_CONFIG": str(tmp_path / "other.toml")})
    write("[links")
    Path(environ["AIRFLOW_HOME"], EDITION).write_bytes(b"\x80\x04torn")
    with pytest.raises(UsageError):
        load_sound_settings(environ)


def test_a_home_that_cannot_be_written_is_no_trouble(environ: dict[str, str], tmp_path: Path) -> None:
    assert load_sound_settings(environ | {"AIRFLOW_HOME": str(tmp_path / "no" / "home")}).links
    assert load_sound_settings({"TIDEMARK_CONFIG": environ["TIDEMARK_CONFIG"]}).links


def test_included_files_stand_and_are_waited_for_as_the_file_itself(
    environ: dict[str, str], write: Callable[[str], object], while_waiting: WhileWaiting, tmp_path: Path
) -> None:
    link = '[links."*"]\nschedule = "*/15 * * * *"\n'
    site = SOUND[SOUND.index("[sites") : SOUND.index("[links")]
    (tmp_path / "sites").mkdir()
    included = tmp_path / "sites" / "plant1.toml"
    included.write_text(site)
    write('include = ["sites/*.toml"]\n' + SOUND[: SOUND.index("[sites")] + link)
    before = load_sound_settings(environ)
    assert list(before.links) == ["plant1"]
    included.write_text(site.replace("store", "stroe"))
    assert load_sound_settings(environ) == before, "the last sound edition stands"
    os.utime(tmp_path / "tidemark.toml", (1, 1))
    while_waiting(lambda _: (included.write_text(site.replace('"plant1"', '"other"')), os.utime(included, (1, 1))))
    included.write_text("")
    assert load_sound_settings(environ).sites["plant1"].store.endswith("/other"), (
        "a file in the middle of a save is not read"
    )
