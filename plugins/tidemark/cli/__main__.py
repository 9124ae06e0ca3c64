"""`python -m tidemark.cli`: what the launcher starts."""

import gc
import sys

from tidemark.cli.main import main
from tidemark.collector import look_seldom

if __name__ == "__main__":
    look_seldom()
    code = main()
    gc.freeze()  # an interpreter that ends looks through all that is left, for nothing: up to 70 ms
    sys.exit(code)
