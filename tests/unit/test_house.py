"""The house rules, held by the tools that know them: style, types, layers, sizes, names (docs/architecture.md)."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests.mutate import choose_mutations

ROOT = Path(__file__).resolve().parents[2]
CODE = ("plugins", "spark_jobs", "dags", "demo", "bench", "tests")
LONGEST = 600
LONGEST_TEST = 500
WIDEST = 12  # names in a folder; the root is the table of contents
NAMELESS = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "managers", "tools", "stuff"}
OPENS_ITSELF = {
    "untrusted_files": "the door",
    "stores/agent/durable": "the agent's door, `open_regular`; folders; writes",
    "stores/agent/disk": "folders",
    "stores/agent/part_file": "makes new files",
    "stores/local": "makes new files",
    "tsfiles/layout/bytes": "the other door: a file that the user names, which must be a regular one",
    "tsfiles/spark/dataset": "a folder that the user names",
    "tsfiles/spark/sink": "a folder that the user names",
    "tsfiles/write/writer": "writes",
    "changes/connection/files": "binary logs that the operator names",
    "changes/connection/login": "a password file that the operator names",
    "changes/delivery/http/tokens": "a file that the operator names",
    "changes/store/disk": "its own indexes, mapped into memory",
    "changes/delivery/export": "writes where the user says",
    "changes/delivery/lines": "writes where the user says",
    "cli/failure": "its own report of a failure",
    "cli/log": "a log that the user names",
    "cli/screen": "writes a page where the user says",
    "cli/verbs/checkout": "files of this checkout",
    "cli/verbs/setup": "the settings",
    "cli/verbs/transfer": "a plan that the user names",
    "settings/document": "the settings",
    "receiver/iotdb/load": "a password file that the operator names",
    "sync/adopt": "a folder that the operator names",
    "engines/java": "a program that it wrote",
    "engines/spark": "tasks and results in a folder of its own; its own log",
    "engines/worker": "its own standard output",
    "spark_jobs/tasks": "a pipe that its caller made",
    "receiver/remote_tasks": "files in a scratch folder of its own",
    "proof/verify/deep": "writes copies into a scratch folder of its own",
    "operations/rebuild/rebuild": "its own lock",
    "ledger/backup": "a copy of the ledger that it made",
    "ledger/migrations": "SQL of this package",
    "ledger/sql": "SQL of this package",
    "native": "C of this package",
    "stores/python/bundle": "Python of this package",
    "orchestration/settings": "its own copy of the settings",
    "orchestration/deployment/deployment": "Airflow's folder, which no edge reaches",
    "orchestration/deployment/home": "Airflow's folder, which no edge reaches",
    "orchestration/deployment/part_starter": "Airflow's folder, which no edge reaches",
    "orchestration/deployment/parts": "Airflow's folder, which no edge reaches",
}
"""Modules that may open files past `untrusted_files` and `durable.open_regular`, and what they open."""


def modules(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def run(*words: str) -> None:
    """The tool must end well; its words are the failure's message."""
    done = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}{done.stderr}"


def test_ruff_finds_nothing() -> None:
    run("ruff", "check", "--quiet", ".", "tidemark")


def test_the_code_is_formatted() -> None:
    run("ruff", "format", "--check", "--quiet", ".", "tidemark")


@pytest.mark.full
@pytest.mark.timeout(600)
def test_types_hold_in_strict_mode() -> None:
    run("mypy")


def test_imports_point_down_only() -> None:
    program = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    environment = {"PYTHONPATH": str(ROOT / "plugins"), "PATH": "/usr/bin:/bin", "HOME": str(ROOT / "var")}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def find_faults(paths: Iterable[Path], judge: Callable[[Path], Iterator[str]]) -> list[str]:
    """What `judge` says of each module. All modules of a rule are one test: two thousand tests of one assertion each cost
    more than their assertions."""
    return [f"{path.relative_to(ROOT)}: {fault}" for path in paths for fault in judge(path)]


def test_a_module_has_one_subject_and_a_name_that_says_it() -> None:
    assert not find_faults(modules(*CODE), _judge_size_and_name)


def _judge_size_and_name(path: Path) -> Iterator[str]:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    if lines > (LONGEST_TEST if path.is_relative_to(ROOT / "tests") else LONGEST):
        yield f"{lines} lines: split it by subject (docs/architecture.md)"
    if path.stem in NAMELESS:
        yield "its name says nothing"
    bare = path.parent in (ROOT / "plugins", ROOT / "dags", ROOT / "spark_jobs")  # what can be imported without a package
    if bare and path.stem in sys.stdlib_module_names:
        yield "it hides a module of Python's own"


def test_no_folder_is_wider_than_what_one_look_takes_in() -> None:
    root = ROOT / "plugins/tidemark"
    folders = [folder for folder in root.rglob("*") if folder.is_dir() and folder.name != "__pycache__"]
    wide = {str(folder.relative_to(root)): sorted(_names_in(folder)) for folder in folders}
    assert not {folder: names for folder, names in wide.items() if len(names) > WIDEST}


