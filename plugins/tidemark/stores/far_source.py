"""Make the text of the far end's program out of our own modules, so that both ends run the same lines.

Annotations, docstrings and `__future__` imports are taken out (Python 3.6 cannot evaluate ours), the rest is what stands
in the modules. `command` starts it when python3 is there, and says which POSIX tools there are when it is not: one round
trip finds the tier.
"""

from __future__ import annotations

import ast
import functools
import threading
import zlib
from pathlib import Path

MODULES = ("durable", "disk", "far_program")
TOOLS = ("find", "stat", "sha256sum", "head", "tail", "rm", "sync")

_PARSING = threading.Lock()
"""Two threads in `ast.parse` at once make Python 3.11 fail with "AST constructor recursion depth mismatch"."""

_LOAD = "import sys,zlib;r=sys.stdin.buffer;exec(zlib.decompress(r.read(int(r.readline()))))"

_START = """
import sys
def _module(name, text=""):
    module = sys.modules[name] = type(sys)(name)
    exec(compile(text, name, "exec"), module.__dict__)
    return module
tidemark, stores = _module("tidemark"), _module("tidemark.stores")
for _name, _text in {texts!r}:
    setattr(stores, _name, _module("tidemark.stores." + _name, _text))
stores.far_program.serve({root!r})
"""


def command(python: bool = True) -> str:
    """One line for the far end's shell, whichever it is. `python=False` asks for the POSIX tools alone."""
    start = f'command -v python3 >/dev/null 2>&1 && exec python3 -I -S -c "{_LOAD}"; ' if python else ""
    tools = "; ".join(f"command -v {tool} >/dev/null 2>&1 && printf {tool}\\ " for tool in TOOLS)
    printf = 'find / -maxdepth 0 -printf "printf " 2>/dev/null'
    return f"sh -c '{start}echo tidemark posix; {tools}; {printf}; echo'"


def program(root: str) -> bytes:
    """What follows on the program's standard input: its length in a line, then itself, compressed."""
    text = _START.format(texts=[(name, _bare(name)) for name in MODULES], root=root)
    packed = zlib.compress(text.encode(), 9)
    return b"%d\n" % len(packed) + packed


@functools.cache
def _bare(name: str) -> str:
    text = (Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8")
    with _PARSING:
        try:
            tree = ast.parse(text)
        except SystemError:  # somebody else's thread was parsing
            tree = ast.parse(text)
        return ast.unparse(ast.fix_missing_locations(_Bare().visit(tree)))


class _Bare(ast.NodeTransformer):
    """Takes annotations, docstrings, `__future__` and `typing` imports out."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        for argument in (*node.args.args, *node.args.kwonlyargs):
            argument.annotation = None
        return self._without_docstring(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._without_docstring(node)

    def visit_Module(self, node: ast.Module) -> ast.AST:
        return self._without_docstring(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        self.generic_visit(node)
        return ast.Assign(targets=[node.target], value=node.value) if node.value else None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        return None if node.module in ("__future__", "typing", "collections.abc") else node

    def _without_docstring(self, node: ast.FunctionDef | ast.ClassDef | ast.Module) -> ast.AST:
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        self.generic_visit(node)
        return node
