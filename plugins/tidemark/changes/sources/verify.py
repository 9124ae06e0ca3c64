"""Is every transaction of a source in its store, once? The store alone, then beside the server's logs or log files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemark.changes.capture.identity import read_origin
from tidemark.changes.capture.transactions import Rules
from tidemark.changes.delivery.export import choose_tables
from tidemark.changes.sources.source import Source, open_files, resume_source, wants_of
from tidemark.changes.store.verify import Verified, verify_store
from tidemark.changes.store.view import read_next_view
from tidemark.changes.trust.gaps import OPEN, Gap, is_in_gap, read_gaps
from tidemark.changes.trust.patterns import read_taken
from tidemark.progress import Progress, ignore_progress

if TYPE_CHECKING:
    from tidemark.changes.capture.proof import Proof

VERIFIED = "verified"
"""When the store was last found whole: seconds since 1970, as text."""
VERIFY_SECONDS = 86_400


@dataclass(frozen=True)
class Proven:
    """What `verify_source` found: of the store alone, and beside the logs (None: there is no server, and no file)."""

    store: Verified
    logs: Proof | None
    gaps: tuple[Gap, ...]

    @property
    def problems(self) -> list[dict[str, str]]:
        """`what` (damaged, missing, double, unknown, changed) and `problem`, each."""
        found = [{"what": "damaged", "problem": problem} for problem in self.store.problems]
        return found + [{"what": what, "problem": which} for what, which in (self.logs.differences if self.logs else ())]


def verify_source(
    source: Source, files: Sequence[str] = (), *, deep: bool = False, progress: Progress = ignore_progress
) -> Proven:
    """Every checksum and every seam of the store, and every transaction of the server's logs, or of log files, in it once.

    `deep`: their rows, too. When nothing is wrong, that is noted beside the store, for `is_verify_due`.
    """
    source.open_reader()
    store, gaps, logs = verify_store(source.disk), read_gaps(source.disk), None
    if not store.problems and (files or source.settings.url):
        logs = _prove_logs(source, files, gaps, deep=deep, progress=progress)
    proven = Proven(store, logs, tuple(gap for gap in gaps if gap.state == OPEN))
    if not proven.problems:
        # CRASH WINDOW: it is not noted: the next round verifies again.
        source.disk.publish(VERIFIED, str(int(source.app.clock())).encode())
    return proven


def _prove_logs(
    source: Source, files: Sequence[str], gaps: Sequence[Gap], *, deep: bool, progress: Progress
) -> Proof | None:
    from tidemark.changes.capture.proof import Choice, NoCatalog, prove_transactions  # it imports Arrow

    reader, origin = source.open_reader(), read_origin(source.disk)
    if origin is None:
        return None
    end = reader.view.end.info
    begin = next(reader.read()).transaction.info
    first = origin.name_log(begin.file, begin.change_id) if begin.change_id == end.change_id else ""
    dump, purged = (open_files(files)(None)[0], None) if files else resume_source(source).open_logs(first)
    # What cannot be trusted ended the capture; where it did not, the store says so, and here it is no reason to end.
    catalog = NoCatalog() if source.settings.metadata == "catalog" else None
    taken = [Choice(one.seq, choose_tables(one.tables, one.exclude)) for one in read_taken(source.disk)]
    choices = taken or [Choice(1, wants_of(source.settings))]
    rules = Rules(
        lambda *table: any(choice.wants(*table) for choice in choices), end.change_id, stops=False, catalog=catalog
    )
    return prove_transactions(
        reader,
        dump,
        rules,
        lambda info, gtid: any(is_in_gap(gap, info, gtid) for gap in gaps),
        choices=choices,
        purged=purged,
        deep=deep,
        progress=progress,
    )


def is_verify_due(source: Source) -> bool:
    """Whether the store was last found whole a day ago, or never. An empty one has nothing to verify."""
    try:
        last = int(source.disk.read(VERIFIED))
    except (FileNotFoundError, ValueError):
        last = 0
    return bool(read_next_view(source.disk).end.seq) and source.app.clock() - last >= VERIFY_SECONDS
