"""Look up what a name means (link, site, run, landing, path, device, in that order), and read the rows to explain it."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.formats.layout import MANIFEST, RECEIPT, landing_folder
from tidemark.ledger.sender.links import skipped_files
from tidemark.ledger.sql import Row, run_report
from tidemark.proof.coverage.gather import late_paths
from tidemark.proof.explanation import Explanation, format_events
from tidemark.proof.status import LinkStatus
from tidemark.proof.why.file import FileFacts, explain_file
from tidemark.proof.why.others import (
    explain_device,
    explain_landing,
    explain_link,
    explain_receiver,
    explain_run,
    explain_site,
)
from tidemark.tsfiles.sealed import MODS_SUFFIXES

_EVENTS = 8  # newest events shown
_NAMES = 5_000  # of each kind, compared with the given name


@dataclass(frozen=True)
class LookupContext:
    """What every lookup needs. `roots`: folders of local stores, cut off from pasted paths. `here`: receiver → its folder,
    for receivers on this machine."""

    connection: Connection
    links: Mapping[str, LinkStatus]
    names: Mapping[str, str]  # {site id: name}
    left_out: str
    remote: frozenset[str] = frozenset()
    roots: Sequence[str] = field(default=())
    here: Mapping[str, Path] = field(default_factory=dict)


def explain_subject(lookup: LookupContext, subject: str) -> Explanation | None:
    """Return the explanation of what `subject` names; None where the ledger does not know the name."""
    for look in (
        _lookup_link,
        _lookup_site,
        _lookup_receiver,
        _lookup_run,
        _lookup_holder,
        _lookup_landing,
        _lookup_file,
        _lookup_device,
    ):
        answer = look(lookup, subject)
        if answer is not None:
            return answer
    return None


def suggest_names(lookup: LookupContext, subject: str) -> list[str]:
    """Return similar names that may have been meant."""
    known = {str(r["name"]) for r in run_report(lookup.connection, "known_names", most=_NAMES)} | set(lookup.links)
    ends = {name.rpartition("/")[2]: name for name in known}
    found = difflib.get_close_matches(subject, [*known, *ends], n=3, cutoff=0.5)
    return list(dict.fromkeys(ends.get(name, name) for name in found))


def bare_path(lookup: LookupContext, subject: str) -> str:
    """Return the path of the TsFile meant: without a local store's folder, a landing's folder or a companion's ending."""
    path = subject
    for root in lookup.roots:
        path = path.removeprefix(root.rstrip("/") + "/")
    for ending in (".resource", *MODS_SUFFIXES):
        path = path.removesuffix(ending)
    if path.startswith("landing/") and path.count("/") > 2:
        path = path.split("/", 3)[3]
    return path


def _lookup_link(lookup: LookupContext, subject: str) -> Explanation | None:
    status = lookup.links.get(subject)
    if status is None:
        return None
    skipped = skipped_files(lookup.connection, subject)
    events = run_report(lookup.connection, "events_of_run", run=status.facts.run, most=_EVENTS)
    return explain_link(status, skipped, format_events(events))


def _lookup_site(lookup: LookupContext, subject: str) -> Explanation | None:
    site_id = next((s for s, name in lookup.names.items() if subject in (s, name)), None)
    if site_id is None:
        return None
    name = lookup.names[site_id]
    counts = [c for c in run_report(lookup.connection, "site_counts") if c["site_id"] == site_id]
    gaps = [
        f"{c['receiver']}: landing {r['landing']} {r['state']}: {r['reason']}"
        for c in counts
        for r in run_report(lookup.connection, "unloaded_landings", receiver=c["receiver"], site=site_id)
        if r["reason"]
    ]
    return explain_site(name, [s for s in lookup.links.values() if s.facts.site == name], counts, gaps)


def _lookup_receiver(lookup: LookupContext, subject: str) -> Explanation | None:
    if subject not in lookup.here and subject not in lookup.remote:
        return None
    return explain_receiver(subject, [s for s in lookup.links.values() if s.facts.receiver == subject])


def _lookup_run(lookup: LookupContext, subject: str) -> Explanation | None:
    alias = _query_rows(lookup, "SELECT run_id FROM run_alias WHERE external = :name", subject)
    run_id = alias[0]["run_id"] if alias else subject
    found = run_report(lookup.connection, "run_story", run=run_id)
    if not found:
        return None
    items = run_report(lookup.connection, "run_items", run=run_id)
    events = run_report(lookup.connection, "events_of_run", run=run_id, most=_EVENTS)
    return explain_run(found[0], items, lookup.links.get(found[0]["link"]), format_events(events))


def _lookup_holder(lookup: LookupContext, subject: str) -> Explanation | None:
    held = _query_rows(lookup, "SELECT * FROM lease WHERE holder = :name OR name = :name", subject)
    if not held or not held[0]["holder"]:
        return None
    lease = held[0]
    where = f"process {lease['pid']} on {lease['host']}" if lease["pid"] else f"no process now (host {lease['host']})"
    facts = (f"lease {lease['name']}, fence {lease['fence']}, {where}",)
    return Explanation(
        subject,
        "lease",
        "held",
        f"{lease['holder']} holds {lease['name']}",
        facts,
        "wait for it; a dead process of this host is replaced at once, one elsewhere after a minute",
        "it is given back when the work ends, or runs out",
    )


