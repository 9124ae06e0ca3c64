"""The check of a source of changes, as `changes doctor` makes it, and of a sink: its folder, and the package it needs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from importlib.util import find_spec
from pathlib import Path

from tidemark.changes.sources.doctor import examine, look_at_folder
from tidemark.installation import describe_absent
from tidemark.operations.doctor.stores import Check, Clock, fail_check, pass_check
from tidemark.settings.model import SinkSettings, SourceSettings


def check_source(settings: SourceSettings, clock: Clock, sinks: Collection[SinkSettings] = ()) -> Sequence[Check]:
    """What is wrong with the source's server, tables and store."""
    found = examine(settings, clock, sinks).findings
    return [Check(f"source {settings.name}: {one.subject}", one.ok, one.detail, one.hint, one.kind) for one in found]


def check_sink(settings: SinkSettings) -> Sequence[Check]:
    """What is wrong with a sink's folder, and whether the packages are there that it needs."""
    found = look_at_folder(Path(settings.target.removeprefix("file://")), "target")
    name = f"sink {settings.name}"
    checks = [Check(f"{name}: target", found.ok, found.detail, found.hint, found.kind)]
    packages = ["deltalake" if settings.kind == "delta" else "pyarrow"]
    packages += ["pyspark"] if settings.engine == "spark" else []
    for package in packages:
        absent = None if find_spec(package) else describe_absent(ModuleNotFoundError(name=package))
        told = f"{name}: {package}"
        checks.append(fail_check(told, absent) if absent is not None else pass_check(told, "installed"))
    return checks
