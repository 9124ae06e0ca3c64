"""Engines: whatever a task does to its process, the other tasks get their answers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.unit.engines.engine_tasks import Task
from tidemark.engines import pool as engine_children
from tidemark.engines.choose import PoolEngine, choose_engine, choose_pool
from tidemark.engines.pool import run_in_children, run_in_kept_child
from tidemark.engines.task import Limits, Outcome
from tidemark.errors import CorruptionError, PermanentError, RetryableError, TaskLimitError, UsageError
from tidemark.settings.model import SparkSettings

ROOT = Path(__file__).parents[3]
WHERE = "tests.unit.engines.engine_tasks:perform"


@pytest.fixture(autouse=True)
def children_find_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def run(words: Sequence[str], workers: int = 2, limits: Limits | None = None) -> list[Outcome]:
    tasks = [Task(word, f"file {n}") for n, word in enumerate(words)]
    outcomes = run_in_children(WHERE, tasks, workers, limits or Limits())
    return sorted(outcomes, key=lambda o: o.index)


def test_every_task_gets_its_answer() -> None:
    words = [f"task {n}" for n in range(20)]
    assert [o.value for o in run(words)] == [w.upper() for w in words]
    assert run([]) == []


def test_a_crash_costs_one_task_and_names_it() -> None:
    outcomes = run(["a", "segfault", "b", "segfault", "c"], workers=1)
    assert [o.value for o in outcomes] == ["A", None, "B", None, "C"]
    error = outcomes[1].error
    assert isinstance(error, CorruptionError)
    assert "file 1" in error.message and "SIGSEGV" in error.message


def test_a_task_may_open_as_many_files_as_the_machine_allows() -> None:
    """A merge has all its sources open, and a shell starts with 1024: late points may lie in more files than that."""
    program = f"""
