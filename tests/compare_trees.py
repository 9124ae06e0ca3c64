"""Proof of a move: every function, class and constant of the tree before stands once in the tree after, with the same body.

    python -m tests.compare_trees BEFORE AFTER MOVES.json

BEFORE and AFTER are folders that hold `plugins/tidemark`; MOVES.json says where modules went (`moves`), which names went
elsewhere than the rest of their module (`carved`) and which have another name (`renamed`). Two bodies are the same when
their syntax trees are, after each name that an import or the module itself brings is replaced by the place where it is
defined, and without docstrings and the imports themselves. What differs is printed, a line each.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_MODULE = re.compile(r"tidemark(?:[./]\w+)*(?::\w+)?")


@dataclass
class Moves:
    """Where things are after. Modules are dotted names below `tidemark`."""

    modules: Mapping[str, str] = field(default_factory=dict)
    carved: Mapping[str, str] = field(default_factory=dict)  # "module:name" → module
    renamed: Mapping[str, str] = field(default_factory=dict)  # "module:name" → name

    def place(self, module: str, name: str) -> str:
        """`module:name` as it is after."""
        old = f"{module}:{name}"
        return f"{self.carved.get(old, self.modules.get(module, module))}:{self.renamed.get(old, name)}"


class Tree:
    """The modules below a folder, and what each defines at its top."""

    def __init__(self, root: Path, moves: Moves) -> None:
        self._moves = moves
        package = root / "plugins" / "tidemark"
        self._trees = {
            _dotted(path.relative_to(package)): ast.parse(path.read_text("utf-8")) for path in package.rglob("*.py")
        }

    def definitions(self) -> Iterator[tuple[str, str]]:
        """(`module:name` as it is after, the body in canonical form) of each name."""
        for module, tree in self._trees.items():
            known = self._imports(tree)
            known |= {name: f"{module}:{name}" for node in tree.body for name in _names(node)}
            for node in tree.body:
                for name in _names(node):
                    yield self._after(f"{module}:{name}"), self._canonical(node, known)

    def _imports(self, tree: ast.AST) -> dict[str, str]:
        """Local name → `module` or `module:name`, of what is ours."""
        found = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tidemark":
                above = (node.module or "").removeprefix("tidemark").removeprefix(".")
                for alias in node.names:
                    whole = f"{above}.{alias.name}".removeprefix(".")
                    found[alias.asname or alias.name] = whole if whole in self._trees else f"{above}:{alias.name}"
        return found

    def _after(self, place: str) -> str:
        module, mark, name = place.partition(":")
        return self._moves.place(module, name) if mark else self._moves.modules.get(module, module)

    def _canonical(self, node: ast.stmt, known: Mapping[str, str]) -> str:
        mine = set(_bound(node)) - set(_names(node))
        known = {local: place for local, place in known.items() if local not in mine}
        copied = ast.parse(ast.unparse(node)).body[0]
        if isinstance(copied, ast.FunctionDef | ast.ClassDef):
            copied.name = ""  # it stands in the key
        return ast.dump(_Canonical(known, self._after).visit(copied))


class _Canonical(ast.NodeTransformer):
    """Names by the places of what they name; no docstrings, no imports of ours, no names of modules in strings."""

    def __init__(self, known: Mapping[str, str], after: object) -> None:
        self._known, self._after = known, after

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self._after(self._known[node.id]), node.ctx) if node.id in self._known else node  # type: ignore[operator]

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.value, ast.Name) and ":" not in (place := self._known.get(node.value.id, ":")):
            return ast.Name(self._after(f"{place}:{node.attr}"), node.ctx)  # type: ignore[operator]
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant(_MODULE.sub("*", node.value)) if isinstance(node.value, str) else node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._block(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._block(node)

    def _block(self, node: ast.FunctionDef | ast.ClassDef) -> ast.AST:
        self.generic_visit(node)
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:]
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        return None if (node.module or "").split(".")[0] == "tidemark" else node


def _bound(node: ast.AST) -> Iterator[str]:
    """Names that something inside binds for itself."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.arg):
            yield inner.arg
        elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            yield inner.id
        elif isinstance(inner, ast.FunctionDef | ast.ClassDef | ast.ExceptHandler | ast.MatchAs) and inner is not node:
            yield inner.name or ""


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []


def _dotted(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix("__init__").removesuffix(".")


def main(before: str, after: str, told: str) -> int:
    said = json.loads(Path(told).read_text("utf-8"))
    old: dict[str, list[str]] = defaultdict(list)
    new: dict[str, list[str]] = defaultdict(list)
    for place, body in Tree(Path(before), Moves(said["moves"], said["carved"], said["renamed"])).definitions():
        old[place].append(body)
    for place, body in Tree(Path(after), Moves()).definitions():
        new[place].append(body)
    lost = sorted(set(old) - set(new))
    made = sorted(set(new) - set(old))
    changed = sorted(place for place in set(old) & set(new) if set(old[place]) != set(new[place]) or len(new[place]) > 1)
    for what, places in (("lost", lost), ("new", made), ("changed", changed)):
        for place in places:
            print(f"{what}: {place}")
    print(f"{len(old)} names before, {len(new)} after: {len(lost)} lost, {len(made)} new, {len(changed)} with another body")
    return 1 if lost or made else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
