"""Root without its power over permissions, so that tests of "no permission" mean something for root too."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.services.processes import PartMissing

_VERSION_3 = 0x20080522
_OVERRIDE = (1 << 1) | (1 << 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
_GET_SECUREBITS, _SET_SECUREBITS, _NOROOT = 27, 28, 1  # NOROOT: a program that root starts is given no powers
_CALLS = {"x86_64": (125, 126), "aarch64": (90, 91)}  # capget, capset


@contextmanager
def as_anybody() -> Iterator[None]:
    """In this thread, and in what it starts, files say who may touch them. PartMissing where that cannot be had."""
    if os.geteuid() != 0:
        yield
        return
    if sys.platform != "linux" or os.uname().machine not in _CALLS:
        raise PartMissing("root cannot do without its powers here")
    read, write = _CALLS[os.uname().machine]
    libc = ctypes.CDLL(None, use_errno=True)
    head = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; then the same of the upper 32
    if libc.syscall(read, head, sets):
        raise PartMissing(f"capget: {os.strerror(ctypes.get_errno())}")
    before, bits = sets[0], libc.prctl(_GET_SECUREBITS, 0, 0, 0, 0)
    if bits < 0 or libc.prctl(_SET_SECUREBITS, bits | _NOROOT, 0, 0, 0):
        raise PartMissing(f"securebits: {os.strerror(ctypes.get_errno())}")
    sets[0] = before & ~_OVERRIDE
    if libc.syscall(write, head, sets):
        raise PartMissing(f"capset: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        sets[0] = before
        libc.syscall(write, head, sets)
        libc.prctl(_SET_SECUREBITS, bits, 0, 0, 0)
