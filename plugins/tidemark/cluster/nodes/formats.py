"""The papers in a node's folder as bytes: whose folder it is, and what is kept there under a head with its digest.

`node.json` is JSON. A kept paper (a partition table, the schema of a database) is one line of JSON, which says what it is
of and the length and SHA-256 of the bytes that follow. Source: docs/decisions/0015; the fields: docs/formats/node-folder.md.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from tidemark.errors import CorruptionError, SchemaTooNewError
from tidemark.formats.json_stream import parse_json

FORM = 1
_LONGEST_HEAD = 1 << 16  # bytes; the name of a database is the longest in it
_WHOSE = (
    "look whose disk it is (docs/runbooks/cluster.md); the node's own: empty the folder, then"
    " ./tidemark cluster check --repair --lost NODE"
)


@dataclass(frozen=True)
class NodeClaim:
    """Whose folder it is. `cluster`: the identity of the cluster, made once by `cluster init`; `node`: the node's name."""

    cluster: str
    node: str


@dataclass(frozen=True)
class KeptDocument:
    """Bytes of which `about` says what they are: an epoch as text, or the name of a database."""

    kind: str  # table | schema
    about: str
    body: bytes


def encode_node(paper: NodeClaim) -> bytes:
    words = {"form": FORM, "cluster": paper.cluster, "node": paper.node}
    return json.dumps(words, ensure_ascii=False).encode() + b"\n"


def decode_node(data: bytes, place: str) -> NodeClaim:
    """CorruptionError for a torn one, SchemaTooNewError for a later form. `place`: how an operator finds it."""
    try:
        words = _parse_head(data, place)
        return NodeClaim(_require_text(words["cluster"]), _require_text(words["node"]))
    except (KeyError, TypeError) as broken:
        raise CorruptionError(
            f"{place} is damaged: {type(broken).__name__} {broken}", hint=_WHOSE, subject=place
        ) from broken
    except CorruptionError as torn:
        raise CorruptionError(torn.message, hint=_WHOSE, subject=place) from torn


def encode_kept(paper: KeptDocument) -> bytes:
    head = {
        "form": FORM,
        "kind": paper.kind,
        "about": paper.about,
        "bytes": len(paper.body),
        "sha256": hashlib.sha256(paper.body).hexdigest(),
    }
    return json.dumps(head, ensure_ascii=False).encode() + b"\n" + paper.body


def decode_kept(data: bytes, kind: str, place: str) -> KeptDocument:
    """CorruptionError for a torn or another kind of paper, SchemaTooNewError for a later form."""
    end = data.find(b"\n", 0, _LONGEST_HEAD)
    line, body = data[: max(end, 0)], memoryview(data)[end + 1 :]
    head = _parse_head(line, place)
    try:
        said = (_require_text(head["kind"]), _require_text(head["about"]), int(head["bytes"]), _require_text(head["sha256"]))
    except (KeyError, TypeError, ValueError) as broken:
        raise _torn_error(place, f"{type(broken).__name__} {broken}") from broken
    if said[0] != kind:
        raise _torn_error(place, f"it is a paper of kind {said[0]!r}")
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
