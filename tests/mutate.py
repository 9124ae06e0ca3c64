"""Does the default suite notice a wrong decision? Mutate the pure deciders and the durable writes, and run the tests.

    python -m tests.mutate [--count 60] [--seed 1] [--list] [--near] [--only MODULE]

Each mutation is one change of one line: a comparison or a condition is turned round, `and` becomes `or`, a bound moves by
one, a result is dropped, a sync or a rename is left out or comes too early. The mutated tree is a copy; this checkout stays
as it is. Test files that import the module run first, then those that import its package, then its room, then the default
suite; the first failure ends it. With `--near` the default suite is left out: what is caught then is a lower bound.
A mutation that no test notices is printed with its line: it is a missing test, or code that is not needed.

Run by hand: sixty mutations take an hour or two. Not guaranteed: a mutation may be equivalent to the code of before.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PURE = "what says that it is pure touches no clock, no file, no thread and no database"  # the contract's name
DURABLE = ("tidemark.stores.agent.durable",)
NOT_COPIED = ("var", "site", "build", "dist")  # made here, not part of the project
SUITE_SECONDS = 1200  # a mutation that hangs is noticed, too

_OPPOSITE = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}


@dataclass(frozen=True)
class Mutation:
    """`text` instead of what stands between two places of a module's source. `what` says it to a person."""

    module: str
    line: int
    start: int  # characters from the module's beginning
    end: int
    text: str
    what: str


