"""The documents in a node's folder as bytes: the claim on the folder, and bytes stored below a head with their digest.

`node.json` is JSON. A kept document (a partition table, the schema of a database) begins with one line of JSON. It gives the
subject, and the length and SHA-256 of the bytes that follow. The schema of a database is JSON lines, made from the ledger: a
head with the database, then one line for each series, by site and name. Equal schemas give equal bytes. A member of a group
gets it before its files. Source: seed 001 "Content of the method"; docs/decisions/0015; docs/formats/node-folder.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.engine import Connection

from tidemark.errors import CorruptionError, SchemaTooNewError
from tidemark.formats.json_stream import parse_json
from tidemark.ledger.receiver import schemas as schema_rows
from tidemark.ledger.receiver.schemas import SeriesRow

FORM = 1
_LONGEST_HEAD = 1 << 16  # bytes; the longest part is the name of a database
_WHOSE = (
    "look whose disk it is (docs/runbooks/cluster.md); the node's own: empty the folder, then"
    " ./tidemark cluster check --repair --lost NODE"
)


@dataclass(frozen=True)
class NodeClaim:
    """The owner of a folder. `cluster`: the cluster's identity, made once by `cluster init`; `node`: the node's name."""

    cluster: str
    node: str


@dataclass(frozen=True)
class KeptDocument:
    """Bytes with their subject. `about`: an epoch as text, or the name of a database."""

    kind: str  # table | schema
    about: str
    body: bytes


def encode_node(record: NodeClaim) -> bytes:
    words = {"form": FORM, "cluster": record.cluster, "node": record.node}
    return json.dumps(words, ensure_ascii=False).encode() + b"\n"


def decode_node(data: bytes, place: str) -> NodeClaim:
    """Read a claim. CorruptionError if damaged, SchemaTooNewError for a later form. `place`: its URL, for the error."""
    try:
        words = _parse_head(data, place)
        return NodeClaim(_require_text(words["cluster"]), _require_text(words["node"]))
    except (KeyError, TypeError) as broken:
        raise CorruptionError(
            f"{place} is damaged: {type(broken).__name__} {broken}", hint=_WHOSE, subject=place
        ) from broken
    except CorruptionError as torn:
        raise CorruptionError(torn.message, hint=_WHOSE, subject=place) from torn


def encode_kept(record: KeptDocument) -> bytes:
    head = {
        "form": FORM,
        "kind": record.kind,
        "about": record.about,
        "bytes": len(record.body),
        "sha256": hashlib.sha256(record.body).hexdigest(),
    }
    return json.dumps(head, ensure_ascii=False).encode() + b"\n" + record.body


def decode_kept(data: bytes, kind: str, place: str) -> KeptDocument:
    """Read a document. CorruptionError if it is damaged or of another kind, SchemaTooNewError for a later form."""
    end = data.find(b"\n", 0, _LONGEST_HEAD)
    line, body = data[: max(end, 0)], memoryview(data)[end + 1 :]
    head = _parse_head(line, place)
    try:
        said = (_require_text(head["kind"]), _require_text(head["about"]), int(head["bytes"]), _require_text(head["sha256"]))
    except (KeyError, TypeError, ValueError) as broken:
        raise _torn_error(place, f"{type(broken).__name__} {broken}") from broken
    if said[0] != kind:
        raise _torn_error(place, f"it is a record of kind {said[0]!r}")
    if len(body) != said[2] or hashlib.sha256(body).hexdigest() != said[3]:
        raise _torn_error(place, f"{len(body)} bytes that do not match its digest, {said[2]} were written")
    return KeptDocument(kind, said[1], bytes(body))


def _parse_head(line: bytes, place: str) -> dict[str, Any]:
    try:
        words = parse_json(line)
        form = int(words["form"])
    except (ValueError, KeyError, TypeError) as broken:
        raise _torn_error(place, f"{type(broken).__name__} {broken}") from broken
    if form > FORM:
        raise SchemaTooNewError(
            f"{place} was written by a newer Tidemark (form {form}, this one knows {FORM})",
            hint="use that version, or a newer one",
            subject=place,
        )
    return dict(words)


def _require_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _torn_error(place: str, why: str) -> CorruptionError:
    return CorruptionError(
        f"{place} is damaged: {why}", hint="./tidemark cluster check --repair writes it again", subject=place
    )


SCHEMA_FORM = 1
_KEPT = ("site_id", "series", "type", "encoding", "compression", "aligned", "state")


def schema_bytes_of(connection: Connection, receiver: str, database: str) -> bytes:
    """Return what the ledger knows of the database's series now; for an unknown database only the head."""
    return encode_schema(database, schema_rows.series_of_database(connection, receiver, database))


def encode_schema(database: str, rows: list[SeriesRow]) -> bytes:
    """Write the head, then the rows in their order."""
    lines: list[object] = [{"form": SCHEMA_FORM, "database": database}]
    lines += [{name: getattr(row, name) for name in _KEPT} for row in rows]
    return "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines).encode()


def decode_schema(data: bytes, receiver: str, source: str) -> list[SeriesRow]:
    """Return the series as the receiver's rows, declared by `source`, which the bytes do not hold. CorruptionError for
    damaged bytes, SchemaTooNewError for a later form."""
    try:
        head, *series = [parse_json(line) for line in data.decode().split("\n")[:-1]]
        form, database = int(head["form"]), str(head["database"])
        if form <= SCHEMA_FORM:
            return [SeriesRow(receiver, database_name=database, source=source, **_known_fields(line)) for line in series]
    except (ValueError, KeyError, TypeError) as torn:
        raise CorruptionError(f"a schema record is damaged: {torn}", hint="./tidemark cluster check") from torn
    raise SchemaTooNewError("a schema record was written by a newer Tidemark", hint="use that version, or a newer one")


def _known_fields(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known fields of a line; unknown keys are ignored."""
    return {name: line[name] for name in _KEPT}
