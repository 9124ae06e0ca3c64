"""The catalog's rows: the data files that readers see, with their devices (tables `catalog_file`, `catalog_device`).

Rows change only in the caller's transaction, so that a landing or a merge is one step for every reader. A row is `live` (in
the catalog), `retired` (no reader sees it, its bytes are removed after the grace) or `reclaimed` (bytes removed). Source:
DESIGN §3 "Sources and merges", sql/0002_receiver_side.sql.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.ledger.receiver.touched import note_files, note_widths
from tidemark.ledger.sql import in_chunks, write_rows

Rank = tuple[int, int, int, int, int]


@dataclass(frozen=True)
class CatalogFile:
    """One row of `catalog_file`; times in seconds, sizes in bytes, locations relative to the receiver's root.

    `rank` (unsequence, version, inner, cross, created) orders a site's files: higher wins. Files that vanished at the site
    rank below all others: their first number is negative (`below_live`). `undecodable`: "device.measurement: encoding" of
    series that Tidemark's readers cannot decode. `prefix`: what the catalog puts before the names in the file's bytes;
    `database` has it already.
    """

    receiver: str
    site_id: str
    role: str  # source | merged
    path: str
    generation: int
    database: str
    model: str  # tree | table | mixed
    format: int
    partition_from: int
    partition_to: int
    location: str
    sha256: str
    size: int
    mods_location: str
    mods_sha256: str
    points: int
    rank: Rank
    created: float
    state: str = "live"
    visible: bool = True
    marked: str | None = None
    undecodable: tuple[str, ...] = ()
    landing: str | None = None
    retired: float | None = None
    prefix: str = ""
    file_id: int = 0  # 0 until it is in the ledger

    @property
    def kept(self) -> bool:
        """Whether the file vanished at the site, so that it only fills gaps of the site's live files."""
        return self.rank[0] < 0


@dataclass(frozen=True, slots=True)
class CatalogDevice:
    """The extent of one device in one file: first and last time (site's unit), points before deletions."""

    device: str
    start: int
    end: int
    points: int


@dataclass(frozen=True)
class Mark:
    """How far a catalog has got: its newest file, when a file came last, and when one was last retired."""

    file_id: int = 0
    created: float = 0.0
    retired: float = 0.0


@dataclass(frozen=True)
class CatalogChange:
    """Files of one site and database that came and left; their first and last time in the site's unit."""

    site_id: str
    database: str
    first: int
    last: int
    added: int
    removed: int


@dataclass(frozen=True)
class FileWithDevices:
    """A catalog file and the extents of its devices."""

    file: CatalogFile
    devices: tuple[CatalogDevice, ...] = field(default=())


_RENAMED = {"database": "database_name"}
_RANKS = ("rank_unsequence", "rank_version", "rank_inner", "rank_cross", "rank_created")
_PLAIN = tuple((_RENAMED.get(f.name, f.name), f.name) for f in fields(CatalogFile) if f.name not in ("rank", "file_id"))
_READ = (*((name, column) for column, name in _PLAIN if name != "undecodable"), ("file_id", "file_id"))
_COLUMNS = (*(column for column, _ in _PLAIN), *_RANKS)
_SELECT = f"SELECT file_id, {', '.join('f.' + c for c in _COLUMNS)} FROM catalog_file f"
_INSERT = (
    f"INSERT INTO catalog_file (file_id, {', '.join(_COLUMNS)}) VALUES (:file_id, {', '.join(':' + c for c in _COLUMNS)})"
)


def add_file(connection: Connection, file: CatalogFile, devices: Iterable[CatalogDevice]) -> int:
    """Insert a file with its devices; return its new file_id."""
    return add_files(connection, [FileWithDevices(file, tuple(devices))])[0]


