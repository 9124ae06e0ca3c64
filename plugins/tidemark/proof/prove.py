"""The verbs coverage and why. They combine the ledger, the receiver's disk and the site's files.

`coverage` asks no site, so it works while a site is away. The state of a file at a receiver's IoTDB, one more line where
`why` explains it, comes from the ledger alone. A file that no run has listed yet is searched for at its site.
"""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.errors import NotFoundError, TidemarkError
from tidemark.ledger.cluster.copies import held_somewhere
from tidemark.ledger.database import database_time
from tidemark.ledger.receiver import iotdb as iotdb_rows
from tidemark.ledger.sql import file_checks, put_file_checks, run_report
from tidemark.proof.as_of import as_of
from tidemark.proof.coverage.cells import Coverage
from tidemark.proof.coverage.gather import read_replica_proof
from tidemark.proof.coverage.site import CoverageScope, Site, cover_site, sites_of
from tidemark.proof.explanation import Explanation
from tidemark.proof.overview import LEFT_OUT, read_links
from tidemark.proof.why.file import explain_unlisted
from tidemark.proof.why.subjects import LookupContext, bare_path, explain_subject, suggest_names
from tidemark.receiver.proved_files import Recorded, check_files
from tidemark.receiver.session import local_root
from tidemark.settings.document import is_pattern
from tidemark.settings.model import LinkSettings, ReceiverSettings


def coverage(
    app: App, receiver: ReceiverSettings, site: str = "", since: str | None = None, until: str | None = None
) -> Coverage:
    """Return device × day (UTC) of a receiver whose files are on this machine. `since` is inclusive, `until` exclusive.

    Raises UsageError for a remote receiver or a malformed time, NotFoundError for an unknown site.
    """
    root = local_root(app, receiver)
    with app.ledger.read() as connection:
        wanted = sites_of(app, connection, receiver, site)
        recorded, remembered = _read_recorded(connection, receiver.name), file_checks(connection, receiver.name)
        elsewhere = held_somewhere(connection, receiver.name)
    checked = check_files(root, recorded, remembered, elsewhere)  # slow: outside of any transaction
    with app.ledger.read() as connection:
        scene = CoverageScope(
            receiver.name, root, app.site_names(connection), checked.wrong, LEFT_OUT, since, until, app.clock()
        )
        dates = {s: as_of(connection, receiver.name, s.site_id, _link_of(app, s), app.clock()) for s in wanted}
        covered = tuple(cover_site(connection, scene, s, dates[s]) for s in wanted)
        replicas = read_replica_proof(connection, receiver.name)
    with app.ledger.write() as connection:
        put_file_checks(connection, receiver.name, checked.fresh, database_time(connection))
    return Coverage(covered, receiver.name, app.clock(), replicas)


def _link_of(app: App, site: Site) -> LinkSettings | None:
    return app.link_settings(site.link) if site.link else None


def why(app: App, subject: str) -> Explanation:
    """Explain a link, site, run, landing, file or device by the name that a person uses.

    A path that the ledger does not know is searched for at the sites. `node:NAME`, `slot:N`, `group:NAME` are a cluster's;
    `source:NAME`, `table:NAME`, `gap:ID` and GTIDs are of changes. Raises NotFoundError with the nearest names.
    """
    if app.settings.cluster is not None and subject.startswith(("node:", "slot:", "group:")):
        from tidemark.proof.cluster.why import explain_part

        return explain_part(app, subject)
    if app.settings.sources:
        from tidemark.proof.why.changes import explain_change, names_change

        if names_change(app, subject):
            return explain_change(app, subject)
    with app.ledger.read() as connection:
        lookup = _open_lookup(app, connection)
        answer = explain_subject(lookup, subject) or _explain_at_site(app, bare_path(lookup, subject))
        if answer is None:
            close = suggest_names(lookup, subject)
            pattern = " (why takes one name, no pattern)" if is_pattern(subject) else ""
            raise NotFoundError(
                f"nothing is known by the name {subject!r}{pattern}"
                + (f"; did you mean {', '.join(close)}?" if close else ""),
                hint=f"./tidemark why {close[0]}" if close else "./tidemark status",
                subject=subject,
            )
        return add_target_states(connection, answer)


def _open_lookup(app: App, connection: Connection) -> LookupContext:
    names = app.site_names(connection)
    stores = [s.store for s in app.settings.sites.values()] + [r.store for r in app.settings.receivers.values()]
    return LookupContext(
        connection=connection,
        links={s.facts.link: s for s in read_links(app, connection)},
        names=names,
        left_out=LEFT_OUT,
        remote=frozenset(r.name for r in app.settings.receivers.values() if app.receiver_root(r) is None),
        here={r.name: root for r in app.settings.receivers.values() if (root := app.receiver_root(r)) is not None},
        roots=[store.removeprefix("file://") for store in stores if store.startswith("file://")],
    )


def _explain_at_site(app: App, path: str) -> Explanation | None:
    """Explain a file that no run has listed yet, from its site. A site that does not answer is skipped."""
    if ".tsfile" not in path:
        return None
    for site in app.settings.sites.values():
        try:
            with app.site_store(site) as store:
                found = explain_unlisted(store, site, path)
        except TidemarkError:
            continue
        if found is not None:
            return found
    return None


def _read_recorded(connection: Connection, receiver: str) -> list[Recorded]:
    """Return every file that readers see, with the ledger's record of its bytes."""
    recorded = []
    for r in run_report(connection, "visible_bytes", receiver=receiver):
        recorded.append(Recorded(r["location"], int(r["size"]), r["sha256"]))
        if r["mods_location"]:
            recorded.append(Recorded(r["mods_location"], 0, r["mods_sha256"]))
    return recorded


def add_target_states(connection: Connection, answer: Explanation) -> Explanation:
    """Add to a file's explanation what became of it at IoTDBs that it is loaded into."""
    rows = iotdb_rows.of_path(connection, answer.subject) if answer.kind == "file" else []
    if not rows:
        return answer
    words = {
        "given": "has it",
        "giving": "was being given it; the next load asks what it has",
        "held": "was not given it",
        "gone": "forgot it",
    }
    told = tuple(f"IoTDB {server} {words[row.state]}" + (f": {row.reason}" if row.reason else "") for server, row in rows)
    answer = replace(answer, evidence=(*answer.evidence, *told))
    if all(row.state == "given" for _, row in rows):
        return answer
    return replace(answer, next=answer.next or "./tidemark load", final=False)
