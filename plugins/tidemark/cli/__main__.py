"""`python -m tidemark.cli`: what the launcher starts."""

import gc
import signal
import sys

if __name__ == "__main__":
    ctrl_c = signal.getsignal(signal.SIGINT)
    if ctrl_c is not signal.SIG_IGN:  # before there is anything to close, it ends us as SIGTERM does, without a traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tidemark.cli.main import main
    from tidemark.collector import look_seldom

    signal.signal(signal.SIGINT, ctrl_c)
    look_seldom()
    code = main()
    gc.freeze()  # an interpreter that ends looks through all that is left, for nothing: up to 70 ms
    sys.exit(code)
