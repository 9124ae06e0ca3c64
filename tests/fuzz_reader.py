"""Feed one of Tidemark's readers with mutations that atheris (libFuzzer) guides by the branches that they reach.

    python -m tests.fuzz_reader KIND CORPUS SECONDS

CORPUS is a folder of inputs: sound ones to begin with; inputs that reach something new are added. The exit code is not 0
once an input raises what is no error of Tidemark, takes more than MEMORY over what the process began with, or hangs. The
input then lies beside the corpus, and its traceback is printed.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import atheris  # type: ignore[import-untyped,unused-ignore]

with atheris.instrument_imports(include=["tidemark"]):
    from tests.hostile_reader import MEMORY, outcome, read_settings

SECONDS = 60  # an input; counting branches makes a reader several times slower
MOST_BYTES = 1 << 20  # an input


def main(kind: str, corpus: str, seconds: str) -> None:
    def read(data: bytes) -> None:
        error = outcome(kind, data)
        if error:
            raise AssertionError(error)

    read_settings(b"")  # what is imported late is there before memory is measured
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    words = [
        f"-max_total_time={seconds}",
        f"-timeout={SECONDS}",
        f"-rss_limit_mb={used + (MEMORY >> 20)}",
        f"-max_len={MOST_BYTES}",
        f"-artifact_prefix={Path(corpus).parent}/",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *words, corpus], read)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