def _names_in(folder: Path) -> set[str]:
    packages = {path.name for path in folder.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    return {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"} | packages


def test_every_module_says_what_it_is_for() -> None:
    assert not find_faults(modules("plugins", "spark_jobs", "dags"), _judge_beginning)


def _judge_beginning(path: Path) -> Iterator[str]:
    if not re.match(r'(\s*#.*\n)*\s*r?"', path.read_text(encoding="utf-8")):
        yield "begin with a docstring"


def test_a_dag_file_is_wiring_only() -> None:
    found = [path for path in modules("dags") if not path.name.startswith("__")]
    assert found and not find_faults(found, _judge_dag_file)


def _judge_dag_file(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    if len(text.splitlines()) > 80:
        yield "more than 80 lines"
    imported = {name.split(".")[0] for name in _imports(ast.parse(text))}
    yield from (f"imports {name}" for name in imported & {"pyspark", "paramiko", "pandas", "sqlalchemy"})


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@pytest.mark.real("airflow")
def test_airflow_does_not_import_our_package_as_plugins() -> None:
    """Airflow imports every module under plugins/ by its bare name unless plugins/.airflowignore names it."""
    program = (
        "import sys; from airflow._shared.module_loading.file_discovery import find_path_from_directory as walk;"
        "print(*walk(sys.argv[1], '.airflowignore', 'glob'), sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(ROOT / "plugins")], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    seen = [Path(line) for line in done.stdout.splitlines() if line.endswith(".py")]
    assert not [path for path in seen if (ROOT / "plugins" / "tidemark") in path.parents]


def test_what_others_may_write_is_opened_by_one_door() -> None:
    """A FIFO, a link or a terabyte may lie in every place of a landing, the catalog, a node or a site."""
    assert not find_faults(modules("plugins/tidemark", "spark_jobs"), _judge_openings)


def _judge_openings(path: Path) -> Iterator[str]:
    name = path.relative_to(ROOT).with_suffix("").as_posix().removeprefix("plugins/tidemark/")
    found = [ast.unparse(call) for call in _openings(ast.parse(path.read_text(encoding="utf-8")))]
    if name not in OPENS_ITSELF:
        yield from (f"open it by tidemark.untrusted_files (the agent: by durable.open_regular): {call}" for call in found)
    elif not found:
        yield "it opens nothing any more: take it out of the list"


def test_every_module_that_opens_by_itself_is_there() -> None:
    there = {path.relative_to(ROOT).with_suffix("").as_posix() for path in modules("plugins", "spark_jobs")}
    assert OPENS_ITSELF.keys() <= {name.removeprefix("plugins/tidemark/") for name in there}


OPENING = [
    "open(p)",
    "io.open(p)",
    "os.open(p, os.O_RDONLY)",
    "Path(p).open('rb')",
    "self.place.read_text()",
    "place.write_bytes(b'')",
    "os.fdopen(handle)",
    "FileIO(p)",
    "io.FileIO(p, 'rb')",
    "np.memmap(p)",
    "mmap.mmap(handle, 0)",
    "shutil.copyfile(p, q)",
    "shutil.copy2(p, q)",
    "shutil.move(p, q)",
]
HARMLESS = [
    "os.open(p, os.O_RDONLY | os.O_DIRECTORY)",
    "os.open(p, os.O_WRONLY | os.O_CREAT | os.O_EXCL)",
    "open('/proc/self/statm')",
    "Path(f'/proc/{pid}/stat').read_text()",
    "open(os.devnull, 'w')",
    "self.disk.open(path)",
    "durable.open_regular(place, os.O_RDONLY)",
    "UntrustedFile(root, path).open_file()",
    "Cluster.open(app, receiver)",
    "running.copy()",
]


@pytest.mark.parametrize("text", OPENING)
def test_the_rule_of_the_door_knows_every_way_to_open(text: str) -> None:
    assert list(_openings(ast.parse(text)))


@pytest.mark.parametrize("text", HARMLESS)
def test_the_rule_of_the_door_lets_pass_what_opens_nothing_of_others(text: str) -> None:
    assert not list(_openings(ast.parse(text)))


_OPENS = {"open", "open_code", "fdopen", "FileIO", "fromfile", "memmap", "mmap"}
_OPENS |= {"read_bytes", "read_text", "write_bytes", "write_text"}
_NOT_THEIRS = ("O_DIRECTORY", "O_EXCL", "'/proc/", "os.devnull")  # a folder, a new file, the system's own


def _openings(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _opens(node.func):
            text = ast.unparse(node)
            if not any(harmless in text for harmless in _NOT_THEIRS):
                yield node


def _opens(called: ast.expr) -> bool:
    if isinstance(called, ast.Name):
        return called.id in _OPENS
    if not isinstance(called, ast.Attribute):
        return False
    if isinstance(called.value, ast.Name) and called.value.id == "shutil":
        return called.attr.startswith("copy") or called.attr == "move"
    if called.attr != "open":
        return called.attr in _OPENS
    return ast.unparse(called.value).rpartition(".")[2] not in ("Cluster", "disk", "_disk")


def test_no_text_names_a_place_that_only_one_machine_has() -> None:
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False).stdout
    if not tracked:
        pytest.skip("not a git checkout")
    places = re.compile(rb"/(?:root|work)/[a-z.]|/home/[a-z]+/")
    offenders = []
    for name in tracked.decode().split("\0"):
        path = ROOT / name
        if name and path.is_file() and not name.startswith("tests/data/") and places.search(path.read_bytes()):
            offenders.append(name)
    assert not offenders


def test_every_pure_module_can_be_mutated() -> None:
    """`tests/mutate.py` is started by hand, so a move would go unnoticed."""
    assert len(choose_mutations(40, 1)) == 40