def _lookup_landing(lookup: LookupContext, subject: str) -> Explanation | None:
    name = subject
    if subject.startswith("landing/"):
        name = subject.removesuffix(f"/{MANIFEST}").removesuffix(f"/{RECEIPT}").rstrip("/").rpartition("/")[2]
    rows = run_report(lookup.connection, "landing_story", landing=name)
    return explain_landing(name, rows, lookup.names, _find_missing_folder(lookup, name, rows)) if rows else None


def _find_missing_folder(lookup: LookupContext, landing: str, rows: Sequence[Row]) -> str:
    """Return the folder of a landing that is not loaded and is missing at its receiver; '' where it is there."""
    row = rows[0]
    status = lookup.links.get(row["place"]) if row["side"] == "sender" else None
    root = lookup.here.get(status.facts.receiver if status else row["place"])
    if root is None or row["state"] not in ("landed", "waiting", "found", "loading"):
        return ""
    folder = landing_folder(row["site_id"], landing)
    return "" if (root / folder).is_dir() else folder


def _lookup_file(lookup: LookupContext, subject: str) -> Explanation | None:
    found = _find_paths(lookup, bare_path(lookup, subject)) or _find_paths(lookup, subject)  # a companion without a TsFile
    answers = [_explain_path(lookup, r["site_id"], r["path"]) for r in found[:20]]
    if not answers:
        return None
    answers.sort(key=lambda a: a.final)  # open ones first
    first, rest = answers[0], answers[1:]
    others = tuple(f"also: {a.subject}: {a.state}" for a in rest)
    return Explanation(**{**vars(first), "evidence": (*first.evidence, *others)})


def _find_paths(lookup: LookupContext, path: str) -> Sequence[Row]:
    escaped = path.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return run_report(lookup.connection, "paths_named", path=path, ending=f"%/{escaped}")


def _explain_path(lookup: LookupContext, site_id: str, path: str) -> Explanation:
    place = {"site": site_id, "path": path}
    sources = run_report(lookup.connection, "path_in_catalog", **place)
    links = run_report(lookup.connection, "path_at_links", **place)
    newest = int(sources[0]["file_id"]) if sources else 0
    file = FileFacts(
        path=path,
        site=lookup.names.get(site_id, site_id),
        links=links,
        receivers=run_report(lookup.connection, "path_at_receivers", **place),
        troubles=run_report(lookup.connection, "path_troubles", **place),
        sources=sources,
        above=run_report(lookup.connection, "stands_for", file_id=newest) if newest else (),
        clashes=_read_clashes(lookup, site_id, newest) if newest else (),
        late=late_paths(lookup.connection, site_id).get(path, ""),
        kept_apart=_read_kept_apart(lookup, site_id, newest) if newest else (),
        status=lookup.links.get(links[0]["link"]) if links else None,
        names=dict(lookup.names),
        left_out=lookup.left_out,
        remote=lookup.remote,
    )
    return explain_file(file, format_events(run_report(lookup.connection, "events_of_path", path=path, most=_EVENTS)))


def _read_clashes(lookup: LookupContext, site_id: str, file_id: int) -> list[Row]:
    devices = {r["device"] for r in _query_rows(lookup, "SELECT device FROM catalog_device WHERE file_id = :name", file_id)}
    clashes = run_report(lookup.connection, "series_clashes", site=site_id)
    return [c for c in clashes if any(c["series"].startswith(d + ".") for d in devices)]


def _read_kept_apart(lookup: LookupContext, site_id: str, file_id: int) -> list[Row]:
    return [r for r in run_report(lookup.connection, "merges_kept", site=site_id) if file_id in json.loads(r["files"])]


def _lookup_device(lookup: LookupContext, subject: str) -> Explanation | None:
    held = run_report(lookup.connection, "device_story", device=subject)
    claims = run_report(lookup.connection, "device_claims", device=subject)
    escaped = subject.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    waiting = run_report(lookup.connection, "device_not_there", pattern=f'%["{escaped}",%')
    if not (held or claims or waiting):
        return _lookup_series(lookup, subject)
    sites = sorted({row["site_id"] for row in held})
    clashes = [c for site in sites for c in run_report(lookup.connection, "series_clashes", site=site)]
    mine = [c for c in clashes if c["series"].startswith(subject + ".")]
    return explain_device(subject, held, claims, waiting, lookup.names, mine)


def _lookup_series(lookup: LookupContext, subject: str) -> Explanation | None:
    """Explain a series by its device. Nodes may be quoted, so every dot that could end the device is tried."""
    known = _query_rows(lookup, "SELECT series FROM schema_series WHERE series = :name", subject)
    ends = [at for at, letter in enumerate(subject) if letter == "."][::-1]
    devices = (subject[:end] for end in ends if known)
    return next((answer for device in devices if (answer := _lookup_device(lookup, device)) is not None), None)


def _query_rows(lookup: LookupContext, sql: str, name: object) -> list[Row]:
    return [dict(r) for r in lookup.connection.execute(sa.text(sql), {"name": name}).mappings()]
