"""Whatever is typed: one JSON object, the right exit code, an error that names the thing, a next step, no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Command, Said
from tidemark.stores import retrying

ROOT = Path(__file__).resolve().parents[3]
NO_PLACE = "/proc/no-such-place"  # nobody can make a folder there, not even root


def refused(said: Said, code: int, *says: str) -> None:
    assert said.code == code, said
    answer = said.json
    assert (answer["ok"], answer["kind"]) == (False, code)
    assert answer["hint"], answer
    for text in says:
        assert text in answer["error"]
    assert "Traceback" not in said.out + said.err
    assert f"tidemark: {answer['error']}" in said.err


WORDS = [
    # verbs and options
    (("",), 2, "no verb ''"),
    (("-x", "status"), 2, "-x"),
    (("status", "extra"), 2, "extra"),
    (("--config",), 2, "--config"),
    (("quarantine",), 2, "list|release|drop"),
    (("quarantine", "eat", "1"), 2, "'eat'"),
    (("ledger", "eat"), 2, "'eat'"),
    (("owners", "transfer", "root.x"), 2, "--to"),
    (("merge", "--partition", "soon"), 2, "'soon'"),
    (("sync", "pl\udcffnt"), 2, "not UTF-8"),
    # links, sites, receivers that do not exist
    (("sync", "nope"), 3, "no link named 'nope'; the settings have: plant1"),
    (("plan", "nope"), 3, "'nope'"),
    (("adopt", "nope", "."), 3, "'nope'"),
    (("load", "--site", "nope"), 3, "'nope'"),
    (("load", "--receiver", "nope"), 3, "no receiver named 'nope'"),
    (("read", "--site", "nope", "--out", "x.csv"), 3, "'nope'"),
    (("coverage", "--site", "nope"), 3, "'nope'"),
    (("verify", "--site", "nope"), 3, "'nope'"),
    (("merge", "--database", "nope"), 3, "'nope'"),
    # subjects that nobody knows
    (("why", "nope"), 3, "'nope'"),
    (("why", ""), 3, "''"),
    (("why", "a\nb"), 3, "'a\\nb'"),
    (("why", "x" * 5000), 3, "xxx"),
    (("why", "'; DROP TABLE lease; --"), 3, "DROP TABLE"),
    (("approve", "nope", "--yes"), 3, "'nope'"),
    (("quarantine", "release", "nope"), 3, "nope"),
    (("quarantine", "release", "99999999999999999999999"), 3, "99999"),
    (("quarantine", "drop", "-1", "--yes"), 3, "-1"),
    (("owners", "transfer", "root.x", "--to", "plant1", "--yes"), 3, "'root.x'"),
    (("owners", "transfer", "root.x", "--to", "nope", "--yes"), 3, "'nope'"),
    (("bench", "nope"), 3, "'nope'"),
    # files
    (("sync", "plant1", "--plan", "nope.json"), 3, "nope.json"),
    (("sync", "plant1", "--plan", "tidemark.toml"), 2, "plan"),
    (("sync", "plant1", "--plan", "site"), 2, "site"),
    (("plan", "plant1", "--out", "site"), 2, "site"),
    (("plan", "plant1", "--out", f"{NO_PLACE}/p.json"), 2, NO_PLACE),
    (("read", "--out", "x.txt"), 2, ".parquet, .csv or .jsonl"),
    (("read", "--out", f"{NO_PLACE}/x.csv"), 6, NO_PLACE),
    (("read", "--out", f"{NO_PLACE}/x.parquet"), 6, NO_PLACE),
    (("coverage", "--html", f"{NO_PLACE}/c.html"), 6, NO_PLACE),
    (("adopt", "plant1", NO_PLACE), 3, NO_PLACE),
    (("ledger", "backup", f"{NO_PLACE}/b.db"), 6, NO_PLACE),
    (("init", NO_PLACE), 6, NO_PLACE),
    (("--config", "nope.toml", "status"), 2, "nope.toml"),
    (("--config", "site", "status"), 2, "site"),
    # times
    (("read", "--from", "yesterday", "--out", "x.csv"), 2, "'yesterday'"),
    (("read", "--to", "2026-13-01", "--out", "x.csv"), 2, "'2026-13-01'"),
    (("coverage", "--from", "yesterday"), 2, "'yesterday'"),
    (("coverage", "--from", "²"), 2, "'²'"),
    (("coverage", "--to", "9" * 5000), 2, "999"),
]


@pytest.mark.full_after(1)
@pytest.mark.parametrize(("words", "code", "says"), WORDS, ids=lambda value: repr(value)[:60])
def test_what_cannot_be_done_says_why_and_what_to_do(
    tidemark: Command, deployment: Path, words: tuple[str, ...], code: int, says: str
) -> None:
    before = sorted(deployment.rglob("*.toml"))
    refused(tidemark(*words, "--json"), code, says)
    assert sorted(deployment.rglob("*.toml")) == before
    assert not list(deployment.rglob("*.tmp"))


def test_an_empty_catalog_is_read_as_an_empty_file(tidemark: Command, deployment: Path) -> None:
    said = tidemark("read", "--tall", "--out", "empty.csv", "--json")
    assert (said.code, said.json["rows"]) == (0, 0)
    assert (deployment / "empty.csv").read_text().strip() == '"device","measurement","time","type","value"'


def test_a_plan_is_run_whole_and_nothing_else(tidemark: Command) -> None:
    assert tidemark("plan", "plant1", "--out", "plan.json").code == 0
    refused(tidemark("sync", "plant1", "--plan", "plan.json", "--only", "*", "--json"), 2, "--plan and --only exclude")
    refused(tidemark("sync", "plant1", "--plan", "plan.json", "--again", "--json"), 2, "--plan and --again exclude")
    assert tidemark("status", "--json").json["links"][0]["state"] == "new"


def test_paths_that_nothing_matches_are_no_error_and_said(tidemark: Command) -> None:
    said = tidemark("sync", "plant1", "--only", "zzz*", "--json")
    assert (said.code, said.json["files"]) == (0, 0)
    assert said.json["notes"] == ["--only zzz*: no such file is to be sent; ./tidemark plan plant1 lists those that are"]
    assert "no such file is to be sent" in tidemark("sync", "plant1", "--only", "zzz*").err
    assert tidemark("sync", "plant1", "--only", "*.tsfile", "--json").json["notes"] == []


def test_a_receiver_whose_store_is_a_file_is_told(tidemark: Command, deployment: Path) -> None:
    (deployment / "centre").write_text("")
    for words in (("sync", "plant1"), ("load",)):
        refused(tidemark(*words, "--json"), 6, "centre is a file, not a folder")
    (deployment / "centre").unlink()
    assert tidemark("sync", "plant1", "--json").json["loaded"] > 0


@pytest.mark.full_after(1)
@pytest.mark.parametrize("glob", ["zzz.**", "[", "", "root.**.nothing", "\\"])
def test_a_device_glob_that_nothing_matches_is_no_error_and_said(tidemark: Command, glob: str) -> None:
    assert tidemark("sync", "plant1").code == 0
    said = tidemark("read", "--device", glob, "--out", "none.parquet")
    assert said.code == 0
    assert "nothing matches" in said.err


def test_times_beyond_any_calendar_are_bounds_like_others(tidemark: Command) -> None:
    assert tidemark("sync", "plant1").code == 0
    every = tidemark("read", "--from", "-99999999999999999999", "--to", "99999999999999999999", "--out", "a.csv", "--json")
    none = tidemark("read", "--from", "99999999999999999999", "--out", "a.csv", "--json")
    assert every.json["rows"] > 0 and none.json["rows"] == 0


def test_settings_whose_ledger_has_no_place_name_it(tidemark: Command, deployment: Path) -> None:
    with (deployment / "tidemark.toml").open("a") as settings:
        settings.write(f'[ledger]\nurl = "sqlite:///{NO_PLACE}/ledger.db"\n')
    refused(tidemark("sync", "plant1", "--json"), 6, NO_PLACE)


@pytest.mark.parametrize("url", ["sqlite", "nosuchdb://x/y", "postgresql+psycopg://127.0.0.1:1/none"])
def test_a_ledger_that_cannot_be_is_named_and_its_secret_is_not(tidemark: Command, deployment: Path, url: str) -> None:
    with (deployment / "tidemark.toml").open("a") as settings:
        settings.write(f'[ledger]\nurl = "{url}"\n')
    said = tidemark("status", "--json")
    refused(said, said.code)
    assert said.code == (5 if "127.0.0.1" in url else 2)


def test_doctor_tells_what_is_wrong_in_one_line(tidemark: Command, deployment: Path) -> None:
    (deployment / "tidemark.toml").write_text("[sites\n")
    refused(tidemark("doctor", "--json"), 2, "settings")


def test_approving_a_run_without_waiting_drops_changes_nothing(tidemark: Command) -> None:
    run = tidemark("sync", "plant1", "--json").json["run"]
    said = tidemark("approve", run, "--yes", "--json")
    assert (said.code, said.json["approved"]) == (0, [])
    assert "no drops" in said.json["note"]


@pytest.mark.full
def test_what_was_released_or_dropped_stays_so(tidemark: Command, deployment: Path) -> None:
    assert tidemark("sync", "plant1", "--no-load").code == 0
    landed = sorted((deployment / "centre" / "landing").rglob("*.tsfile"))
    whole = landed[0].read_bytes()
    for place in landed[:2]:
        place.write_bytes(b"x" * 5)
    assert tidemark("load", "--json").code == 7
    first, second = tidemark("quarantine", "list", "--json").json["quarantine"]
    damaged = next(iter((deployment / "centre" / "quarantine").rglob("*" + Path(first["path"]).name)))
    damaged.write_bytes(whole)
    released, again = (tidemark("quarantine", "release", str(first["id"]), "--json") for _ in range(2))
    dropped, twice = (tidemark("quarantine", "drop", str(second["id"]), "--yes", "--json") for _ in range(2))
    assert (released.code, dropped.code) == (0, 0)
    assert (again.json["path"], twice.json) == (released.json["path"], dropped.json), "said again it is done"
    refused(tidemark("quarantine", "drop", str(first["id"]), "--yes", "--json"), 3, "it is released")
    refused(tidemark("quarantine", "release", str(second["id"]), "--json"), 3, "it is dropped")


def test_bytes_that_are_no_text_on_a_real_command_line(deployment: Path) -> None:
    """As the shell hands them over; Python's own decoding makes surrogates of them that nothing can print."""
    command = [sys.executable, "-m", "tidemark.cli", b"why", b"caf\xe9", b"--json"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "plugins"), "LANG": "C"}
    done = subprocess.run(command, cwd=deployment, env=env, capture_output=True, check=False)
    assert done.returncode == 2
    assert b'"kind": 2' in done.stdout.splitlines()[-1] and b"Traceback" not in done.stderr


