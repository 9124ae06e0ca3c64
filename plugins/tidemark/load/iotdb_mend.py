"""Give a server what it lacks of some devices, and take away what it has too much: compared point by point, exactly.

For what cannot be LOADed as it is: late files, changed ones, those that left the catalog, and any whose LOAD nobody knows
the outcome of. It may die anywhere and is simply done again: what is there already is no difference any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tidemark.errors import CorruptionError, NotFoundError, PartialError, PermanentError, UnsupportedError
from tidemark.ledger.receiver.catalog import CatalogDevice, CatalogFile
from tidemark.load import iotdb_words
from tidemark.load.iotdb_points import Difference, Table, difference, runs, server_points, table_name, table_of
from tidemark.load.iotdb_server import Answering, load_into
from tidemark.load.iotdb_stage import Stage
from tidemark.load.iotdb_words import Span
from tidemark.load.view import CatalogReader, SeenDevice
from tidemark.tsfiles.devices import table_segments
from tidemark.tsfiles.points.column import Column, overlay
from tidemark.tsfiles.reader import TsFile
from tidemark.untrusted_files import UntrustedFile


@dataclass
class Mended:
    """`alike`: points that were there already; `written`: points the server was given; `deleted`: spans taken away."""

    alike: int = 0
    written: int = 0
    deleted: int = 0


@dataclass
class Mender:
    """`seen`: devices as readers see them, by the name that files give them."""

    server: Answering
    stage: Stage
    root: Path
    reader: CatalogReader
    seen: Mapping[str, SeenDevice]
    tables: dict[tuple[str, str], Table | None] = field(default_factory=dict)

    def compare(self, file: CatalogFile, devices: Sequence[CatalogDevice]) -> dict[str, Difference]:
        """What differs within the extents of a file's devices; devices without a difference too."""
        return {d.device: self.compare_device(file, d.device, Span(d.start, d.end)) for d in devices}

    def mend(self, file: CatalogFile, devices: Sequence[CatalogDevice], leaves: bool = False) -> Mended:
        """Make the server agree within the extents of a file's devices.

        `leaves`: points of this very file that readers see no more are taken away; else nothing is ever deleted. Raises
        TypeDiffersError, PartialError where the server still disagrees, UnsupportedError where we cannot read the points.
        """
        found = self.compare(file, devices)
        done = Mended(alike=sum(one.alike for one in found.values()))
        missing = {device: one.missing for device, one in found.items() if one.missing}
        if missing:
            self._write(file, missing)
            done.written = sum(len(column) for series in missing.values() for column in series.values())
        if leaves:
            done.deleted = self._delete(file, devices, found)
        if done.written or done.deleted:
            for device, left in self.compare(file, devices).items():
                if left.missing:
                    some = sum(len(column) for column in left.missing.values())
                    raise PartialError(f"{device}: {some} points did not arrive as they are", subject=file.path)
        return done

    def forget(self, file: CatalogFile, devices: Sequence[CatalogDevice]) -> int:
        """Take away what this very file brought and readers do not see; the deletions that took."""
        return self._delete(file, devices, self.compare(file, devices))

    def compare_device(self, file: CatalogFile, device: str, span: Span) -> Difference:
        """What differs of one device within a span; `file` holds it."""
        table = self._table(file, device)
        ours = self._ours(device, span)
        if file.model == "table" and table is None:
            return difference(device, ours, {})
        theirs = server_points(self.server, device, span, table)
        found = difference(device, ours, theirs)
        if not found.other or table is not None:
            return found
        # 2.0.1-beta answers old values of aligned devices where files overlap and it is asked for all series at once
        for measurement in found.missing.keys() & theirs.keys():
            theirs |= server_points(self.server, device, span, measurement=measurement)
        return difference(device, ours, theirs)

    def _ours(self, device: str, span: Span) -> dict[str, Column]:
        seen = self.seen.get(device)
        if seen is None:
            return {}
        before = set(self.reader.unread.found)
        sites = {layer.file.site_id for layer in seen.layers}
        start, end = dict.fromkeys(sites, span.start), dict.fromkeys(sites, span.end + 1)
        found = {}
        for measurement, columns in self.reader.columns(seen, start, end):
            if len({column.type for column in columns}) > 1:
                raise UnsupportedError(f"{device}.{measurement}: its files disagree on its type", subject=device)
            if columns:
                found[measurement] = overlay(columns)
        unread = {name: why for name, why in self.reader.unread.found.items() if name not in before}
        for name, why in unread.items():
            if name.startswith(f"{device}.") or name in {layer.file.location for layer in seen.layers}:
                self.reader.unread.found.pop(name)
                raise UnsupportedError(f"{name} cannot be compared: {why}", subject=name)
        return found

    def _write(self, file: CatalogFile, missing: Mapping[str, Mapping[str, Column]]) -> None:
        if self.server.version.format < 4:
            raise PermanentError(
                "it comes late, and this server reads only TsFiles of version 3: its points cannot be given apart",
                hint="LOAD its newer files again by hand after it, or use an IoTDB 2.x",
                subject=file.path,
            )
        table = file.model == "table"
        tags: dict[str, Sequence[str]] = {}
        aligned = {}
        for device in missing:
            with self._opened(device) as holder:
                aligned[device] = table or holder.aligned(device)
                if table:
                    name = table_name(device)
                    tags[name] = max(tags.get(name, ()), holder.tag_columns[name], key=len)  # a table gains tags
        self.stage.clear()
        path = self.stage.write(missing, aligned, tags)
        load_into(self.server, path, file.database, table)
        self.tables.clear()  # it may have made one

    def _opened(self, device: str) -> TsFile:
        """The highest file that holds a device."""
        layer = self.seen[device].layers[-1]
        return TsFile(UntrustedFile(str(self.root), layer.file.location), layer.file.database)

    def _delete(self, file: CatalogFile, devices: Sequence[CatalogDevice], found: Mapping[str, Difference]) -> int:
        """Take away what the server has too much and `file` brought; the file's bytes say what it brought."""
        much = {device: one.extra for device, one in found.items() if one.extra}
        if not much:
            return 0
        try:
            brought = TsFile(UntrustedFile(str(self.root), file.location), file.database)
        except (NotFoundError, FileNotFoundError, CorruptionError):
            return 0  # counted all the same: `differs` says what is too much
        spans = {d.device: Span(d.start, d.end) for d in devices}
        count = 0
        with brought:
            for device, extra in much.items():
                held = set(brought.measurements(device)) if device in brought.devices() else set()
                own = {m: times for m in sorted(held & extra.keys()) if len(times := _own(brought, device, m, extra[m]))}
                count += self._delete_points(file, device, own, spans[device])
        return count

    def _delete_points(self, file: CatalogFile, device: str, own: Mapping[str, NDArray[np.int64]], span: Span) -> int:
        if file.model == "table":
            there = server_points(self.server, device, span, self._table(file, device)) if own else {}
            return self._delete_rows(file, device, own, there)
        count = 0
        for measurement, times in own.items():
            there = server_points(self.server, device, span, measurement=measurement)  # as in `compare_device`: one by one
            held = there[measurement].times if measurement in there else times[:0]
            kept = np.setdiff1d(held, times, assume_unique=True)
            for part in runs(times, [kept]):
                self.server.run(iotdb_words.deletion(device, measurement, part))
                count += 1
        return count

    def _delete_rows(
        self, file: CatalogFile, device: str, own: Mapping[str, NDArray[np.int64]], there: Mapping[str, Column]
    ) -> int:
        """Tables delete whole rows: those of which every field leaves."""
        kept = [np.setdiff1d(c.times, own.get(m, np.empty(0, np.int64)), assume_unique=True) for m, c in there.items()]
        table = self._table(file, device)
        if not own or table is None:
            return 0
        times = np.setdiff1d(np.unique(np.concatenate(list(own.values()))), np.concatenate(kept))
        count = 0
        for part in runs(times, kept):
            self.server.run(iotdb_words.table_deletion(device, table.tags, table.database, part), table=True)
            count += 1
        return count

    def _table(self, file: CatalogFile, device: str) -> Table | None:
        """None: the server has no such table, or has not all the tags that name the device, so nothing of it."""
        if file.model != "table":
            return None
        key = (file.database, table_name(device))
        if self.tables.get(key) is None:
            self.tables[key] = table_of(self.server, *key)
        table = self.tables[key]
        return table if table and len(table_segments(device)) <= len(table.tags) + 1 else None


def _own(file: TsFile, device: str, measurement: str, extra: NDArray[np.int64]) -> NDArray[np.int64]:
    times = file.column(device, measurement).times
    return np.intersect1d(times, extra, assume_unique=False)
