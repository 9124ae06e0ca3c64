"""Make the text of the agent from the modules of `stores.agent`, so that both ends run the same code.

Comments, docstrings, annotations and the imports that only annotations need are cut out. Python 3.6 cannot evaluate our
annotations (it never evaluates those of names inside a function). The rest is the modules' text. `start_command` starts
the agent where python3 is found, and lists the POSIX tools where it is not: one round trip finds the tier.
"""

from __future__ import annotations

import ast
import functools
import threading
import zlib
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import NamedTuple

from tidemark.stores.agent.limits import MEMORY_BYTES

READING = ("durable", "frames", "disk", "reader", "limits", "server")
WRITING = ("block_journal", "part_file", "publisher", "writer", "appender")
FORWARDING = ("forward",)
MODULES = READING + WRITING + FORWARDING
"""What reading needs goes first and is as much as may cross at once before anything is acknowledged: it is up a round trip
sooner. What only writing needs is behind it on the way, and made into modules when something is to be written. What sends to
other nodes goes to those alone that do."""

TOOLS = ("find", "stat", "sha256sum", "head", "tail", "rm", "sync", "dd", "flock")

_PARSING = threading.Lock()
"""Two threads in `ast.parse` at once make Python 3.11 fail with "AST constructor recursion depth mismatch"."""

_MAKING = threading.Lock()

_LOAD = "import sys,zlib;r=sys.stdin.buffer;exec(zlib.decompress(r.read(int(r.readline()))))"

_START = """
import sys, zlib
def _module(name, text=""):
    module = sys.modules[name] = type(sys)(name)
    exec(compile(text, name, "exec"), module.__dict__)
    return module
def _modules(texts):
    for name, text in texts:
        setattr(agent, name, _module("tidemark.stores.agent." + name, text))
agent = [_module(name) for name in ("tidemark", "tidemark.stores", "tidemark.stores.agent")][-1]
_modules({texts!r})
agent.server.serve({root!r}, lambda packed: _modules(eval(zlib.decompress(packed).decode())), {memory})
"""


def priority_prefix(nice: int) -> str:
    """Return the start of a far end's script that lowers its priority and its children's, as far as the tools there can.

    `nice`: 1 … 19, together with the lowest best-effort I/O priority; 0: unchanged.
    """
    return f"renice -n {nice} -p $$ >/dev/null 2>&1; ionice -c 2 -n 7 -p $$ >/dev/null 2>&1; " if nice else ""


def start_command(python: bool = True, nice: int = 0) -> str:
    """Return one line for the far end's shell, whichever it is. `python=False`: only list the POSIX tools."""
    alone = "MALLOC_ARENA_MAX=1; export MALLOC_ARENA_MAX"  # an arena for each thread would count as used memory
    start = f'command -v python3 >/dev/null 2>&1 && {alone} && exec python3 -I -S -c "{_LOAD}"; ' if python else ""
    tools = "; ".join(f"command -v {tool} >/dev/null 2>&1 && printf {tool}\\ " for tool in TOOLS)
    find = 'find / -maxdepth 0 >/dev/null 2>&1 && printf maxdepth\\ ; find / -maxdepth 0 -printf "printf " 2>/dev/null'
    return f"sh -c '{priority_prefix(nice)}{start}echo tidemark posix; {tools}; {find}; echo'"


def begin_making() -> None:
    """Make the agent's text in a thread, while the caller waits for its connection: it takes as long as a round trip."""
    threading.Thread(target=_module_texts, name="tidemark-program", daemon=True).start()


def encode_program(root: str, memory: int = MEMORY_BYTES) -> tuple[bytes, bytes]:
    """Return what the agent's standard input gets: the program with the modules for reading, then those for writing. Each is
    a line with its length, then compressed text. `memory`: bytes that the agent may use; 0: no limit of ours.

    To be written one after the other: SSH delivers a packet only when all of it has come.
    """
    texts = _module_texts()
    first, rest = texts[: len(READING)], texts[len(READING) : -len(FORWARDING)]
    return _pack_text(_START.format(texts=first, root=root, memory=memory)), _pack_text(repr(rest))


def encode_forwarding() -> bytes:
    """Return the further modules, compressed, for an agent that is to send to another node."""
    return zlib.compress(repr(_module_texts()[-len(FORWARDING) :]).encode(), 9)


def _pack_text(text: str) -> bytes:
    packed = zlib.compress(text.encode(), 9)
    return b"%d\n" % len(packed) + packed


def _module_texts() -> tuple[tuple[str, str], ...]:
    with _MAKING:  # the cache alone lets two threads make the same text
        return tuple((name, _strip_module(name)) for name in MODULES)


@functools.cache
def _strip_module(name: str) -> str:
    # By importlib: on an executor the package may be in a zip file.
    text = (resources.files("tidemark.stores.agent") / f"{name}.py").read_text(encoding="utf-8")
    lines = text.encode().split(b"\n")
    for cut in sorted(_find_cuts(_parse_module(text).body), reverse=True):
        first, last = lines[cut.line - 1], lines[cut.end_line - 1]
        lines[cut.line - 1 : cut.end_line] = [
            first[: cut.column] + cut.instead + last[cut.end_column :],
            *[b""] * (cut.end_line - cut.line),  # keeps the module's line numbers in a traceback
        ]
    kept = [b"" if line.lstrip().startswith(b"#") else line for line in lines]  # no string of ours spans lines
    return b"\n".join(kept).decode()


def _parse_module(text: str) -> ast.Module:
    with _PARSING:
        try:
            return ast.parse(text)
        except SystemError:  # another library's thread was parsing
            return ast.parse(text)


class _Cut(NamedTuple):
    """A range of source text and its replacement. Lines count from 1, columns are bytes."""

    line: int
    column: int
    end_line: int
    end_column: int
    instead: bytes = b""


def _find_cuts(body: Sequence[ast.stmt], in_function: bool = False) -> Iterator[_Cut]:
    """Yield the cuts: annotations of functions and of names outside functions, imports for annotations, docstrings."""
    for node in body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):  # a docstring
            yield _Cut(node.lineno, node.col_offset, *_end_of(node), b"pass")
        elif isinstance(node, ast.FunctionDef):
            yield from _signature_cuts(node)
        elif isinstance(node, ast.AnnAssign) and not in_function:
            if node.value is None:
                yield _Cut(node.lineno, node.col_offset, *_end_of(node), b"pass")
            else:
                yield _Cut(*_end_of(node.target), node.value.lineno, node.value.col_offset, b" = ")
        elif isinstance(node, ast.ImportFrom) and node.module in ("__future__", "typing", "collections.abc"):
            yield _Cut(node.lineno, node.col_offset, *_end_of(node), b"pass")
        inside = in_function or isinstance(node, ast.FunctionDef)
        for part in ("body", "orelse", "finalbody"):
            yield from _find_cuts(getattr(node, part, None) or (), inside)
        for handler in getattr(node, "handlers", ()):
            yield from _find_cuts(handler.body, inside)


def _signature_cuts(node: ast.FunctionDef) -> Iterator[_Cut]:
    for argument in (*node.args.args, *node.args.kwonlyargs):
        if argument.annotation is not None:
            yield _Cut(argument.lineno, argument.col_offset + len(argument.arg.encode()), *_end_of(argument))
    if node.returns is not None:
        yield _Cut(node.returns.lineno, node.returns.col_offset, *_end_of(node.returns), b"None")  # valid in any Python


def _end_of(node: ast.expr | ast.stmt | ast.arg) -> tuple[int, int]:
    return int(node.end_lineno or 0), int(node.end_col_offset or 0)
