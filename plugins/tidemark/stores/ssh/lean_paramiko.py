"""Import paramiko without `invoke`, in two thirds of the time.

paramiko needs `invoke` only for `Match exec` in an ssh_config, which is an error then. All else works without.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _hidden(name: str) -> Iterator[None]:
    """Let the import of a module fail within the block, as if it were not installed. A loaded module stays."""
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
