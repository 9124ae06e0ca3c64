"""When DAGs run: a link's cron in its own timezone, the receivers' clocks, and the assets: what landed, what changed."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from airflow.sdk import Asset, AssetAlias, AssetAny, AssetOrTimeSchedule, CronTriggerTimetable

from tidemark.errors import UsageError
from tidemark.settings.model import LinkSettings, SinkSettings, SourceSettings


def link_schedule(link: LinkSettings) -> Any:
    """Return the link's timetable, None for "by hand only". Raises UsageError naming the key that Airflow rejects."""
    if not link.schedule:
        return None
    key = f"links.{link.name}"
    try:
        ZoneInfo(link.timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as unknown:
        raise UsageError(f"{key}.timezone: {link.timezone!r} is not a timezone", hint='for example "UTC"') from unknown
    return _make_sound(key, link.schedule, link.timezone)


def source_schedule(source: SourceSettings) -> Any:
    """Return the timetable of a source of changes, in UTC; None for "by hand only". Raises UsageError as `link_schedule`."""
    return _make_sound(f"sources.{source.name}", source.schedule, "UTC") if source.schedule else None


def sink_schedule(sink: SinkSettings) -> Any:
    """Return when a sink runs: by its cron in UTC; without one, when its source has more changes. UsageError as
    `link_schedule`."""
    return _make_sound(f"sinks.{sink.name}", sink.schedule, "UTC") if sink.schedule else [changes_asset(sink.source)]


def _make_sound(key: str, cron: str, timezone: str) -> Any:
    try:
        timetable = make_timetable(cron, timezone)
        timetable.validate()
    except ValueError as broken:  # Airflow raises it for an invalid cron
        raise UsageError(f"{key}.schedule: {broken}", hint='for example "*/15 * * * *", or "" for by hand only') from broken
    return timetable


def make_timetable(cron: str, timezone: str) -> Any:
    """Make a timetable whose first run is the next tick, not one before the DAG existed. None where there is no cron."""
    return CronTriggerTimetable(cron, timezone=timezone) if cron else None


def landed_asset(receiver: str) -> Asset:
    """Return the asset "something landed at this receiver"."""
    return Asset(name=f"landed at {receiver}", uri=f"tidemark://{receiver}/landed", group="tidemark")


def landed_alias(receiver: str) -> AssetAlias:
    """Return the alias by which a sync emits `landed_asset`: only an alias may stay silent, as a run without news does."""
    return AssetAlias(name=f"tidemark://{receiver}/landed", group="tidemark")


def catalog_asset(receiver: str) -> Asset:
    """Return the asset "readers of this receiver see other points". For the schedules of other people's DAGs."""
    return Asset(name=f"catalog of {receiver}", uri=f"tidemark://{receiver}/catalog", group="tidemark")


def catalog_alias(receiver: str) -> AssetAlias:
    """Return the alias by which a load emits `catalog_asset`: a load that changed nothing stays silent."""
    return AssetAlias(name=f"tidemark://{receiver}/catalog", group="tidemark")


def changes_asset(source: str) -> Asset:
    """Return the asset "the store of this source has more changes". For the schedules of other people's DAGs."""
    return Asset(name=f"changes of {source}", uri=f"tidemark://{source}/changes", group="tidemark")


def changes_alias(source: str) -> AssetAlias:
    """Return the alias by which a capture emits `changes_asset`: one without news stays silent."""
    return AssetAlias(name=f"tidemark://{source}/changes", group="tidemark")


def load_schedule(receivers: list[str], cron: str, timezone: str) -> Any:
    """Return when loads run: by what landed and by the clock.

    The clock is for landings without an asset event: brought on a disk, closed early, left by a dead load, or landed by
    a sync that ended before Airflow had read the DAG of the load.
    """
    if not receivers:
        return None
    landed = AssetAny(*(landed_asset(name) for name in receivers))
    return AssetOrTimeSchedule(timetable=make_timetable(cron, timezone), assets=landed) if cron else landed
