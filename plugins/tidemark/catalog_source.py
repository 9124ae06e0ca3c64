"""`spark.read.format("tidemark").load("tidemark.toml")`: what readers of a receiver's catalog see, in Spark (docs/spark.md).

The driver plans: it asks the ledger which files are read, in which order, with which deletions, and checks them as
`receiver.read` does. From there on it is the format `tsfile`: tasks read their files and know no ledger. With data nodes
the planning fetches the files to the receiver, where they stay for the grace of its cache. With `fromNodes` the logs of the
data nodes are asked instead of the ledger (`operations.rebuild.from_nodes`).

It registers itself if `plugins/` is on the PYTHONPATH of the driver (`pyspark_tidemark`), else call
`spark.dataSource.register(CatalogSource)`.
Imports `operations.rebuild.from_nodes`, `receiver`, `cluster`, `app`, `settings`, `tsfiles`. Spark alone uses it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from tidemark.app import App, find_receiver, open_app
from tidemark.cluster.nodes.cluster import open_cluster
from tidemark.cluster.replicas.cache import recall_files
from tidemark.errors import NotFoundError, UsageError
from tidemark.ledger.receiver.catalog import CatalogFile
from tidemark.operations.rebuild.from_nodes import open_from_nodes
from tidemark.receiver.proved_files import require_proved
from tidemark.receiver.session import local_root
from tidemark.receiver.view import Asked, Seen, find_seen, gone_error
from tidemark.settings.load import load_settings
from tidemark.settings.model import LedgerSettings, ReceiverSettings, Settings
from tidemark.settings.values import parse_store
from tidemark.tsfiles.spark.dataset import DataFile
from tidemark.tsfiles.spark.options import ScanOptions, lower_option_names, parse_choice, parse_names, parse_scan
from tidemark.tsfiles.spark.source import TsFileSource
from tidemark.tsfiles.spark.survey import Holding, Survey, Wanted, survey_files
from tidemark.untrusted_files import UntrustedFile

_WHERE = ("path", "receiver", "ledger", "store", "fromNodes")
_WHAT = ("site", "database", "model", "table", "columns", "devices", "start", "end", "liveOnly", "verify", "times", "layout")
OPTIONS = (*_WHERE, *_WHAT, "undecodable", "rowsPerTask", "cpuSeconds", "wallSeconds")


class CatalogSource(TsFileSource):
    """The format `tidemark`. It only reads."""

    @classmethod
    def name(cls) -> str:
        return "tidemark"

    def plan(self) -> tuple[ScanOptions, Survey]:
        return plan_catalog(self.options)

    def writer(self, schema: object, overwrite: bool) -> NoReturn:
        raise UsageError('the format tidemark only reads: TsFiles are written by .format("tsfile")', subject="tidemark")


def plan_catalog(options: Mapping[str, str]) -> tuple[ScanOptions, Survey]:
    """Find what is asked for in a catalog, and summarize its files, which are checked and at the receiver then.

    Raises UsageError, NotFoundError for an unknown site, CorruptionError for a file that is not what was loaded.
    """
    given = lower_option_names(options, OPTIONS)
    scan = parse_scan(given, ())
    asked = Asked(
        given.get("site", ""),
        scan.cut.devices or ("**",),
        given.get("start", ""),
        given.get("end", ""),
        parse_choice(given, "liveOnly", ("false", "true")) == "true",
        parse_names(given.get("database", "")),
    )
    with _open_receiver(given) as (app, receiver):
        root = local_root(app, receiver)
        seen = find_seen(app, receiver, asked)
        if scan.cut.tall:  # a wide frame has a column for every measurement, whenever it has points
            seen = seen.cut_to_bounds()
        require_proved(app, receiver, root, seen.files, anew=parse_choice(given, "verify", ("false", "true")) == "true")
        with open_cluster(app, receiver) as cluster:
            recall_files(cluster, seen.files)
        unit = _choose_unit(parse_choice(given, "times", ("", "number", "instant")), seen, scan.cut.tall)
        wanted = replace(scan.wanted, database="", mixed=scan.cut.tall)  # files of other databases are left out already
        start, end = _find_bound(seen, seen.bounds.start), _find_bound(seen, seen.bounds.end)
        cut = replace(scan.cut, devices=(), start=start, end=end)
        return replace(scan, wanted=wanted, cut=cut, unit=unit), survey_seen(root, seen, wanted)


def survey_seen(root: Path, seen: Seen, wanted: Wanted) -> Survey:
    """Summarize the files that are seen below a receiver's root: their seen devices alone, each in the order of the view."""
    files = seen.files
    numbers = {file.file_id: number for number, file in enumerate(files)}
    try:
        found = survey_files([_data_file(str(root), file) for file in files], wanted)
    except NotFoundError as gone:
        raise gone_error(gone.subject) from gone
    devices: dict[str, list[Holding]] = {}
    shown: dict[str, str] = {}
    for device in seen.devices:
        name = device.layers[0].name
        held: dict[int, list[Holding]] = {}
        for holding in found.devices.get(name, ()):
            held.setdefault(holding.file, []).append(holding)
        if ranked := [one for layer in device.layers for one in held.get(numbers[layer.file.file_id], ())]:
            devices[name] = ranked
            if device.name != name:
                shown[name] = device.name
    return replace(found, devices=devices, shown=shown)


