"""Run the command: `python -m tidemark.cli`, which the launcher starts, and the `tidemark` of an installed wheel."""

from __future__ import annotations

import gc
import os
import signal
import sys


def run() -> int:
    """Run the command line of this process; returns the exit code."""
    for number in (0, 1, 2):  # if one is closed, the next opened file (the ledger) would have its number and receive prints
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: PTH123, SIM115 for as long as the process lives
    ctrl_c = signal.getsignal(signal.SIGINT)
    if ctrl_c is not signal.SIG_IGN:  # during the imports nothing is open: Ctrl-C ends the process without a traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tidemark.native import collect_seldom

    collect_seldom()  # imports make no garbage
    from tidemark.cli.main import main
    from tidemark.spelling import find_program

    signal.signal(signal.SIGINT, ctrl_c)
    called = os.environ.pop("TIDEMARK_CALLED", "") or sys.argv[0]  # the launcher tells how it was called
    code = main(program="" if called.endswith(".py") else find_program(called))
    gc.freeze()  # spares the garbage collection at exit
    return code


if __name__ == "__main__":
    sys.exit(run())