def modules_to_mutate() -> tuple[list[str], tuple[str, ...]]:
    """The pure modules of the import contracts, with those of pure packages, and those that make bytes durable."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [pure] = [contract["source_modules"] for contract in contracts if contract["name"] == PURE]
    return [module for name in pure for module in _modules_of(name)], DURABLE


def _modules_of(name: str) -> list[str]:
    package = ROOT / Path("plugins", *name.split("."))
    return [f"{name}.{file.stem}" for file in sorted(package.glob("[!_]*.py"))] if package.is_dir() else [name]


def path_of(module: str) -> Path:
    return Path("plugins", *module.split(".")).with_suffix(".py")


def mutations_of(module: str, durable: bool = False) -> list[Mutation]:
    """All mutations of a module. `durable`: also statements left out, and neighbours in the other order."""
    source = (ROOT / path_of(module)).read_text()
    return list(_Finder(module, source).find(durable))


class _Finder:
    def __init__(self, module: str, source: str) -> None:
        self.module, self.source = module, source
        self.lines = source.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))

    def find(self, durable: bool) -> Iterator[Mutation]:
        tree = ast.parse(self.source)
        for node in ast.walk(tree):
            if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _OPPOSITE:
                new = _OPPOSITE[type(node.ops[0])]
                yield self._between(node.left, node.comparators[0], f" {new} ", f"compares by {new}")
            elif isinstance(node, ast.BoolOp) and len(node.values) == 2:
                new = "or" if isinstance(node.op, ast.And) else "and"
                left, right = node.values
                yield self._between(left, right, f" {new} ", f"{new} instead")
            elif isinstance(node, ast.If | ast.IfExp):
                yield self._replace(node.test, f"(not ({self._text(node.test)}))", "the condition is turned round")
            elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
                if isinstance(node.value, ast.Compare | ast.BoolOp):
                    yield self._replace(node.value, f"(not ({self._text(node.value)}))", "the answer is turned round")
            elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
                new = "-" if isinstance(node.op, ast.Add) else "+"
                if isinstance(node.right, ast.Constant) and isinstance(node.right.value, int):
                    yield self._between(node.left, node.right, f" {new} ", f"{new} instead")
            if durable and (block := getattr(node, "body", None)) and isinstance(block, list):
                yield from self._statements(block)

    def _statements(self, block: Sequence[ast.stmt]) -> Iterator[Mutation]:
        for one, other in zip(block, [*block[1:], None], strict=True):
            if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Call)):
                continue
            yield self._replace(one, "pass", "left out")
            if isinstance(other, ast.Expr) and isinstance(other.value, ast.Call):
                swapped = f"{self._text(other)}\n{' ' * one.col_offset}{self._text(one)}"
                yield Mutation(
                    self.module, one.lineno, self._start(one), self._end(other), swapped, "comes after what follows it"
                )

    def _start(self, node: ast.AST) -> int:
        return self._offset(node.lineno, node.col_offset)  # type: ignore[attr-defined]

    def _end(self, node: ast.AST) -> int:
        return self._offset(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def _offset(self, line: int, column: int) -> int:
        """`column` is in bytes of UTF-8, as `ast` counts."""
        return self.starts[line - 1] + len(self.lines[line - 1].encode()[:column].decode())

    def _text(self, node: ast.AST) -> str:
        return self.source[self._start(node) : self._end(node)]

    def _replace(self, node: ast.AST, text: str, what: str) -> Mutation:
        return Mutation(self.module, node.lineno, self._start(node), self._end(node), text, what)  # type: ignore[attr-defined]

    def _between(self, left: ast.AST, right: ast.AST, text: str, what: str) -> Mutation:
        """The operator between two operands. Brackets around an operand are kept."""
        start, end = self._end(left), self._start(right)
        before = self.source[start:end]
        opened = "(" * before.count("(")
        closed = ")" * before.count(")")
        return Mutation(self.module, left.lineno, start, end, closed + text + opened, what)  # type: ignore[attr-defined]


def choose_mutations(count: int, seed: int, only: str = "") -> list[Mutation]:
    """`count` of all, by chance; a quarter of them of the durable writes. Each changes what Python compiles."""
    pure, durable = modules_to_mutate()
    chance = random.Random(seed)
    of_pure = [m for module in pure if only in module for m in mutations_of(module)]
    of_durable = [m for module in durable if only in module for m in mutations_of(module, True)]
    chance.shuffle(of_pure)
    chance.shuffle(of_durable)
    fourth = min(count // 4, len(of_durable))
    return sorted([*of_durable[:fourth], *of_pure[: count - fourth]], key=lambda one: (one.module, one.start))


def mutated_source(one: Mutation, root: Path = ROOT) -> str:
    source = (root / path_of(one.module)).read_text()
    changed = source[: one.start] + one.text + source[one.end :]
    ast.parse(changed)
    return changed


def copy_tree(to: Path) -> None:
    """A checkout in which files may change. The packages are those of this one."""
    for path in ROOT.iterdir():
        if path.is_dir() and not path.name.startswith(".") and path.name not in NOT_COPIED:
            shutil.copytree(path, to / path.name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        elif path.is_file():
            shutil.copy2(path, to / path.name)
    (to / ".venv").symlink_to(Path(sys.prefix))


def tests_that_import(root: Path, *wanted: str) -> list[str]:
    """Files of tests in which one of the texts stands, from the fast rooms first."""
    files = (path for room in ("unit", "property", "crash") for path in sorted((root / "tests" / room).rglob("test_*.py")))
    return [str(path.relative_to(root)) for path in files if any(one in path.read_text() for one in wanted)]


def is_caught(root: Path, module: str, near: bool = False) -> str:
    """The test that notices, or "" where none does. `near`: no test of another room is asked."""
    package, _, name = module.rpartition(".")
    room = f"tests/unit/{module.split('.')[1]}"
    of_module = tests_that_import(root, module, f"from {package} import {name}")
    of_package = [path for path in tests_that_import(root, package) if path not in of_module]
    for words in (of_module, of_package, [room] if (root / room).is_dir() else [], [] if near else ["tests"]):
        if words and (failed := _first_failure(root, words)):
            return failed
    return ""


def _first_failure(root: Path, words: Sequence[str]) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", "--tb=no", "-rfE"]
    processes = ["--numprocesses", str(os.cpu_count() or 1), "--dist", "loadfile"] if len(words) == 1 else []
    environment = os.environ | {"PYTHONPATH": str(root / "plugins"), "HYPOTHESIS_SEED": "0"}
    try:
        done = subprocess.run(
            [*command, *processes, *words],
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SUITE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "it hangs"
    if done.returncode == 0:
        return ""
    told = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return told[0] if told else done.stdout[-300:]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="part of a module's name")
    parser.add_argument("--list", action="store_true", help="say which, and run nothing")
    parser.add_argument("--near", action="store_true", help="run no test of another room")
    asked = parser.parse_args(words)
    chosen = choose_mutations(asked.count, asked.seed, asked.only)
    caught = 0
    with tempfile.TemporaryDirectory(prefix="tidemark-mutate-") as folder:
        root = Path(folder)
        if not asked.list:
            copy_tree(root)
        for number, one in enumerate(chosen, 1):
            place = f"{path_of(one.module)}:{one.line}"
            if asked.list:
                print(f"{number:3} {place}: {one.what}")
                continue
            target = root / path_of(one.module)
            before = target.read_text()
            target.write_text(mutated_source(one))
            by = is_caught(root, one.module, asked.near)
            target.write_text(before)
            caught += bool(by)
            print(f"{number:3} {'caught ' if by else 'MISSED '} {place}: {one.what}   {by}", flush=True)
    if not asked.list:
        print(f"{caught} of {len(chosen)} mutations are caught")
    return 0


if __name__ == "__main__":
    sys.exit(main())
