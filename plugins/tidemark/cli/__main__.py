"""`python -m tidemark.cli`: what the launcher starts."""

import sys

from tidemark.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
