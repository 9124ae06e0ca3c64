"""`python -m tidemark.cli`: what the launcher starts."""

import gc
import sys

from tidemark.cli.main import main

if __name__ == "__main__":
    gc.set_threshold(100_000, 50, 50)  # of many rows it finds nothing to free, again and again: a tenth of a sync
    code = main()
    gc.freeze()  # an interpreter that ends looks through all that is left, for nothing: up to 70 ms
    sys.exit(code)
