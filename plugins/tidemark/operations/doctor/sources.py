"""The check of a source of changes, as `changes doctor` makes it."""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.changes.sources.doctor import examine
from tidemark.operations.doctor.stores import Check, Clock
from tidemark.settings.model import SourceSettings


def check_source(settings: SourceSettings, clock: Clock) -> Sequence[Check]:
    """What is wrong with the source's server, tables and store."""
    found = examine(settings, clock).findings
    return [Check(f"source {settings.name}: {one.subject}", one.ok, one.detail, one.hint, one.kind) for one in found]