def add_files(connection: Connection, files: Sequence[FileWithDevices]) -> list[int]:
    """Insert files with their devices; return the new file_ids, in the order of `files`."""
    if not files:
        return []
    file_ids = _new_ids(connection, len(files))
    note_files(connection, file_ids, added=True)
    write_rows(connection, _INSERT, [_row_values(file_id, one.file) for file_id, one in zip(file_ids, files, strict=True)])
    _add_devices(connection, zip(file_ids, files, strict=True))
    return file_ids


def put_file(connection: Connection, file_id: int, one: FileWithDevices) -> None:
    """Give a row that exists these facts and devices."""
    note_files(connection, [file_id])
    sql = f"UPDATE catalog_file SET {', '.join(f'{c} = :{c}' for c in _COLUMNS)} WHERE file_id = :file_id"
    connection.execute(sa.text(sql), _row_values(file_id, one.file))
    connection.execute(sa.text("DELETE FROM catalog_device WHERE file_id = :f"), {"f": file_id})
    _add_devices(connection, [(file_id, one)])


def retire_files(connection: Connection, file_ids: Iterable[int], at: float) -> None:
    """Hide these files from readers; their bytes are removed after the grace."""
    gone = list(file_ids)
    note_files(connection, gone)
    rows = [{"f": file_id, "at": at} for file_id in gone]
    write_rows(connection, "UPDATE catalog_file SET state = 'retired', visible = 0, retired = :at WHERE file_id = :f", rows)


def mark_reclaimed(connection: Connection, file_ids: Iterable[int]) -> None:
    """Mark files as reclaimed once their bytes are removed. A file that is live again stays live."""
    rows = [{"f": file_id} for file_id in file_ids]
    sql = "UPDATE catalog_file SET state = 'reclaimed' WHERE file_id = :f AND state = 'retired'"
    write_rows(connection, sql, rows)


def mark_files(connection: Connection, file_ids: Iterable[int], mark: str | None) -> None:
    """Set the mark. `dropped`: the site dropped these and the link keeps them; None: no mark."""
    marked = list(file_ids)
    note_files(connection, marked)
    rows = [{"f": file_id, "m": mark} for file_id in marked]
    write_rows(connection, "UPDATE catalog_file SET marked = :m WHERE file_id = :f", rows)


def below_live(rank: Rank, landings: int) -> Rank:
    """Return the rank of a file that vanished at its site: below every live one.

    `landings`: how many landings of the site were loaded before it was told. Of two vanished files the one that vanished
    later wins: the site had its values when it had none of the other any more. Those that were told together keep their
    order. The first number fits into 32 bits."""
    return (2 * min(landings, (1 << 30) - 1) + rank[0] - (1 << 31), *rank[1:])


def rank_files(connection: Connection, ranks: Mapping[int, Rank]) -> None:
    """Give files, by id, another rank."""
    note_files(connection, ranks)
    rows = [{"f": file_id, **dict(zip(_RANKS, rank, strict=True))} for file_id, rank in ranks.items()]
    write_rows(connection, f"UPDATE catalog_file SET {', '.join(f'{r} = :{r}' for r in _RANKS)} WHERE file_id = :f", rows)


def sources_of_paths(
    connection: Connection, receiver: str, site_id: str, paths: Iterable[str], states: Sequence[str] = ("live",)
) -> list[CatalogFile]:
    """Return source rows of these paths in the given states, ordered by path and generation."""
    wanted = ", ".join(f"'{state}'" for state in states)
    where = "f.receiver = :receiver AND f.site_id = :site AND f.role = 'source' AND f.path IN :many"
    sql = f"{_SELECT} WHERE {where} AND f.state IN ({wanted}) ORDER BY f.path, f.generation, f.file_id"
    return [_file_of_row(row._mapping) for row in in_chunks(connection, sql, paths, receiver=receiver, site=site_id)]


def kept_sources(connection: Connection, receiver: str, site_id: str) -> list[CatalogFile]:
    """Return live source rows of files that vanished at the site, by path and generation."""
    where = (
        "f.receiver = :receiver AND f.site_id = :site AND f.role = 'source' AND f.state = 'live' AND f.rank_unsequence < 0"
    )
    query = sa.text(f"{_SELECT} WHERE {where} ORDER BY f.path, f.generation, f.file_id")
    return [_file_of_row(row) for row in connection.execute(query, {"receiver": receiver, "site": site_id}).mappings()]


