"""The documentation is whole: the site builds without a warning, pages are those of the code, links lead somewhere."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest

from docs.make import pictures, settings_page, verb_pages
from tidemark.cli.main import VERBS, parse_words

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:\./|/opt/tidemark/bin/)?tidemark ")
LINK = re.compile(r"\]\(([^)\s]+)\)")
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md"]
ELSEWHERE = re.compile(r"""<(?:script|link|img|iframe)[^>]*(?:src|href)="(?:https?:)?//""")


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not here: ./tidemark --ensure docs")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    assert (done.returncode, said.strip()) == (0, ""), said
    return folder


@pytest.mark.full
@pytest.mark.real("mkdocs")
def test_the_site_builds_without_a_warning(site: Path) -> None:
    assert (site / "index.html").exists()


@pytest.mark.real("mkdocs")
def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 60
    assert not [page for page in pages if ELSEWHERE.search(page.read_text(encoding="utf-8"))]


def test_every_verb_has_a_page_with_its_options() -> None:
    assert {page.stem for page in verb_pages.PAGES.glob("*.md")} - {"index"} == set(VERBS)
    for verb in VERBS:
        text = (verb_pages.PAGES / f"{verb}.md").read_text(encoding="utf-8")
        assert (
            verb_pages.filled(text, lambda place, verb=verb: verb_pages.help_of(verb) if place == "help" else None) == text
        ), "run python -m docs.make.verb_pages --help-only"
    assert (verb_pages.PAGES / "index.md").read_text(encoding="utf-8") == verb_pages.index()


def test_every_output_that_a_page_shows_was_made() -> None:
    empty = re.compile(r"<!-- shown: [\w-]+ -->\n<!-- end -->")
    assert not [page for page in verb_pages.PAGES.glob("*.md") if empty.search(page.read_text(encoding="utf-8"))]


def test_the_page_of_settings_is_that_of_the_code() -> None:
    assert settings_page.PAGE.read_text(encoding="utf-8") == settings_page.page(), "run python -m docs.make.settings_page"


@pytest.mark.parametrize("draw", pictures.PICTURES, ids=lambda draw: draw.__name__)
def test_pictures_are_those_that_are_drawn(draw: pictures.Draw) -> None:
    path = pictures.FOLDER / f"{draw.__name__}.svg"
    assert path.read_text(encoding="utf-8") == draw().svg(), "run python -m docs.make.pictures"


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "tests/README.md", "tests/data/README.md"])
def test_links_of_pages_outside_of_the_site_lead_somewhere(name: str) -> None:
    page = ROOT / name
    found = [link.split("#")[0] for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
    assert not [link for link in found if link and not (page.parent / link).exists()]


def commands_of(block: str) -> list[list[str]]:
    """The command lines of ours in a block for a shell, as words."""
    lines = block.replace("\\\n", " ").splitlines()
    found = [shlex.split(line, comments=True) for line in lines if COMMAND.match(line)]
    return [
        words[1 : min([at for at, word in enumerate(words) if word in ("|", "&&", ">")], default=None)] for words in found
    ]


@pytest.mark.parametrize("page", [page for page in PAGES if BLOCK.search(_text(page))], ids=lambda page: page.name)
def test_every_block_for_a_shell_is_valid(page: Path) -> None:
    for block in BLOCK.findall(_text(page)):
        said = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True, check=False)
        assert said.returncode == 0, f"{block}\n{said.stderr}"
        for words in commands_of(block):
            if "--ensure" not in words:
                parse_words(words)


def test_what_pages_and_messages_name_is_there() -> None:
    """Files of the checkout that pages name in backquotes, and pages that the code names in hints and docstrings."""
    named = {path: re.findall(r"`((?:tests|bench|demo|docs|sql)/[\w/.-]+\.\w+)`", _text(path)) for path in PAGES}
    code = [*(ROOT / "plugins").rglob("*.py"), *(ROOT / "dags").glob("*.py")]
    named |= {path: re.findall(r"docs/[\w/-]+\.md", _text(path)) for path in code}
    assert not [
        (str(path.relative_to(ROOT)), name) for path, names in named.items() for name in names if not (ROOT / name).exists()
    ]


def test_only_the_architecture_names_modules() -> None:
    package = ROOT / "plugins" / "tidemark"
    modules = {
        path.relative_to(package).with_suffix("").as_posix() for path in package.rglob("*.py") if path.parent != package
    }
    found = []
    for page in PAGES:
        if not page.name.startswith("architecture"):
            names = re.findall(r"`(?:tidemark[./])?([a-z_]+(?:[./][a-z_]+)+?)(?:\.py)?`", _text(page))
            found += [f"{page.name}: {name}" for name in names if name.replace(".", "/") in modules]
    assert not found


def test_modules_that_the_architecture_names_are_there() -> None:
    package = ROOT / "plugins" / "tidemark"
    found = []
    for name in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", _text(DOCS / "architecture.md")):
        place = package / name.replace(".", "/")
        if (package / name.split(".")[0]).is_dir() and not place.is_dir() and not place.with_suffix(".py").exists():
            found.append(name)
    assert not found


def test_the_tree_of_the_architecture_is_that_of_the_code() -> None:
    package = ROOT / "plugins" / "tidemark"
    lines = _text(DOCS / "architecture.md").split("\ntidemark/ ")[1].split("\n```")[0].splitlines()[1:]
    folders, found = [package], []
    for line in lines:
        depth = (len(line) - len(line.lstrip())) // 2
        names = list(takewhile(re.compile(r"\w+(\.py|/)").fullmatch, line.split()))
        del folders[depth:]
        found += [name for name in names if not (folders[-1] / name).exists()]
        folders.append(folders[-1] / names[0])
    assert len(lines) > 50
    assert not found


def test_the_docstring_of_a_package_lists_its_modules() -> None:
    missing = []
    for path in (ROOT / "plugins" / "tidemark").rglob("__init__.py"):
        text = ast.get_docstring(ast.parse(_text(path))) or ""
        inside = {module.stem for module in path.parent.glob("*.py")} | {
            one.parent.name for one in path.parent.glob("*/__init__.py")
        }
        missing += [f"{path.parent.name}: {name}" for name in inside - {"__init__"} if not re.search(rf"\b{name}\b", text)]
    assert not missing