def _data_file(root: str, file: CatalogFile) -> DataFile:
    mods = UntrustedFile(root, file.mods_location) if file.mods_location else ""
    return DataFile(UntrustedFile(root, file.location), (*file.rank, 0), file.database, mods, file.prefix)


@contextmanager
def _open_receiver(given: Mapping[str, str]) -> Iterator[tuple[App, ReceiverSettings]]:
    """Open the receiver of the settings at `path`, or of a ledger. `fromNodes`: with a ledger of what the nodes tell."""
    name = given.get("receiver", "")
    from_nodes = parse_choice(given, "fromNodes", ("false", "true")) == "true"
    if url := given.get("ledger", ""):
        if from_nodes:
            raise UsageError(
                "fromNodes asks no ledger, and the data nodes stand in the settings",
                hint='.option("fromNodes", "true").load("tidemark.toml"), without ledger and store',
                subject="fromNodes",
            )
        if not name or not given.get("store"):
            raise UsageError(
                "a ledger needs its receiver and the receiver's folder",
                hint='.option("receiver", "centre").option("store", "/srv/tidemark"), or .load("tidemark.toml")',
                subject="ledger",
            )
        receiver = ReceiverSettings(name, parse_store(given["store"], Path.cwd()))
        settings = Settings(path=Path.cwd() / "tidemark.toml", ledger=LedgerSettings(url), receivers={name: receiver})
    else:
        settings = load_settings(given.get("path") or None, os.environ)
        if not name and len(settings.receivers) != 1:
            names = ", ".join(sorted(settings.receivers)) or "none"
            raise UsageError(f"which receiver? the settings have: {names}", hint='.option("receiver", NAME)')
    receiver = find_receiver(settings, name)
    if from_nodes:
        with open_from_nodes(settings, receiver) as told:
            yield told, receiver
        return
    app = open_app(settings)
    try:
        yield app, receiver
    finally:
        app.ledger.close()


def _choose_unit(asked: str, seen: Seen, tall: bool) -> str:
    """Return the unit of instants, "" for numbers. As `read`: instants in a wide result of sites with one unit."""
    if asked == "instant" and not seen.unit:
        raise _units_error("times = instant")
    return "" if asked == "number" or (tall and not asked) else seen.unit


def _find_bound(seen: Seen, bounds: Mapping[str, int | None]) -> int | None:
    """Return the one bound of all sites that are read."""
    found = {bounds[site] for site in seen.sites}
    if len(found) > 1:
        raise _units_error("a time in ISO 8601")
    return next(iter(found), None)


def _units_error(what: str) -> UsageError:
    message = f"{what}: these sites count time in different units"
    return UsageError(message, hint='.option("site", NAME), or numbers', subject="time")