def sources_beside(connection: Connection, file: CatalogFile) -> list[CatalogFile]:
    """Return live source rows of the file's site and database that share a catalog partition with it, itself included."""
    where = (
        "f.receiver = :receiver AND f.site_id = :site AND f.role = 'source' AND f.state = 'live' "
        "AND f.database_name = :database AND f.partition_from <= :last AND f.partition_to >= :first"
    )
    query = sa.text(f"{_SELECT} WHERE {where} ORDER BY f.path, f.generation, f.file_id")
    values: dict[str, object] = {"receiver": file.receiver, "site": file.site_id, "database": file.database}
    values |= {"first": file.partition_from, "last": file.partition_to}
    return [_file_of_row(row) for row in connection.execute(query, values).mappings()]


def files_by_id(connection: Connection, file_ids: Iterable[int]) -> list[CatalogFile]:
    """Return the existing files of these ids, by id."""
    sql = f"{_SELECT} WHERE f.file_id IN :many ORDER BY f.file_id"
    return [_file_of_row(row._mapping) for row in in_chunks(connection, sql, file_ids)]


def visible_files(
    connection: Connection,
    receiver: str,
    site_id: str | None = None,
    database: str | None = None,
    role: str | None = None,
    *,
    kept_only: bool = False,
) -> list[CatalogFile]:
    """Return the files that readers see, of one site, database or role if given, ordered by site and rank; with `kept_only`
    those that vanished at their site."""
    where = ["f.receiver = :receiver", "f.visible = 1"]
    where += ["f.site_id = :site"] if site_id is not None else []
    where += ["f.database_name = :database"] if database is not None else []
    where += ["f.role = :role"] if role is not None else []
    where += ["f.rank_unsequence < 0"] if kept_only else []
    order = ", ".join(("f.site_id", *("f." + r for r in _RANKS), "f.file_id"))
    query = sa.text(f"{_SELECT} WHERE {' AND '.join(where)} ORDER BY {order}")
    values = {"receiver": receiver, "site": site_id, "database": database, "role": role}
    return [_file_of_row(row) for row in connection.execute(query, values).mappings()]


def live_files(connection: Connection, receiver: str) -> list[CatalogFile]:
    """Return all live files, seen or hidden behind merged files, by id."""
    query = sa.text(f"{_SELECT} WHERE f.receiver = :receiver AND f.state = 'live' ORDER BY f.file_id")
    return [_file_of_row(row) for row in connection.execute(query, {"receiver": receiver}).mappings()]


def devices_of_files(connection: Connection, file_ids: Iterable[int]) -> dict[int, tuple[CatalogDevice, ...]]:
    """Return the devices of each file, ordered by name."""
    sql = (
        "SELECT file_id, device, start_time, end_time, points FROM catalog_device WHERE file_id IN :many "
        "ORDER BY file_id, device"
    )
    found: dict[int, list[CatalogDevice]] = {}
    for row in in_chunks(connection, sql, file_ids):
        found.setdefault(int(row[0]), []).append(CatalogDevice(row[1], int(row[2]), int(row[3]), int(row[4])))
    return {file_id: tuple(devices) for file_id, devices in found.items()}


class PlacedFile(NamedTuple):
    """The catalog partitions of a live file, and its first and last time in its site's unit."""

    location: str
    partition_from: int
    partition_to: int
    first: int
    last: int


_RECENT = 1_000  # newest rows of all receivers that are looked at


