"""`python -m tidemark.cli`: what the launcher starts."""

from __future__ import annotations

import gc
import os
import signal
import sys

if __name__ == "__main__":
    for number in (0, 1, 2):  # where one is closed, the next file that is opened, the ledger, would be what a print goes to
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: PTH123, SIM115 for as long as we live
    ctrl_c = signal.getsignal(signal.SIGINT)
    if ctrl_c is not signal.SIG_IGN:  # before there is anything to close, it ends us as SIGTERM does, without a traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tidemark.cli.main import main
    from tidemark.native import collect_seldom

    signal.signal(signal.SIGINT, ctrl_c)
    collect_seldom()
    code = main()
    gc.freeze()  # an interpreter that ends looks through all that is left, for nothing: up to 70 ms
    sys.exit(code)
