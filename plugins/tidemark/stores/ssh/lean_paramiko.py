"""paramiko, loaded in two thirds of the time: without `invoke`, which it wants for `Match exec` in an ssh_config alone.

Nobody here reads an ssh_config. paramiko itself does without where invoke is not installed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _hidden(name: str) -> Iterator[None]:
    """Within the block, importing the module fails as if it were not installed; one that is loaded stays."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]


with _hidden("invoke"):
    import paramiko

__all__ = ["paramiko"]
