"""A source examined: may its server be trusted, and is there room for what it sends. It changes nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tidemark.changes.connection.login import open_server
from tidemark.changes.sources.source import disk_of, find_end, login_of, patterns_of, pin_resumed, wants_of
from tidemark.changes.trust.answers import Answers, StoreEnd, ask_server
from tidemark.changes.trust.headroom import Headroom, measure_headroom
from tidemark.changes.trust.resume import Resume
from tidemark.changes.trust.rules import Finding, Wanted, judge
from tidemark.errors import DiskFullError, PermissionDeniedError, TidemarkError, UnreachableError
from tidemark.settings.model import SinkSettings, SourceSettings

LOW_BYTES = 1_000_000_000
UNKNOWN = Headroom(None, None)


@dataclass(frozen=True)
class Examined:
    """What was found, the store first. The exit code is that of the first finding that is not right."""

    findings: tuple[Finding, ...]
    headroom: Headroom = UNKNOWN

    @property
    def exit_code(self) -> int:
        return next((finding.kind for finding in self.findings if not finding.ok), 0)


def examine(settings: SourceSettings, clock: Callable[[], float], sinks: Collection[SinkSettings] = ()) -> Examined:
    """Examine a source. `sinks`: those of the settings. Raises nothing that it finds: every trouble is a finding."""
    found = [look_at_folder(disk_of(settings).root, "store")]
    end: StoreEnd | None = None
    try:
        end = find_end(disk_of(settings))
    except TidemarkError as trouble:
        found.append(_of_error("store", trouble))
    if not settings.url:
        return Examined((*found, Finding("server", "none: binary log files are given")))
    try:
        resume = Resume(disk_of(settings), login_of(settings), wants_of(settings))
        answers = ask_server(pin_resumed(resume), wants_of(settings), end, clock)
        restored = find_restored(resume, end)
    except TidemarkError as trouble:
        return Examined((*found, _of_error("server", trouble)))
    followers = {sink.name: sink.tables for sink in sinks if sink.source == settings.name}
    wanted = Wanted(
        settings.name,
        settings.server_id,
        settings.unsafe == "stop",
        end,
        needs_names=settings.metadata == "full",
        patterns=replace(patterns_of(settings), sinks=followers),
    )
    found += [Finding("server", _describe(answers)), *judge(answers, wanted), *restored]
    return Examined(tuple(found), measure_headroom(answers, end))


def find_restored(resume: Resume, end: StoreEnd | None) -> list[Finding]:
    """The addresses of a source where the store's last transaction is another one: a capture passes over them. One that is
    away, or lacks it, is not told."""
    found: list[Finding] = []
    for address in resume.login.addresses if end is not None and end.gtids else ():
        with suppress(UnreachableError), open_server(replace(resume.login, addresses=(address,))) as server:
            if (other := resume.find_other(server)) is not None:
                found.append(_of_error("identity", other))
    return found


def _of_error(subject: str, trouble: TidemarkError) -> Finding:
    return Finding(subject, trouble.message, trouble.hint, trouble.kind)


def _describe(answers: Answers) -> str:
    facts = answers.facts
    kind = "" if facts.is_maria else "MySQL "
    ids = f"server id {facts.server_id}" + (f", {facts.server_uuid}" if facts.server_uuid else "")
    return f"{answers.address}: {kind}{facts.version}, {ids}"


def look_at_folder(root: Path, subject: str) -> Finding:
    """Whether a folder, or the nearest above it that is there, may be written and has room."""
    there = next(folder for folder in (root, *root.parents) if folder.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        return _of_error(subject, PermissionDeniedError(f"{there} may not be written", hint="give this user the right"))
    free = shutil.disk_usage(there).free
    told = f"{root}: {free / 1e9:,.1f} GB free"
    if free < LOW_BYTES:
        return _of_error(subject, DiskFullError(f"{told}: too little", hint="free space there, or lower retain_hours"))
    return Finding(subject, told)