@pytest.mark.full
def test_names_of_any_letters_on_a_stdout_of_few(deployment: Path) -> None:
    folder = deployment / "site" / "data" / "sequence"
    (folder / "root.plant2").rename(folder / "root.wärme")
    env = {**os.environ, "PYTHONPATH": str(ROOT / "plugins"), "PYTHONIOENCODING": "ascii"}

    def said(*words: str) -> bytes:
        command = [sys.executable, "-m", "tidemark.cli", *words]
        return subprocess.run(command, cwd=deployment, env=env, capture_output=True, check=True).stdout

    assert b"root.w\\xe4rme" in said("plan", "plant1")
    assert "root.wärme" in json.loads(said("plan", "plant1", "--json").splitlines()[-1])["send"][0]["path"]
    assert b"usage: ./tidemark" in said("--help")


def test_a_site_that_cannot_be_reached_is_why_its_run_stopped(
    tidemark: Command, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrying, "FIRST_PAUSE", 0.01)
    settings = deployment / "tidemark.toml"
    far = f'store = "sftp://edge@127.0.0.1:1/x"\nhost_key = "SHA256:{"a" * 43}"'
    settings.write_text(settings.read_text().replace('store = "site"', far))
    refused(said := tidemark("sync", "plant1", "--json"), 5, "refuses connections")
    (link,) = tidemark("status", "--json").json["links"]
    assert (link["state"], link["reason"], link["next"]) == ("failed", said.json["error"], said.json["hint"])