def newest_placed(connection: Connection, receiver: str) -> PlacedFile | None:
    """Return the newest live file with points, None if there is none among the newest rows."""
    query = sa.text(
        "SELECT file_id, location, partition_from, partition_to"
        " FROM (SELECT * FROM catalog_file ORDER BY file_id DESC LIMIT :recent) AS f"
        " WHERE receiver = :receiver AND state = 'live' AND points > 0 ORDER BY file_id DESC LIMIT 1"
    )
    file = connection.execute(query, {"receiver": receiver, "recent": _RECENT}).first()
    if file is None:
        return None
    times = sa.text("SELECT MIN(start_time), MAX(end_time) FROM catalog_device WHERE file_id = :file")
    first, last = connection.execute(times, {"file": file[0]}).one()
    return None if first is None else PlacedFile(file[1], int(file[2]), int(file[3]), int(first), int(last))


def merged_over(connection: Connection, source_ids: Iterable[int]) -> dict[int, tuple[int, ...]]:
    """Return live merged files made from any of these sources: merged file_id → all its source file_ids."""
    sql = (
        "SELECT l.merged_id, l.source_id FROM lineage l JOIN catalog_file f ON f.file_id = l.merged_id "
        "WHERE f.state = 'live' AND l.merged_id IN (SELECT merged_id FROM lineage WHERE source_id IN :many) "
        "ORDER BY l.merged_id, l.source_id"
    )
    found: dict[int, set[int]] = {}
    for merged_id, source_id in in_chunks(connection, sql, source_ids):
        found.setdefault(int(merged_id), set()).add(int(source_id))
    return {merged_id: tuple(sorted(sources)) for merged_id, sources in found.items()}


def find_changes(connection: Connection, receiver: str, since: Mark) -> tuple[Mark, list[CatalogChange]]:
    """Return what readers see otherwise than at `since`, by site and database, and the mark of now.

    Merges change no point, so merged files do not count, nor sources that left because a merged file stands alone.
    """
    sql = "SELECT MAX(file_id), MAX(created), MAX(retired) FROM catalog_file WHERE receiver = :receiver"
    newest = connection.execute(sa.text(sql), {"receiver": receiver}).one()
    added = "(f.file_id > :file_id OR f.created > :created)"  # a rebuilt ledger counts its files anew
    stands_alone = (
        "EXISTS (SELECT 1 FROM lineage l JOIN catalog_file m ON m.file_id = l.merged_id "
        "WHERE l.source_id = f.file_id AND m.state = 'live')"
    )
    query = sa.text(
        "SELECT f.site_id, f.database_name, MIN(d.start_time), MAX(d.end_time), "
        f"COUNT(DISTINCT CASE WHEN {added} THEN f.file_id END), COUNT(DISTINCT CASE WHEN NOT {added} THEN f.file_id END) "
        "FROM catalog_file f JOIN catalog_device d ON d.file_id = f.file_id "
        f"WHERE f.receiver = :receiver AND f.role = 'source' AND ((f.state = 'live' AND {added}) OR "
        f"(f.retired > :retired AND NOT {added} AND NOT {stands_alone})) "
        "GROUP BY f.site_id, f.database_name ORDER BY f.site_id, f.database_name"
    )
    rows = connection.execute(query, {"receiver": receiver, **vars(since)})
    return Mark(*(value or 0 for value in newest)), [CatalogChange(*row) for row in rows]


def list_databases(connection: Connection, receiver: str) -> list[str]:
    """Return every database that has, or had, a file."""
    sql = "SELECT DISTINCT database_name FROM catalog_file WHERE receiver = :r ORDER BY database_name"
    return [row[0] for row in connection.execute(sa.text(sql), {"r": receiver})]


def known_databases(connection: Connection, receiver: str, databases: Iterable[str]) -> frozenset[str]:
    """Return which of these databases have a live file."""
    where = "receiver = :r AND visible IN (0, 1) AND database_name = :d AND state = 'live'"
    sql = f"SELECT 1 FROM catalog_file WHERE {where} LIMIT 1"
    return frozenset(d for d in databases if connection.execute(sa.text(sql), {"r": receiver, "d": d}).first())


def locations_in_use(connection: Connection, receiver: str, locations: Iterable[str]) -> set[str]:
    """Return which of these locations a live file uses: equal content under one name may serve several rows."""
    return _find_places(connection, receiver, "state = 'live'", locations)


