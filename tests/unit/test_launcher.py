"""The launcher at the root: what it sets up once, what it says when it cannot (DESIGN §2).

The environments here are made from an empty lock, so that no test needs a network.
"""

from __future__ import annotations

import ast
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.services.privileges import as_anybody
from tests.services.processes import PartMissing

ROOT = Path(__file__).resolve().parents[2]
LAUNCHER = ROOT / "tidemark"
EMPTY = "# nothing to install\n"
OFFLINE = {"UV_OFFLINE": "1", "PIP_NO_INDEX": "1", "UV_HTTP_RETRIES": "0"}

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A clone as far as the launcher cares."""
    return clone(tmp_path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that the launcher made."""
    folder = clone(tmp_path_factory.mktemp("made"))
    assert starting(folder)("--ensure", "run").returncode == 0
    return folder / ".venv"


@pytest.fixture
def start(checkout: Path) -> Run:
    return starting(checkout)


@pytest.fixture
def start_again(checkout: Path, made: Path) -> Run:
    """In a clone whose environment is there."""
    shutil.copytree(made, checkout / ".venv", symlinks=True)
    return starting(checkout)


def clone(folder: Path) -> Path:
    (folder / "tidemark").write_bytes(LAUNCHER.read_bytes())
    (folder / "plugins").symlink_to(ROOT / "plugins")
    for name in ("requirements.txt", "requirements-test.txt", "requirements-java.txt"):
        (folder / name).write_text(EMPTY)
    (folder / "requirements-uv.txt").write_text((ROOT / "requirements-uv.txt").read_text())
    return folder


def starting(folder: Path) -> Run:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(folder / "tidemark"), *words]
        return subprocess.run(command, cwd="/", env=os.environ | OFFLINE, capture_output=True, text=True, check=False)

    return run


@pytest.mark.full
def test_the_first_start_makes_the_environment_and_the_second_only_starts(start: Run, checkout: Path) -> None:
    first = start("--help")
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("usage: ")
    assert "making .venv" in first.stderr
    assert (checkout / ".venv" / ".tidemark-lock").exists()
    second = start("--help")
    assert (second.returncode, second.stderr) == (0, "")
    assert second.stdout == first.stdout


@pytest.mark.full
def test_a_changed_lock_is_installed_again(start_again: Run, checkout: Path) -> None:
    (checkout / "requirements.txt").write_text(EMPTY + "# and nothing more\n")
    assert "installing requirements.txt" in start_again("--ensure", "run").stderr
    assert start_again("--ensure", "run").stderr == ""


@pytest.mark.full
def test_a_set_of_its_own_has_a_mark_of_its_own(start_again: Run, checkout: Path) -> None:
    assert "installing requirements.txt, requirements-test.txt" in start_again("--ensure", "test").stderr
    assert (checkout / ".venv" / ".tidemark-lock-test").exists()
    assert not (checkout / ".venv" / ".tidemark-lock-java").exists()
    assert start_again("--ensure", "test").stderr == ""


@pytest.mark.full
def test_a_set_up_that_was_interrupted_is_done_again(start_again: Run, checkout: Path) -> None:
    (checkout / ".venv" / ".tidemark-lock").unlink()  # the mark is written last
    assert "ready after" in start_again("--ensure", "run").stderr
    assert (checkout / ".venv" / ".tidemark-lock").exists()


@pytest.mark.full
def test_an_environment_whose_python_is_gone_is_made_anew(start_again: Run, checkout: Path) -> None:
    python = checkout / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/nowhere/python3")
    assert start_again("--help").returncode == 0


def refused(done: subprocess.CompletedProcess[str], what: str) -> None:
    assert done.returncode == 6, done
    assert "Traceback" not in done.stderr and what in done.stderr and "Permission denied" in done.stderr, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert (answer["ok"], answer["kind"]) == (False, 6) and what in answer["error"] and ".venv" in answer["hint"]


@pytest.mark.full
def test_a_python_that_may_not_be_run_is_told(start_again: Run, checkout: Path) -> None:
    python = checkout / ".venv" / "bin" / "python"
    python.unlink()
    python.touch(mode=0)
    refused(start_again("status", "--json"), str(python))


