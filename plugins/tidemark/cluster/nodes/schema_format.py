"""The schema of a database as bytes, which a member of a group gets before its files. Made from the ledger.

JSON lines: a head with the database, then one line for each series, by site and name. Equal schemas give equal bytes.
Source: seed 001 "Content of the method" (the metadata of the time series is migrated first); docs/formats/node-folder.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy.engine import Connection

from tidemark.errors import CorruptionError, SchemaTooNewError
from tidemark.formats.json_stream import parse_json
from tidemark.ledger.receiver import schemas as schema_rows
from tidemark.ledger.receiver.schemas import SeriesRow

FORM = 1
_KEPT = ("site_id", "series", "type", "encoding", "compression", "aligned", "state")


def schema_bytes_of(connection: Connection, receiver: str, database: str) -> bytes:
    """Return what the ledger knows of the database's series now; for an unknown database only the head."""
    return encode_schema(database, schema_rows.series_of_database(connection, receiver, database))


def encode_schema(database: str, rows: list[SeriesRow]) -> bytes:
    """Write the head, then the rows in their order."""
    lines: list[object] = [{"form": FORM, "database": database}]
    lines += [{name: getattr(row, name) for name in _KEPT} for row in rows]
    return "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines).encode()


def decode_schema(data: bytes, receiver: str, source: str) -> list[SeriesRow]:
    """Return the series as the receiver's rows, declared by `source`, which the bytes do not hold. CorruptionError for
    damaged bytes, SchemaTooNewError for a later form."""
    try:
        head, *series = [parse_json(line) for line in data.decode().split("\n")[:-1]]
        form, database = int(head["form"]), str(head["database"])
        if form <= FORM:
            return [SeriesRow(receiver, database_name=database, source=source, **_known_fields(line)) for line in series]
    except (ValueError, KeyError, TypeError) as torn:
        raise CorruptionError(f"a schema paper is damaged: {torn}", hint="./tidemark cluster check") from torn
    raise SchemaTooNewError("a schema paper was written by a newer Tidemark", hint="use that version, or a newer one")


def _known_fields(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known fields of a line; unknown keys are ignored."""
    return {name: line[name] for name in _KEPT}