def known_places(connection: Connection, receiver: str, locations: Iterable[str]) -> set[str]:
    """Return which of these locations, of TsFiles or mods, belong to a file that is not reclaimed."""
    return _find_places(connection, receiver, "state <> 'reclaimed'", locations)


def _find_places(connection: Connection, receiver: str, state: str, locations: Iterable[str]) -> set[str]:
    wanted, found = set(locations) - {""}, set[str]()
    for column in ("location", "mods_location"):
        sql = f"SELECT DISTINCT {column} FROM catalog_file WHERE receiver = :receiver AND {state} AND {column} IN :many"
        found.update(row[0] for row in in_chunks(connection, sql, wanted, receiver=receiver))
    return found


def widen_tables(connection: Connection, receiver: str, site_id: str, widths: Mapping[tuple[str, str], int]) -> None:
    """Raise each (database, table) to at least this number of tags; tables never get narrower."""
    note_widths(connection, site_id, widths)
    rows = [{"r": receiver, "s": site_id, "d": d, "t": t, "n": tags} for (d, t), tags in sorted(widths.items())]
    write_rows(
        connection,
        "INSERT INTO table_width (receiver, site_id, database_name, table_name, tags) VALUES (:r, :s, :d, :t, :n) "
        "ON CONFLICT (receiver, site_id, database_name, table_name) DO UPDATE SET tags = "
        "CASE WHEN table_width.tags < excluded.tags THEN excluded.tags ELSE table_width.tags END",
        rows,
    )


def table_widths(connection: Connection, receiver: str) -> dict[tuple[str, str, str], int]:
    """Return (site, database, table) → number of tags that readers pad devices to."""
    query = sa.text("SELECT site_id, database_name, table_name, tags FROM table_width WHERE receiver = :receiver")
    return {(r[0], r[1], r[2]): int(r[3]) for r in connection.execute(query, {"receiver": receiver})}


def _add_devices(connection: Connection, files: Iterable[tuple[int, FileWithDevices]]) -> None:
    rows = [
        {"f": file_id, "d": d.device, "s": d.start, "e": d.end, "p": d.points} for file_id, one in files for d in one.devices
    ]
    write_rows(
        connection,
        "INSERT INTO catalog_device (file_id, device, start_time, end_time, points) VALUES (:f, :d, :s, :e, :p)",
        rows,
    )


def _new_ids(connection: Connection, count: int) -> list[int]:
    """Return new ids, ascending, in one query: SQLAlchemy would ask for each row's, seven times slower."""
    if connection.dialect.name == "sqlite":  # it has one writer at a time
        last = connection.execute(sa.text("SELECT seq FROM sqlite_sequence WHERE name = 'catalog_file'")).scalar() or 0
        return list(range(last + 1, last + 1 + count))
    sql = "SELECT nextval(pg_get_serial_sequence('catalog_file', 'file_id')) FROM generate_series(1, :count)"
    return sorted(int(file_id) for file_id in connection.execute(sa.text(sql), {"count": count}).scalars())


def _row_values(file_id: int, file: CatalogFile) -> dict[str, Any]:
    values = {column: getattr(file, name) for column, name in _PLAIN} | {"file_id": file_id}
    values |= zip(_RANKS, file.rank, strict=True)
    values["visible"] = int(file.visible)
    values["undecodable"] = json.dumps(file.undecodable, ensure_ascii=False) if file.undecodable else None
    return values


def _file_of_row(row: Mapping[Any, Any]) -> CatalogFile:
    values = {name: row[column] for name, column in _READ}
    values["visible"] = bool(row["visible"])
    unsequence, version, inner, cross, created = (int(row[name]) for name in _RANKS)
    undecodable = tuple(json.loads(row["undecodable"])) if row["undecodable"] else ()
    return CatalogFile(**values, rank=(unsequence, version, inner, cross, created), undecodable=undecodable)
