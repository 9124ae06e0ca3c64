"""The step sync_schema: send what the site's schema logs gained since the last acknowledgement, before any data file.

IoTDB appends to a schema log. The ledger keeps how many bytes were acknowledged and their digest. A log that shrank, or
whose beginning differs, was restarted at the site (a checkpoint cleared it, it was rebuilt). It is sent from 0 under the
next epoch. Positions move when the landing with the bytes is complete.
Source: seed 000 "Synchronization schema", research/iotdb.md §1.8, B9, B10.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tidemark.errors import CorruptionError, SourceVanishedError
from tidemark.formats.layout import landed_path
from tidemark.ledger import journal
from tidemark.ledger.sender import links as link_rows
from tidemark.ledger.sender import runs as run_rows
from tidemark.ledger.sender.links import SchemaPosition
from tidemark.ledger.sender.runs import RunSchema
from tidemark.stores.listing import mark_unlisted
from tidemark.stores.protocol import UNLISTED, Entry, Range
from tidemark.sync.session import Site, Work
from tidemark.untrusted_files import MOST_DOCUMENT

_PIECE = 1 << 20


@dataclass(frozen=True)
class Piece:
    """Bytes `start`..`end` of a schema log to send. `began_anew`: the log was restarted since the acknowledgement."""

    path: str
    epoch: int
    start: int
    end: int
    mtime: int
    began_anew: bool = False


def plan_piece(log: Entry, known: SchemaPosition | None, prefix_sha256: str | None) -> Piece | None:
    """Return what to send of a log, None for nothing. `prefix_sha256`: present digest of its first `known.position` bytes,
    None if it has fewer. Pure."""
    if known is None:
        return Piece(log.path, 1, 0, log.size, log.mtime) if log.size else None
    if prefix_sha256 != known.prefix_sha256:
        return Piece(log.path, known.epoch + 1, 0, log.size, log.mtime, began_anew=True)
    return Piece(log.path, known.epoch, known.position, log.size, log.mtime) if log.size > known.position else None


def sync_schema(work: Work) -> Mapping[str, int]:
    """Make the new bytes durable at the receiver and record them. Returns {"files", "bytes"} of this run."""
    if work.site.schema:
        with work.ledger.read() as connection:
            done = {p.path for p in run_rows.schema_pieces(connection, work.run_id)}
            begun = bool(run_rows.sent_landings(connection, work.link.name, run_id=work.run_id))
        if not begun:  # a run's schema is sent in its first part
            planned, unlisted = plan_pieces(work)
            for piece in planned:
                if piece.path not in done:
                    _send_piece(work, piece)
            if unlisted:
                with work.write_under_lease() as connection:
                    link_rows.add_skipped(connection, work.link.name, unlisted)
    with work.ledger.read() as connection:
        pieces = run_rows.schema_pieces(connection, work.run_id)
    return {"files": len(pieces), "bytes": sum(p.size for p in pieces)}


def schema_path(piece: Piece) -> str:
    """Return a piece's path below its landing. Epoch and first byte make it unique among the pieces of its log."""
    return f"_schema/{landed_path(piece.path)}.{piece.epoch}-{piece.start}"


def plan_pieces(site: Site) -> tuple[Sequence[Piece], Mapping[str, str]]:
    """Return what the site's schema logs gained, and {path: reason} of what could not be listed or is too large to send. A
    log of known size and time is not read."""
    with site.ledger.read() as connection:
        known = link_rows.schema_positions(connection, site.link.name)
    listing = site.source.list_files([site.site.schema])
    logs = [e for e in listing.entries if not e.path.endswith((".temp", ".tmp"))]
    grown = [e for e in logs if e.path not in known or (e.size, e.mtime) != (known[e.path].position, known[e.path].mtime)]
    ranges = [Range(e.path, 0, known[e.path].position if e.path in known else 0) for e in grown]
    planned = map(plan_piece, grown, [known.get(e.path) for e in grown], site.source.digest_ranges(ranges))
    pieces = [piece for piece in planned if piece]
    too_large = {piece.path: _TOO_LARGE.format(piece.end - piece.start) for piece in pieces if not _is_small_enough(piece)}
    return [piece for piece in pieces if _is_small_enough(piece)], {**dict(mark_unlisted(listing.odd)), **too_large}


def _is_small_enough(piece: Piece) -> bool:
    return piece.end - piece.start <= MOST_DOCUMENT


_TOO_LARGE = f"{UNLISTED}it gained {{:,}} bytes, of a schema log at most {MOST_DOCUMENT:,} are sent at once"


def _send_piece(work: Work, piece: Piece) -> None:
    """Send the bytes, then record them. A log that vanishes or is restarted while it is read waits for the next run."""
    target = f"{work.landing_folder(work.landing_of_part(1))}/{schema_path(piece)}"
    size = piece.end - piece.start
    digest = hashlib.sha256()

    def hashed() -> Iterator[bytes]:
        for data in work.source.read_chunks(piece.path, piece.start, size, _PIECE):
            digest.update(data)
            yield data

    try:
        work.target.write_part(target + ".part", 0, hashed())
    except SourceVanishedError:
        return
    ranges = {Range(piece.path, piece.start, size), Range(piece.path, 0, piece.end)}
    digests = dict(zip(ranges, work.source.digest_ranges(list(ranges)), strict=True))
    at_source, prefix = digests[Range(piece.path, piece.start, size)], digests[Range(piece.path, 0, piece.end)]
    if at_source is None or prefix is None or at_source != digest.hexdigest():
        return
    if work.target.sha256(target + ".part") != at_source:
        raise CorruptionError(
            f"{piece.path}: its bytes differ at the receiver", hint="run it again; then check the receiver's disk"
        )
    work.target.seal_parts([(target + ".part", target)])
    # CRASH WINDOW: durable but not recorded; the rerun writes the same or a longer piece under the same name.
    with work.write_under_lease() as connection:
        row = RunSchema(piece.path, piece.epoch, piece.start, size, piece.mtime, at_source, prefix, schema_path(piece))
        run_rows.put_schema(connection, work.run_id, row)
        if piece.began_anew:
            journal.record_event(
                connection, "schema.truncated", link=work.link.name, run_id=work.run_id, path=piece.path, size=piece.end
            )