@pytest.mark.parametrize("closed", [".venv", ".venv/bin"])
@pytest.mark.full
def test_an_environment_that_may_not_be_looked_into_is_told(start_again: Run, checkout: Path, closed: str) -> None:
    mode = (checkout / closed).stat().st_mode
    (checkout / closed).chmod(0)
    try:
        with as_anybody():
            refused(start_again("status", "--json"), str(checkout / closed))
    except PartMissing as missing:
        pytest.skip(str(missing))
    finally:
        (checkout / closed).chmod(mode)


@pytest.mark.full
def test_without_a_network_it_says_what_it_needs(start: Run, checkout: Path) -> None:
    (checkout / "requirements.txt").write_text(f"no-such-package==1.0 --hash=sha256:{'0' * 64}\n")
    done = start("status", "--json")
    assert done.returncode == 6
    assert "No network? The first start needs a Python package index" in done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert (answer["ok"], answer["kind"]) == (False, 6)
    assert not (checkout / ".venv" / ".tidemark-lock").exists()


def test_an_unknown_set_is_named(start: Run) -> None:
    done = start("--ensure", "toast")
    assert done.returncode == 6
    assert "no set 'toast'; there are: docs, java, run, test" in done.stderr


@pytest.mark.full
def test_two_starts_at_once_wait_for_each_other(checkout: Path) -> None:
    folder = os.open(checkout, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    command = [sys.executable, str(checkout / "tidemark"), "--ensure", "run"]
    child = subprocess.Popen(command, env=os.environ | OFFLINE, stderr=subprocess.PIPE, text=True)
    try:
        assert child.stderr is not None
        assert "waiting for it" in child.stderr.readline()
        assert not (checkout / ".venv").exists()
        os.close(folder)  # the first one is done, or died
        _, said = child.communicate(timeout=120)
    finally:
        child.kill()
    assert child.returncode == 0
    assert "ready after" in said


# --- a Python too old or too new: here every real one is, and those that fit are stand-ins that say how they were started


@pytest.fixture
def unfit(checkout: Path, tmp_path: Path) -> Run:
    """Start a launcher that knows Python 3.90 and 3.91 only, with `bin` on PATH and a home of its own."""
    launcher = checkout / "tidemark"
    text = launcher.read_text()
    assert "OLDEST, NEWEST = (3, 11), (3, 14)" in text
    launcher.write_text(text.replace("OLDEST, NEWEST = (3, 11), (3, 14)", "OLDEST, NEWEST = (3, 90), (3, 91)"))
    environment = OFFLINE | {"HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "bin")}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(launcher), *words]
        return subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, check=False)

    return run


def stand_in(path: Path, fits: bool = True) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exit {0 if fits else 1}\necho "$0 $*"\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("place", [".venv/bin/python", "bin/python3.91", "home/.pyenv/versions/3.90.1/bin/python3.90"])
def test_under_a_python_that_does_not_fit_it_goes_on_with_one_that_does(unfit: Run, checkout: Path, place: str) -> None:
    stand_in(checkout / "bin" / "python3.90", fits=False)  # a shim on PATH that stands for nothing
    python = stand_in(checkout / place)
    done = unfit("status", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{python} {checkout / 'tidemark'} status --json\n"


def test_where_no_python_fits_it_says_which_it_needs(unfit: Run) -> None:
    done = unfit("status", "--json")
    assert done.returncode == 6
    assert f"needs Python 3.90 to 3.91; this is {sys.version.split()[0]}" in done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert (answer["ok"], answer["kind"]) == (False, 6)


def test_an_old_python_can_read_it() -> None:
    ast.parse(LAUNCHER.read_text(), feature_version=(3, 6))


def test_it_needs_the_standard_library_only() -> None:
    tree = ast.parse(LAUNCHER.read_text())
    imports = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imports |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imports <= sys.stdlib_module_names


@pytest.mark.parametrize(
    "lock",
    [f"requirements{of}.txt" for of in ("", "-test", "-java", "-docs", "-uv", "-bench")],
)
def test_every_lock_pins_and_hashes_all_it_installs(lock: str) -> None:
    text = (ROOT / lock).read_text()
    entries = [
        entry for entry in text.replace("\\\n", " ").splitlines() if entry.strip() and not entry.lstrip().startswith("#")
    ]
    assert entries
    assert all("==" in entry and "--hash=sha256:" in entry for entry in entries)
    assert not any(entry.startswith("pyspark-client") for entry in entries), "it overwrites pyspark's own files"
    assert "://" not in "".join(entries), "a lock names no index"
