"""Parse and apply the deletions that IoTDB keeps next to a TsFile. An entry applies to its own TsFile only (DESIGN §3).

| file | IoTDB | entry |
|---|---|---|
| `.mods` | 0.9 … 1.x | a line `DELETION,path,offset,first,last`; without `first` up to 0.11 |
| `.mods2` | 2.x | 1, first, last, path (tree); 0, first, last, table, rule on tags, columns (table) |

Times are inclusive. The offset of the text form limits an entry to chunks that begin before it. A path may hold `*` (one
node) and `**` (one or more). A torn last entry is left by a crash at the site, where it is no deletion either.
Source: `LocalTextModificationAccessor`, `TreeDeletionEntry`, `TableDeletionEntry`, `TagPredicate` of IoTDB; the real data
folders, where the server's own answers prove them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from tidemark.errors import UnsupportedError
from tidemark.tsfiles.devices import is_table, pattern_matches, plain_path, put_below, table_segments
from tidemark.tsfiles.layout.bytes import Cursor, EndsEarlyError, corruption_error

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


FIRST_TIME, _LAST_TIME = -(1 << 63), (1 << 63) - 1
_TABLE, _TREE = 0, 1

Tags = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class TagRule:
    """Selects the devices of a table for which every part holds.

    `segments`: (position, value) that must be equal, position 1 is the first tag, None is null. `present`: positions
    that must not be null. `devices`: one of these (table and tags), empty for any.
    """

    segments: tuple[tuple[int, str | None], ...] = ()
    present: tuple[int, ...] = ()
    devices: tuple[tuple[Tags, ...], ...] = ()

    def matches_device(self, device: Tags) -> bool:
        def at(position: int) -> str | None:
            return device[position] if 0 <= position < len(device) else None

        return (
            all(at(position) == value for position, value in self.segments)
            and all(at(position) is not None for position in self.present)
            and all(_trim_null_tags(device) in choice for choice in self.devices)
        )


@dataclass(frozen=True, slots=True)
class Deletion:
    """One entry: `start` and `end` inclusive. `path` is a pattern of whole series (tree), else `table` and `rule` count.

    `measurements` empty: all columns of the table. `before`: only chunks whose header begins before this byte; None: all.
    """

    start: int
    end: int
    path: str = ""
    table: str = ""
    rule: TagRule = TagRule()
    measurements: tuple[str, ...] = ()
    before: int | None = None

    def affects_series(self, device: str, measurement: str) -> bool:
        """Whether the entry affects a series, given by its canonical names, at any time."""
        if self.path:
            return pattern_matches(self.path, f"{device}.{measurement}")
        segments = table_segments(device)
        named = not self.measurements or measurement in self.measurements
        return named and segments[0] == self.table and self.rule.matches_device(segments)


class Deletions(tuple[Deletion, ...]):
    """The deletions of one file, indexed by series or device, since there may be thousands of entries for single ones."""

    @cached_property
    def _by_series(self) -> dict[str, list[Deletion]]:
        """Of the tree model, by the series that an entry names; "": entries that may affect any."""
        found: dict[str, list[Deletion]] = {}
        for entry in self:
            if not entry.rule.devices:
                found.setdefault(plain_path(entry.path) or "", []).append(entry)
        return found

    @cached_property
    def _by_device(self) -> dict[Tags, list[Deletion]]:
        """Of the table model, by each device that an entry names."""
        found: dict[Tags, list[Deletion]] = {}
        for entry in self:
            for device in dict.fromkeys(entry.rule.devices[0] if entry.rule.devices else ()):
                found.setdefault(device, []).append(entry)
        return found

    def of_series(self, device: str, measurement: str) -> list[Deletion]:
        """The deletions that affect a series, given by its canonical names."""
        others = self._by_series.get("", [])
        if self._by_device and is_table([device]):
            others = others + self._by_device.get(_trim_null_tags(table_segments(device)), [])
        others = [entry for entry in others if entry.affects_series(device, measurement)]
        return self._by_series.get(f"{device}.{measurement}", []) + others


NO_DELETIONS = Deletions()


def parse_mods(data: bytes, form: Literal["mods", "mods2"], what: str = "mods", prefix: str = "") -> Deletions:
    """The deletions of a `.mods` or `.mods2`, in order, of series below `prefix`. Ignores a torn last entry.

    Raises CorruptionError for any other damaged entry. Raises UnsupportedError for an entry of a newer IoTDB, because
    skipping it would bring deleted points back.
    """
    found = _parse_text(data, what) if form == "mods" else _parse_binary(data, what)
    return Deletions(replace(entry, path=put_below(prefix, entry.path)) for entry in found) if prefix else Deletions(found)


def mask_deleted_points(deletions: Iterable[Deletion], times: NDArray[np.int64], chunk_offset: int = 0) -> NDArray[np.bool_]:
    """bool[n]: which points at `times` (int64[n], ascending), of a chunk whose header is at `chunk_offset`, are deleted."""
    import numpy as np  # not at the top: a load only parses deletions, and numpy would slow its start

    spans = [(e.start, e.end) for e in deletions if e.start <= e.end and (e.before is None or chunk_offset < e.before)]
    if not spans:
        return np.zeros(len(times), np.bool_)
    starts, ends = np.array(spans, np.int64).T
    bounds = np.zeros(len(times) + 1, np.int64)  # how many deletions begin and end before each point
    np.add.at(bounds, times.searchsorted(starts), 1)
    np.add.at(bounds, times.searchsorted(ends, "right"), -1)
    return bounds[:-1].cumsum() > 0


def _parse_text(data: bytes, what: str) -> tuple[Deletion, ...]:
    whole, _, _ = data.rpartition(b"\n")  # what follows the last line end is torn
    entries = []
    for number, line in enumerate(whole.split(b"\n") if whole else [], 1):
        fields = line.decode("utf-8", "replace").rstrip("\r").split(",")
        if fields == [""]:
            continue
        entries.append(_text_entry(fields, f"{what} line {number}"))
    return tuple(entries)


def _text_entry(fields: list[str], what: str) -> Deletion:
    if fields[0] != "DELETION" or len(fields) < 4:
        raise corruption_error(what, "not a deletion")
    try:
        before, start, end = (int(field) for field in fields[-3:])
        path = ",".join(fields[1:-3])
    except ValueError:
        try:  # up to 0.11: path, version, last
            before, end = (int(field) for field in fields[-2:])
        except ValueError as error:
            raise corruption_error(what, "a deletion without numbers") from error
        start, path = FIRST_TIME, ",".join(fields[1:-2])
    if not path:
        raise corruption_error(what, "a deletion without a path")
    if not FIRST_TIME <= min(start, end) <= max(start, end) <= _LAST_TIME:
        raise corruption_error(what, "a deletion at a time that no point has")
    return Deletion(start, end, path=path, before=before)


def _parse_binary(data: bytes, what: str) -> tuple[Deletion, ...]:
    cursor = Cursor(data, what)
    entries = []
    while cursor.bytes_left():
        at = cursor.position
        kind = cursor.read_u8()
        if kind not in (_TABLE, _TREE):
            raise cursor.corruption_error(f"no deletion is of type {kind}", at)
        try:
            start, end = cursor.read_i64_pair()
            entries.append(_tree_entry(cursor, start, end) if kind == _TREE else _table_entry(cursor, start, end))
        except EndsEarlyError:
            break  # torn by a crash at the site
    return tuple(entries)


def _tree_entry(cursor: Cursor, start: int, end: int) -> Deletion:
    return Deletion(start, end, path=cursor.read_var_name())


def _table_entry(cursor: Cursor, start: int, end: int) -> Deletion:
    table = cursor.read_var_name()
    rule = _parse_tag_rule(cursor)
    measurements = tuple(cursor.read_var_name() for _ in range(_read_item_count(cursor)))
    return Deletion(start, end, table=table, rule=rule, measurements=measurements)


def _parse_tag_rule(cursor: Cursor, depth: int = 0) -> TagRule:
    kind = cursor.read_u8()
    match kind:
        case 0:
            return TagRule()
        case 1:
            return TagRule(devices=((_read_tags(cursor),),))
        case 2:
            value = cursor.read_var_string()
            return TagRule(segments=((cursor.read_varint(), value),))
        case 3 if depth < 16:
            rules = [_parse_tag_rule(cursor, depth + 1) for _ in range(_read_item_count(cursor))]
            return TagRule(
                segments=tuple(item for rule in rules for item in rule.segments),
                present=tuple(item for rule in rules for item in rule.present),
                devices=tuple(item for rule in rules for item in rule.devices),
            )
        case 4:
            return TagRule(devices=(tuple(_read_tags(cursor) for _ in range(_read_item_count(cursor))),))
        case 5:
            return TagRule(present=(cursor.read_varint(),))
    raise UnsupportedError(f"{cursor.what}: a deletion with an unknown rule on tags ({kind})", subject=cursor.what)


def _read_tags(cursor: Cursor) -> Tags:
    return _trim_null_tags(tuple(cursor.read_var_string() for _ in range(cursor.read_count(1))))


def _read_item_count(cursor: Cursor) -> int:
    number = cursor.read_varint()
    if number < 0:
        raise cursor.corruption_error(f"{number} items announced")
    if number > cursor.bytes_left():
        raise cursor.ends_early_error(f"{number} items announced where {cursor.bytes_left()} bytes are left")
    return number


def _trim_null_tags(device: Tags) -> Tags:
    """Drop null tags at the end, as files do."""
    end = len(device)
    while end > 1 and device[end - 1] is None:
        end -= 1
    return device[:end]
