"""The settings that DAGs stand on: `tidemark.toml`, or its last sound edition while the file is broken.

A broken edit must not hide every link's DAG and stop every link: as with a server's reload, the last sound edition stays
in force, and `dags/tidemark_settings.py` shows the error with its line as an import error until it is mended. The copy
lies in AIRFLOW_HOME, which the DAG processor and the tasks share.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from tidemark.errors import UsageError
from tidemark.settings import Settings

log = logging.getLogger(__name__)
COPY = "tidemark.last-sound.toml"


def config_path(environ: Mapping[str, str]) -> Path:
    """$TIDEMARK_CONFIG, else ./tidemark.toml (CONTRACT §1)."""
    return Path(environ.get("TIDEMARK_CONFIG") or "tidemark.toml").resolve()


def read(environ: Mapping[str, str]) -> Settings:
    """The settings as they are now. Raises UsageError that names file, line and key."""
    from tidemark.settings_file import load

    return load(config_path(environ), environ)


def standing(environ: Mapping[str, str]) -> Settings:
    """The settings as they are now, or as they last were sound. Raises UsageError when they never were."""
    path = config_path(environ)
    try:
        settings = read(environ)
    except UsageError as broken:
        copy = _copy_of(environ)
        if copy is None or not copy.exists():
            raise
        log.warning("%s; going on with its last sound edition. %s", broken.message, broken.hint)
        return _read_copy(copy, path, environ, broken)
    _keep(path, environ)
    return settings


def _read_copy(copy: Path, path: Path, environ: Mapping[str, str], broken: UsageError) -> Settings:
    from tidemark.settings_file import load

    try:
        return dataclasses.replace(load(copy, environ), path=path)
    except UsageError:
        raise broken from None  # the environment is what is broken: the copy cannot help


def _keep(path: Path, environ: Mapping[str, str]) -> None:
    copy = _copy_of(environ)
    if copy is None:
        return
    with contextlib.suppress(OSError):  # a home that cannot be written only loses the comfort of this module
        sound = path.read_bytes()
        if not copy.exists() or copy.read_bytes() != sound:
            fresh = copy.with_name(f"{copy.name}.{os.getpid()}")
            fresh.write_bytes(sound)
            fresh.replace(copy)


def _copy_of(environ: Mapping[str, str]) -> Path | None:
    home = environ.get("AIRFLOW_HOME", "")
    return Path(home) / COPY if home else None
