"""Which tests run when, and that nothing real goes untested in CI (tests/conftest.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = """
import pytest

@pytest.mark.real("sshd")
def test_real(): pytest.skip("no sshd here")

def test_by_fixture(start_sshd): pytest.skip("no sshd here")

def test_other(): pytest.skip("not on this system")

@pytest.mark.full
def test_full(): pass

@pytest.mark.soak
def test_soak(): pass

@pytest.mark.full_after(1)
@pytest.mark.parametrize("case", [pytest.param(0, marks=pytest.mark.soak), 1, 2, 3])
def test_of_cases(case): pass

def test_plain(): pass
"""


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    path = tmp_path / "test_sample.py"
    path.write_text(SAMPLE)
    return path


def run(sample: Path, *words: str, ci: str = "") -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        str(ROOT / "pyproject.toml"),
        "-p",
        "tests.conftest",
        *words,
        str(sample),
    ]
    environment = os.environ | {"CI": ci, "PYTHONPATH": f"{ROOT / 'plugins'}:{ROOT}"}
    return subprocess.run(command, cwd=sample.parent, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.full_after(2)
@pytest.mark.parametrize(
    ("words", "closing"),
    [
        ((), "2 passed, 3 skipped, 5 deselected"),
        (("--all",), "5 passed, 3 skipped, 2 deselected"),
        (("--soak",), "4 passed, 3 skipped, 3 deselected"),
        (("--all", "--soak"), "7 passed, 3 skipped"),
    ],
)
def test_full_and_soak_are_asked_for(sample: Path, words: tuple[str, ...], closing: str) -> None:
    done = run(sample, *words)
    assert done.returncode == 0
    assert closing in done.stdout.splitlines()[-1], done.stdout


@pytest.mark.full
def test_skips_are_counted_by_reason_above_the_closing_line(sample: Path) -> None:
    lines = run(sample).stdout.splitlines()
    assert lines[-4].strip("- ") == "skipped, by reason"
    assert lines[-3].split(maxsplit=1) == ["2", "no sshd here"]
    assert lines[-2].split(maxsplit=1) == ["1", "not on this system"]


@pytest.mark.full
def test_in_ci_a_real_part_that_is_missing_fails(sample: Path) -> None:
    done = run(sample, ci="true")
    assert done.returncode == 1
    assert "2 failed, 2 passed, 1 skipped" in done.stdout.splitlines()[-1]
    assert "no real part may be missing, but this test was skipped: no sshd here" in done.stdout
