"""The command from the outside: what goes to stdout, what to stderr, which exit code (CONTRACT §1)."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from demo.__main__ import last_screen
from demo.story import Outcome
from tests.unit.cli.conftest import Command
from tidemark.cli import main as entry
from tidemark.cli.call import Answer, Call, Verb
from tidemark.cli.main import VERBS
from tidemark.errors import GuardError
from tidemark.ledger.database import Ledger
from tidemark.ledger.leases import this_process
from tidemark.ledger.sender.bandwidth import SharedLine, place_on

ROOT = Path(__file__).resolve().parents[3]
CONTRACT_VERBS = {
    *(
        "demo",
        "test",
        "init",
        "doctor",
        "up",
        "down",
        "plan",
        "sync",
        "load",
        "merge",
        "read",
        "status",
        "runs",
        "coverage",
        "verify",
    ),
    *("adopt", "ledger", "why", "quarantine", "owners", "approve", "bench", "cluster", "replica", "changes"),
    *("help", "version", "completion"),
}


def put_verb(monkeypatch: pytest.MonkeyPatch, run: Callable[[Call], Answer]) -> None:
    monkeypatch.setitem(entry.VERBS, "status", Verb("status", "for a test", "./tidemark status", run))


def test_every_verb_of_the_contract_is_there() -> None:
    assert set(VERBS) == CONTRACT_VERBS


@pytest.mark.parametrize("verb", sorted(CONTRACT_VERBS))
def test_the_help_of_every_verb_shows_an_example(tidemark: Command, verb: str) -> None:
    said = tidemark(verb, "--help")
    assert said.code == 0
    assert f"example:\n  ./tidemark {verb}" in said.out
    assert all(len(line) < 100 for line in said.out.splitlines())


@pytest.mark.parametrize("words", ["plan plant1", "status", "runs", "coverage", "why plant1", "read --out x.csv"])
def test_a_verb_that_only_looks_makes_no_ledger(tidemark: Command, deployment: Path, words: str) -> None:
    said = tidemark(*words.split(), "--json")
    assert said.code in (0, 3, 23), said
    assert not (deployment / "var").exists()
    assert tidemark("plan", "plant1", "--json").json["files"] > 0


@pytest.mark.parametrize(("part", "package"), [("ssh", "openssh-server"), ("mariadb", "mariadb-server")])
def test_a_demo_that_lacks_a_part_says_what_to_install(part: str, package: str) -> None:
    assert f"apt-get install {package}" in last_screen(Outcome(ok=True))
    assert package not in last_screen(replace(Outcome(ok=True), **{part: True}))


def test_the_help_lists_the_verbs_and_the_exit_codes(tidemark: Command) -> None:
    said = tidemark("--help")
    assert said.code == 0
    for verb in CONTRACT_VERBS:
        assert re.search(rf"^  {verb} ", said.out, re.MULTILINE)
    assert "22 approval needed" in said.out


def test_the_version_is_one_line(tidemark: Command) -> None:
    said = tidemark("--version")
    assert said.code == 0
    assert re.fullmatch(r"tidemark \d+\.\d+\.\d+\n", said.out)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "say what to do"),
        (("statsu",), "no verb 'statsu'; did you mean status?"),
        (("cluster",), "the following arguments are required: ACTION"),
        (("cluster", "plan"), "the following arguments are required: add|remove|rebalance"),
        (("plan",), "the following arguments are required: LINK"),
        (("sync",), "say which link, or --all"),
        (("sync", "plant1", "--bogus"), "unrecognized arguments: --bogus"),
        (("help", "snyc"), "no verb 'snyc'; did you mean sync?"),
        (("up", "--port", "x"), "argument --port: invalid int value: 'x'"),
    ],
)
def test_wrong_usage_exits_2_and_is_json_too(tidemark: Command, words: tuple[str, ...], says: str) -> None:
    said = tidemark(*words, "--json")
    assert said.code == 2
    assert said.json["kind"] == 2
    assert says in said.json["error"]
    assert "--help" in said.json["hint"]
    assert says in said.err


@pytest.mark.parametrize("words", ["status plant1", "sync plant1 --bogus", "coverage --from soon"])
def test_wrong_usage_names_the_help_of_the_verb(tidemark: Command, words: str) -> None:
    said = tidemark(*words.split(), "--json")
    assert said.code == 2
    assert said.json["hint"].startswith(f"./tidemark {words.split(maxsplit=1)[0]} --help"), said


@pytest.mark.parametrize("place", [0, 1, 2])
def test_common_options_may_stand_anywhere(tidemark: Command, deployment: Path, place: int) -> None:
    (deployment / "tidemark.toml").rename(deployment / "other.toml")
    words = ["why", "plant1"]
    words[place:place] = ["--config", "other.toml", "--json"]
    assert tidemark(*words).json["subject"] == "plant1"


def test_options_of_an_inner_action_too(tidemark: Command) -> None:
    assert tidemark("quarantine", "list", "--json").json["quarantine"] == []


def test_a_sync_from_site_to_readers(tidemark: Command, deployment: Path) -> None:
    plan = tidemark("plan", "plant1", "--json", "--out", "plan.json")
    assert plan.code == 0
    assert {"send", "drop", "superseded", "skipped", "schema", "conflicts", "files", "bytes", "state"} <= set(plan.json)
    assert plan.json["files"] == len(plan.json["send"]) == 3

    sync = tidemark("sync", "plant1", "--plan", "plan.json", "--json")
    assert sync.code == 0, sync.err
    told = {
        "run",
        "state",
        "files",
        "bytes",
        "sent_bytes",
        "dropped",
        "pending",
        "schema",
        "loaded",
        "refused",
        "quarantined",
    }
    assert told <= set(sync.json)
    assert (sync.json["state"], sync.json["files"], sync.json["loaded"]) == ("loaded", 3, 3)

    status = tidemark("status", "--json")
    (link,) = status.json["links"]
    assert {"name", "state", "last_run", "backlog_files", "backlog_bytes", "oldest_unsent"} <= set(link)
    assert (link["name"], link["state"], link["backlog_files"]) == ("plant1", "idle", 0)

    coverage = tidemark("coverage", "--json", "--html", "map.html")
    assert coverage.code == 0
    assert coverage.json["complete"] is True
    assert coverage.json["red"] == []
    assert "<html" in (deployment / "map.html").read_text()

    read = tidemark("read", "--tall", "--out", "points.csv", "--json")
    assert read.code == 0, read.err
    assert read.json["rows"] == len((deployment / "points.csv").read_text().splitlines()) - 1 > 0


def test_with_nothing_to_do_exit_9_only_when_asked(tidemark: Command) -> None:
    tidemark("sync", "plant1", "--quiet")
    assert tidemark("sync", "plant1", "--json").code == 0
    again = tidemark("sync", "plant1", "--fail-if-nothing", "--json")
    assert (again.code, again.json["kind"], again.json["error"]) == (9, 9, "nothing to do")
    load = tidemark("load", "--fail-if-nothing", "--json")
    assert (load.code, load.json["landings"]) == (9, 0)


def test_people_get_results_on_stdout_and_the_rest_on_stderr(tidemark: Command) -> None:
    said = tidemark("sync", "plant1")
    assert re.search(r"^state +loaded$", said.out, re.MULTILINE)
    assert re.search(r"^sent bytes +[\d.]+ kB$", said.out, re.MULTILINE)
    assert re.search(r"^duration +[\d.:]+( s)?\nrate +[\d.]+ k?B/s$", said.out, re.MULTILINE)
    table = tidemark("status").out.splitlines()
    assert table[0].split()[:2] == ["link", "state"]
    assert table[1].split()[:2] == ["plant1", "idle"]
    assert all(line == line.rstrip() for line in table)


def test_a_sync_that_only_tells_drops_has_no_rows_of_nothing(tidemark: Command, deployment: Path) -> None:
    tidemark("sync", "plant1")
    gone = sorted((deployment / "site").rglob("*.tsfile"))[0]
    for path in gone.parent.glob(f"{gone.name}*"):
        path.unlink()
    said = tidemark("sync", "plant1")
    assert said.code == 0 and re.search(r"^dropped +1$", said.out, re.MULTILINE), said
    assert not re.search(r"^(files|bytes|sent bytes) ", said.out, re.MULTILINE), said


def test_a_link_that_is_not_there_exits_3_and_names_those_that_are(tidemark: Command) -> None:
    said = tidemark("sync", "plant2", "--json")
    assert (said.code, said.json["kind"], said.json["subject"]) == (3, 3, "plant2")
    assert "the settings have: plant1" in said.json["error"]


def test_broken_settings_exit_2_with_every_line(tidemark: Command, deployment: Path) -> None:
    with (deployment / "tidemark.toml").open("a") as file:
        file.write('retires = 3\nwindow = "soon"\n')
    said = tidemark("status", "--json")
    assert said.code == 2
    assert "tidemark.toml:9: links.plant1.retires" in said.json["error"]
    assert "tidemark.toml:10: links.plant1.window" in said.json["error"]


def test_where_several_receivers_could_be_meant_one_must_be_named(tidemark: Command, deployment: Path) -> None:
    text = (deployment / "tidemark.toml").read_text() + 'receiver = "centre"\n[receivers.two]\nstore = "two"\n'
    (deployment / "tidemark.toml").write_text(text)
    said = tidemark("read", "--out", "points.csv", "--json")
    assert said.code == 2
    assert "which receiver? the settings have: centre, two" in said.json["error"]
    assert tidemark("load", "--receiver", "two", "--json").code == 0
    assert tidemark("load", "--receiver", "six", "--json").code == 3


def test_what_is_no_plan_is_refused(tidemark: Command, deployment: Path) -> None:
    (deployment / "plan.json").write_text("[]")
    assert tidemark("sync", "plant1", "--plan", "plan.json", "--json").code == 2
    assert tidemark("sync", "plant1", "--plan", "none.json", "--json").code == 3


def test_init_writes_settings_once(tidemark: Command, deployment: Path) -> None:
    said = tidemark("init", "new", "--json")
    assert said.json == {"config": "new/tidemark.toml", "ok": True}
    before = (deployment / "new" / "tidemark.toml").read_bytes()
    again = tidemark("init", "new", "--json")
    assert again.json == {**said.json, "written": False}
    assert [place.name for place in (deployment / "new").iterdir()] == ["tidemark.toml"]
    assert (deployment / "new" / "tidemark.toml").read_bytes() == before
    assert tidemark("--config", "new/tidemark.toml", "status", "--json").code == 0
    (deployment / "new" / "tidemark.toml").write_text("[links.x")
    assert tidemark("init", "new", "--json").code == 2, "what is there cannot be read"


def test_tables_that_init_shows_can_be_pasted(tidemark: Command, deployment: Path) -> None:
    said = tidemark("init", "--site", "b=site")
    tables = said.out[said.out.index("\n[sites.b]") :]
    settings = deployment / "tidemark.toml"
    settings.write_text(settings.read_text() + tables)
    assert {link["name"] for link in tidemark("status", "--json").json["links"]} == {"plant1", "b"}, said


def test_init_writes_where_the_next_command_looks(
    tidemark: Command, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tidemark("init", "--config", "own.toml", "--json")
    assert said.json == {"config": "own.toml", "ok": True}
    assert tidemark("--config", "own.toml", "status", "--json").code == 0
    monkeypatch.setenv("TIDEMARK_CONFIG", str(deployment / "own.toml"))
    (deployment / "tidemark.toml").unlink()
    said = tidemark("init")
    assert "./tidemark --config tidemark.toml doctor" in said.err, "without --config it would look at own.toml"
    assert (deployment / "tidemark.toml").exists()
    monkeypatch.setenv("TIDEMARK_CONFIG", "tidemark.toml")
    assert "./tidemark doctor" in tidemark("init").err


def test_an_error_carries_its_kind_and_the_next_command(tidemark: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(_call: Call) -> Answer:
        raise GuardError("drops wait", hint="./tidemark approve R1", subject="R1")

    put_verb(monkeypatch, run)
    said = tidemark("status", "--json")
    assert said.code == 22
    assert said.json == {"ok": False, "kind": 22, "error": "drops wait", "hint": "./tidemark approve R1", "subject": "R1"}
    assert said.err == "tidemark: drops wait\n  next: ./tidemark approve R1\n"


def test_a_fault_of_ours_exits_1_and_keeps_the_traceback(
    tidemark: Command, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(call: Call) -> Answer:
        raise ZeroDivisionError(f"with {call.settings.path.name}")

    put_verb(monkeypatch, run)
    said = tidemark("status", "--json")
    assert (said.code, said.json["kind"]) == (1, 1)
    assert said.json["error"] == "unexpected: ZeroDivisionError: with tidemark.toml"
    assert "Traceback" not in said.err
    (kept,) = (deployment / "var" / "errors").iterdir()
    assert str(kept) in said.json["hint"]
    assert "ZeroDivisionError" in kept.read_text()


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (RuntimeError("can't start new thread"), "ulimit -u"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "pids.max"),
        (OSError(errno.EMFILE, "Too many open files", "/dev/urandom"), "ulimit -n"),
        (MemoryError(), "memory"),
    ],
)
def test_a_limit_of_the_machine_is_no_fault_of_ours(
    tidemark: Command, monkeypatch: pytest.MonkeyPatch, error: Exception, hint: str
) -> None:
    def run(_call: Call) -> Answer:
        raise error

    put_verb(monkeypatch, run)
    said = tidemark("status", "--json")
    assert (said.code, said.json["kind"]) == (5, 5)
    assert hint in said.json["hint"] and "limit" in said.json["error"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_closes_what_is_open_and_tells(
    request: pytest.FixtureRequest, tidemark: Command, monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    closed = []
    for other, heard in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        before = signal.signal(other, heard)  # a shell's background jobs ignore the one, nohup's the other
        request.addfinalizer(partial(signal.signal, other, before))

    def run(_call: Call) -> Answer:
        try:
            os.kill(os.getpid(), number)
            time.sleep(10)
        finally:
            closed.append(True)
        raise AssertionError("the signal did not come")

    put_verb(monkeypatch, run)
    said = tidemark("status", "--json")
    assert (said.code, said.json["kind"], said.json["error"]) == (code, code, "stopped")
    assert "next: the same command goes on from there" in said.err
    assert closed == [True]


CTRL_C_WHILE_MODULES_LOAD = """
import os, signal, sys

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == "tidemark.cli.main":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, CtrlC())
import runpy
runpy.run_module("tidemark.cli", run_name="__main__")
"""


def test_ctrl_c_before_the_command_began_ends_it_without_a_traceback() -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "plugins")}
    done = subprocess.run(
        [sys.executable, "-c", CTRL_C_WHILE_MODULES_LOAD], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def modules_after(words: list[str], folder: Path) -> set[str]:
    program = (
        "import sys; from tidemark.cli.main import main\n"
        f"try: main({words!r})\nexcept SystemExit: pass\n"
        "print(*sorted(sys.modules), file=sys.stderr)"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT / "plugins")}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return {name.split(".")[0] for name in done.stderr.splitlines()[-1].split()}


def test_help_imports_nothing_heavy(deployment: Path) -> None:
    heavy = {"sqlalchemy", "paramiko", "numpy", "pyarrow", "pandas", "pyspark", "airflow", "rich"}
    assert not modules_after(["--help"], deployment) & heavy


@pytest.mark.full
def test_a_sync_of_a_local_site_imports_neither_airflow_nor_spark_nor_ssh(deployment: Path) -> None:
    heavy = {"paramiko", "pandas", "pyspark", "airflow", "rich"}
    assert not modules_after(["sync", "plant1", "--no-load", "--json"], deployment) & heavy
    assert not modules_after(["status", "--json"], deployment) & (heavy | {"numpy", "pyarrow"})


def test_status_tells_who_sends_under_a_shared_cap(
    tidemark: Command, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tidemark("ledger", "upgrade").code == 0  # makes it: the status only looks
    assert "lines" not in tidemark("status", "--json").json
    monkeypatch.setenv("TIDEMARK__RECEIVERS__CENTRE__BANDWIDTH", "10 MB/s")
    assert "centre, line of 10.0 MB/s: nobody sends" in tidemark("status").out
    ledger = Ledger(f"sqlite:///{deployment / 'var' / 'ledger.db'}")
    with place_on(SharedLine(ledger, "centre", 10e6), "run-1", this_process()):
        assert "centre, line of 10.0 MB/s: run-1 10.0 MB/s" in tidemark("status").out
    ledger.close()


@pytest.mark.full
def test_why_knows_a_receiver_and_takes_no_pattern(tidemark: Command) -> None:
    assert tidemark("sync", "plant1").code == 0
    found = tidemark("why", "centre", "--json").json
    assert (found["kind"], found["state"], found["evidence"]) == ("receiver", "idle", ["link plant1: idle"])
    Path("site/data").rename("site/away")
    assert tidemark("sync", "plant1").code != 0
    found = tidemark("why", "centre", "--json").json
    assert (found["state"], found["next"]) == ("guard", "./tidemark why plant1") and "link plant1" in found["cause"]
    assert "takes one name, no pattern" in tidemark("why", "root.plant2.*").err


@pytest.mark.full
def test_a_plan_sums_databases_and_says_why_the_guard_holds(tidemark: Command) -> None:
    planned = tidemark("plan", "plant1")
    sums = tidemark("plan", "plant1", "--json").json["databases"]
    assert sum(one["files"] for one in sums) > 0 and all(one["from"] <= one["to"] for one in sums)
    assert all(" ".join([one["database"], str(one["files"])]) in " ".join(planned.out.split()) for one in sums)
    assert tidemark("sync", "plant1").code == 0
    Path("site/data").rename("site/away")
    planned = tidemark("plan", "plant1")
    assert "guard  " in planned.out and tidemark("plan", "plant1", "--json").json["guard"] in planned.out


def test_a_host_key_is_asked_for_at_the_port_of_the_store(tidemark: Command, deployment: Path) -> None:
    place = deployment / "tidemark.toml"
    place.write_text(place.read_text().replace('store = "site"', 'store = "sftp://edge@10.0.0.5:22622/data"'))
    assert "ssh-keyscan -p 22622 10.0.0.5 |" in tidemark("status").err
    place.write_text(place.read_text().replace(":22622", ""))
    assert "ssh-keyscan 10.0.0.5 |" in tidemark("status").err


def test_doctor_counts_one_as_one(tidemark: Command) -> None:
    assert "1 site, 1 receiver, 1 link" in tidemark("doctor").out


def test_doctor_counts_sources_and_sinks_where_there_are_any(tidemark: Command, deployment: Path) -> None:
    (deployment / "tidemark.toml").write_text(
        '[sources.orders]\nstore = "changes"\n[sinks.lake]\nsource = "orders"\nkind = "delta"\ntarget = "lake"\n'
    )
    assert "0 links, 1 source, 1 sink" in tidemark("doctor").out
