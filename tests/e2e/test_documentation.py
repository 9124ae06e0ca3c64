"""README and tutorial do what they say: every shell block runs, in order, and prints the lines that stand below it.

A page's ```sh blocks run in one shell, in a copy of the checkout; the ```text block behind one holds lines of its
output, in their order. `…` stands for anything; names of runs, times and numbers of spaces may differ.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("README.md", "demo", "plugins", "dags", "sql", "spark_jobs", "tests")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DIFFERS = (r"\d{8}T\d{6}Z-[0-9a-f]{6}", r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?Z?", r"\d+\.\d s\b")
STARTS_MUCH = ("./tidemark demo", "./tidemark up")  # `full`: Airflow, Spark
END = "--- the block ends ---"
SECONDS = 1200  # that a page's blocks may take together: the demo starts Airflow and Spark, and a machine may be slow

pytestmark = pytest.mark.timeout(SECONDS + 60)


@dataclass(frozen=True)
class Block:
    """Commands of a page, and lines that they print."""

    page: str
    commands: str
    prints: tuple[str, ...]

    @property
    def starts_much(self) -> bool:
        return self.commands.startswith(STARTS_MUCH)


def blocks_of(page: str) -> list[Block]:
    found = BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))
    blocks = []
    for number, (language, text) in enumerate(found):
        if language == "sh":
            behind = found[number + 1] if number + 1 < len(found) else ("", "")
            prints = tuple(line for line in behind[1].splitlines() if line.strip()) if behind[0] == "text" else ()
            blocks.append(Block(page, text, prints))
    return blocks


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder that looks like the checkout, in which commands may write."""
    for part in PARTS:
        (tmp_path / part).symlink_to(ROOT / part)
    command = tmp_path / "tidemark"
    command.write_text(f'#!/bin/sh\nexec env PYTHONPATH="{ROOT / "plugins"}" "{sys.executable}" -P -m tidemark.cli "$@"\n')
    command.chmod(0o755)
    return tmp_path


def run(checkout: Path, blocks: list[Block]) -> list[str]:
    """What each block printed. Every command must end well."""
    script = "exec 2>&1\nset -euo pipefail\n" + "".join(f"{block.commands}\necho '{END}'\n" for block in blocks)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDEMARK_")}
    environment["EDITOR"] = str(checkout / "editor")
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=checkout,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    printed = done.stdout.split(f"{END}\n")
    assert len(printed) == len(blocks) + 1
    return printed[:-1]


def assert_prints(block: Block, output: str) -> None:
    """Each line of the page stands in the output, at its place or further on."""
    rest = plain(output).split("\n")
    for line in block.prints:
        wanted = re.compile(re.escape(plain(line)).replace("…", ".*"))
        while rest and not wanted.search(rest[0]):
            rest.pop(0)
        assert rest, f"{block.page}: {line!r} does not come (any more) in what\n{block.commands}\nprints:\n{output}"


def plain(text: str) -> str:
    for pattern in DIFFERS:
        text = re.sub(pattern, "·", text)
    return re.sub(r" +", " ", text).strip(" ")


@pytest.mark.full
def test_the_tutorial_goes_from_two_folders_to_a_proved_sync(checkout: Path) -> None:
    blocks = blocks_of("docs/tutorial.md")
    assert len(blocks) >= 8
    for block, output in zip(blocks, run(checkout, blocks), strict=True):
        assert_prints(block, output)
    assert "<html" in (checkout / "var/tutorial/coverage.html").read_text()


def test_the_commands_of_the_readme_do_what_it_says(checkout: Path) -> None:
    """`./tidemark test` collects one file of tests; what starts Airflow is run by the test below."""
    site = ROOT / "tests/data/iotdb/2.0.1-beta/data/datanode"
    shutil.copytree(site, checkout / "site", ignore=shutil.ignore_patterns("wal", "consensus"))
    edits = 's|store = "/data/iotdb"|store = "site"|; s|"system/schema"|"none"|'
    (checkout / "editor").write_text(f"#!/bin/sh\nsed -i '{edits}' \"$1\"\n")
    (checkout / "editor").chmod(0o755)
    blocks = [block for block in blocks_of("README.md") if not block.starts_much]
    assert len(blocks) == 2
    tests = next(number for number, block in enumerate(blocks) if block.commands == "./tidemark test\n")
    blocks[tests] = Block("README.md", "./tidemark test --collect-only -q tests/unit/test_errors.py\n", ("collected",))
    for block, output in zip(blocks, run(checkout, blocks), strict=True):
        assert_prints(block, output)


@pytest.mark.full
@pytest.mark.real("spark")
@pytest.mark.real("airflow")
def test_the_demo_ends_as_the_readme_shows(checkout: Path) -> None:
    (block,) = [block for block in blocks_of("README.md") if block.commands.startswith("./tidemark demo")]
    (output,) = run(checkout, [block])
    shown = [line for line in block.prints if re.match(r"\s+(windfarm|factory|Every sealed file) ", line)]
    assert len(shown) == 3
    assert_prints(Block(block.page, block.commands, tuple(line.split("  56 files")[0] for line in shown)), output)


@pytest.mark.full
@pytest.mark.real("airflow")
def test_up_starts_airflow_and_ctrl_c_stops_it(checkout: Path) -> None:
    (block,) = [block for block in blocks_of("README.md") if block.commands.startswith("./tidemark up")]
    command = f"./tidemark init && exec {block.commands.splitlines()[0].split('#')[0].strip()} --port 0"
    up = subprocess.Popen(["bash", "-c", command], cwd=checkout, stdout=subprocess.PIPE, text=True)
    assert up.stdout is not None
    try:
        said = [up.stdout.readline(), up.stdout.readline()]
        assert said[1].startswith("http://127.0.0.1:")
    finally:
        up.send_signal(signal.SIGINT)
    assert up.wait(60) in (0, 130)
