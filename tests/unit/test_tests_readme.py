"""tests/README.md says what is so: the tests it names are there, and every crash window of the code has its row."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
PACKAGE = ROOT / "plugins" / "tidemark"
README = TESTS / "README.md"
MARKER = "CRASH WINDOW:"
CODE = re.compile(r"`([^`]+)`")
TEST = re.compile(r"(?P<file>[\w/]+\.py)?(?P<path>(?:::\w+)+)")


def rows(*headings: str) -> Iterator[list[str]]:
    """The cells of every row of every table, or of the tables under these headings alone."""
    under = ""
    for line in README.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            under = line.lstrip("# ")
        elif line.startswith("|") and (not headings or under in headings):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def named_tests() -> Iterator[tuple[str, str]]:
    """(file below tests/, names from the outermost to the test)."""
    for row in rows():
        file = ""
        for text in CODE.findall(row[-1]):
            if found := TEST.fullmatch(text):
                file = found["file"] or file
                yield file, found["path"].removeprefix("::")


@functools.cache
def names_in(path: Path) -> frozenset[str]:
    """Functions and classes, `Class::method` too, and the test that a state machine is assigned to."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found |= {node.name} | {
                f"{node.name}::{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)
            }
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return frozenset(found)


def windows() -> set[tuple[str, str]]:
    """(module below the package, the function that a marker stands in) of every marker of the code."""
    found: set[tuple[str, str]] = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if MARKER not in text:
            continue
        body = ast.parse(text).body
        inner = [node for outer in body if isinstance(outer, ast.ClassDef) for node in outer.body]
        functions = [node for node in [*body, *inner] if isinstance(node, ast.FunctionDef)]
        for number, line in enumerate(text.splitlines(), 1):
            if MARKER in line:
                last = max((node for node in functions if node.lineno <= number), key=lambda node: node.lineno)
                found.add((path.relative_to(PACKAGE).as_posix(), last.name))
    return found


def told_windows(heading: str) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    for first, *_ in rows(heading):
        module = ""
        for text in CODE.findall(first):
            if text.endswith(".py"):
                module = text
            else:
                found.add((module, text))
    return found


def test_every_test_that_it_names_is_there() -> None:
    named = list(named_tests())
    assert len(named) > 200
    lost = [f"{file}::{name}" for file, name in named if not (TESTS / file).is_file() or name not in names_in(TESTS / file)]
    assert not lost


def test_what_it_names_is_a_test() -> None:
    assert not [name for _, name in named_tests() if not name.startswith(("test_", "Test"))]


def test_every_crash_window_has_a_row_and_every_row_a_crash_window() -> None:
    told = told_windows("Crash windows") | told_windows("Not guarded by a test")
    assert told - windows() == set(), "no such window in the code"
    assert windows() - told == set(), "write the row, with the test that dies there"


def test_every_row_of_the_crash_windows_names_a_test() -> None:
    assert not [row[0] for row in rows("Crash windows") if "`" in row[0] and not TEST.search(row[-1])]


def test_every_file_of_vectors_has_a_row_and_is_read_there() -> None:
    vectors = {path.relative_to(TESTS).as_posix() for path in (TESTS / "data").glob("*.json")}
    told = {row[0].strip("`"): row[1] for row in rows("Vectors and recorded data") if "`" in row[0]}
    assert vectors <= told.keys()
    for name in vectors:
        files = [found["file"] for text in CODE.findall(told[name]) if (found := TEST.fullmatch(text)) and found["file"]]
        assert files and all(Path(name).name in (TESTS / file).read_text(encoding="utf-8") for file in files), name


def test_every_decision_has_a_row() -> None:
    told = set(re.findall(r"\.\./docs/decisions/(\d{4}[\w-]*\.md)", README.read_text(encoding="utf-8")))
    assert told == {path.name for path in (ROOT / "docs" / "decisions").glob("0*.md")}
