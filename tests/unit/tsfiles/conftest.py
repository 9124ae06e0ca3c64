"""Decoders in both forms: compiled, and in Python as where no compiler is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidemark.tsfiles.decode import integers as decode_deltas
from tidemark.tsfiles.decode import integers as decode_runs
from tidemark.tsfiles.decode import pages
from tidemark.tsfiles.decode import xor as decode_xor
from tidemark.tsfiles.points import kernels as compiled

USERS = (decode_deltas, decode_runs, decode_xor, pages)


@pytest.fixture(params=["compiled", "python"])
def decoding(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs the test once with each form."""
    form: str = request.param
    if form == "python":
        none: Callable[[], None] = lambda: None  # noqa: E731
        for module in USERS:
            monkeypatch.setattr(module, "kernels", none)
    elif compiled.kernels() is None:
        pytest.skip("no C compiler")
    return form