import resource
from tests.unit.engines.engine_tasks import Task
from tidemark.engines.pool import run_in_children
from tidemark.engines.task import Limits
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
(outcome,) = run_in_children({WHERE!r}, [Task("open")], 1, Limits())
print(outcome.value)
"""
    place = {**os.environ, "PYTHONPATH": f"{ROOT / 'plugins'}{os.pathsep}{ROOT}"}
    done = subprocess.run([sys.executable, "-c", program], env=place, capture_output=True, text=True, check=False)
    assert done.stdout == "300\n", done.stderr


def test_a_kept_child_takes_the_next_tasks_too_and_a_new_one_those_after_a_crash() -> None:
    def ask(*words: str) -> list[Outcome]:
        return list(run_in_kept_child(WHERE, [Task(word, f"file {n}") for n, word in enumerate(words)], Limits()))

    first, second = ask("pid", "pid")
    (third,) = ask("pid")
    assert first.value == second.value == third.value
    crashed, after = ask("segfault", "pid")
    assert isinstance(crashed.error, CorruptionError) and "file 0" in crashed.error.message
    assert after.value != first.value
    (last,) = ask("pid")
    assert last.value == after.value


@pytest.mark.full
def test_an_endless_loop_ends_with_its_cpu_time() -> None:
    outcomes = run(["spin", "a"], limits=Limits(cpu_seconds=1))
    assert isinstance(outcomes[0].error, TaskLimitError) and "CPU time" in outcomes[0].error.message
    assert outcomes[1].value == "A"


@pytest.mark.full
def test_a_task_that_sleeps_too_long_is_ended() -> None:
    outcomes = run(["sleep", "a"], limits=Limits(wall_seconds=3))
    assert isinstance(outcomes[0].error, TaskLimitError) and "after 3 s" in outcomes[0].error.message
    assert outcomes[1].value == "A"


def test_too_much_memory_is_an_error_of_the_task() -> None:
    outcomes = run(["memory", "a"], limits=Limits(memory_bytes=1 << 30))
    assert isinstance(outcomes[0].error, TaskLimitError) and "memory" in outcomes[0].error.message
    assert outcomes[1].value == "A"


@pytest.mark.full
def test_a_task_that_fills_its_memory_with_small_things_ends_as_well() -> None:
    """CPython 3.11 to 3.13 would try for ever to leave an `except`, until its CPU time is up."""
    outcomes = run(["hoard", "a"], limits=Limits(memory_bytes=300 << 20, cpu_seconds=20))
    assert isinstance(outcomes[0].error, TaskLimitError)
    assert "needs more memory than a task may use, 0.29 GiB" in outcomes[0].error.message
    assert outcomes[1].value == "A"


@pytest.mark.full
def test_a_task_with_all_its_memory_in_use_is_left_in_peace_until_it_takes_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_children, "_LOOK_SECONDS", 0.05)
    limits = Limits(memory_bytes=300 << 20, cpu_seconds=20)
    (first,) = run_in_kept_child(WHERE, [Task("brim")], limits)
    (second,) = run_in_kept_child(WHERE, [Task("brim")], limits)
    assert first.value == second.value == "BRIM"
    (greedy,) = run_in_kept_child(WHERE, [Task("greed", "file 0")], limits)
    assert isinstance(greedy.error, TaskLimitError)
    assert "file 0: needs more memory than a task may use, 0.29 GiB" in greedy.error.message


def test_errors_of_tasks_come_back_as_they_are() -> None:
    outcomes = run(["corrupt", "surprise", "print"], workers=1)
    first, second = outcomes[0].error, outcomes[1].error
    assert isinstance(first, CorruptionError) and first.message == "page 3 is torn" and first.subject == "file 0"
    assert second is not None and second.kind == 1 and "KeyError" in second.message
    assert outcomes[2].value == "PRINT"


@pytest.mark.parametrize("word", ["exit", "killed"])
def test_a_child_that_somebody_ended_may_be_tried_again(word: str) -> None:
    outcomes = run([word, "a"], workers=1)
    assert isinstance(outcomes[0].error, RetryableError)
    assert outcomes[1].value == "A"


def test_children_are_gone_when_the_caller_stops_early() -> None:
    running = run_in_children(WHERE, [Task("pid"), Task("sleep"), Task("pid")], 2, Limits())
    pid = next(running).value
    running.close()  # type: ignore[attr-defined]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_children_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    program = (
        "from tests.unit.engines.engine_tasks import Task\n"
        "from tidemark.engines.pool import run_in_children\n"
        "from tidemark.engines.task import Limits\n"
        f"for o in run_in_children({WHERE!r}, [Task('pid'), Task('sleep')], 1, Limits()):\n"
        "    print(o.value, flush=True)\n"
    )
    paths = f"{ROOT}{os.pathsep}{ROOT / 'plugins'}"
    env = {**os.environ, "PYTHONPATH": paths}
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=env)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{child}").exists() and "Z" not in Path(f"/proc/{child}/stat").read_text().split(")")[1][:3]:
        assert time.monotonic() < deadline, f"child {child} outlived its parent"
        time.sleep(0.02)
    parent.stdout.close()


def test_settings_decide_before_the_caller_and_the_caller_before_the_size() -> None:
    big, small = 10_000_000, 10
    assert isinstance(choose_engine(SparkSettings(engine="pool"), "spark", big), PoolEngine)
    assert isinstance(choose_engine(SparkSettings(), "pool", big), PoolEngine)
    assert isinstance(choose_engine(SparkSettings(), "auto", small), PoolEngine)
    with pytest.raises(UsageError, match="no engine named 'fast'"):
        choose_engine(SparkSettings(), "fast", small)


def test_an_engine_that_the_caller_brings_does_it_all_and_what_spark_has_no_job_for_is_the_pools() -> None:
    mine = PoolEngine(workers=3)
    assert choose_engine(SparkSettings(engine="spark"), mine, 10_000_000) is mine is choose_pool(mine)
    assert choose_pool("spark", Limits(wall_seconds=5)) == PoolEngine(limits=Limits(wall_seconds=5))


def test_without_the_package_spark_is_the_pool_unless_the_settings_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a standard Airflow, to which the extra `airflow` was added alone."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for wanted in ("spark", "auto"):
        assert isinstance(choose_engine(SparkSettings(), wanted, 10_000_000), PoolEngine)
    with pytest.raises(PermanentError, match="needs the Python package pyspark") as missing:
        choose_engine(SparkSettings(engine="spark"), "auto", 10)
    assert "[spark]" in missing.value.hint


@pytest.mark.real("spark")
def test_spark_is_chosen_where_it_is_asked_for_or_the_work_is_large() -> None:
    try:
        asked = choose_engine(SparkSettings(engine="spark"), "pool", 10)
    except UsageError as missing:
        pytest.skip(str(missing))
    assert asked.name == "spark"
    assert choose_engine(SparkSettings(), "spark", 10).name == "spark"
    assert choose_engine(SparkSettings(), "auto", 10_000_000).name == "spark"
