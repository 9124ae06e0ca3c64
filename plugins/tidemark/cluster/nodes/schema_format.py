"""The schema of a database as bytes: what a member of a group gets before its files. Rendered from the ledger.

JSON lines: a head with the database, then a series a line, by site and name; equal schemas give equal bytes. Source: seed
001 "Content of the method" (the metadata of the time series is migrated first); docs/formats/node-folder.md.
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
    """What the ledger knows of the database's series now; of an unknown database a head alone."""
    return encode_schema(database, schema_rows.series_of_database(connection, receiver, database))


def encode_schema(database: str, rows: list[SeriesRow]) -> bytes:
    """The head, then the rows as they come."""
    lines: list[object] = [{"form": FORM, "database": database}]
    lines += [{name: getattr(row, name) for name in _KEPT} for row in rows]
    return "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines).encode()


def decode_schema(data: bytes, receiver: str, source: str) -> list[SeriesRow]:
    """Its series as the receiver's rows, declared by `source`: the paper does not say by what. CorruptionError for what is
    no such paper, SchemaTooNewError for one of a later form."""
    try:
        head, *series = [parse_json(line) for line in data.decode().split("\n")[:-1]]
        form, database = int(head["form"]), str(head["database"])
        if form <= FORM:
            return [SeriesRow(receiver, database_name=database, source=source, **_known_fields(line)) for line in series]
    except (ValueError, KeyError, TypeError) as torn:
        raise CorruptionError(f"a schema paper is damaged: {torn}", hint="./tidemark cluster check") from torn
    raise SchemaTooNewError("a schema paper was written by a newer Tidemark", hint="use that version, or a newer one")


def _known_fields(line: Mapping[str, Any]) -> dict[str, Any]:
    """What a line says of its series; keys that this version does not know are passed over."""
    return {name: line[name] for name in _KEPT}
