"""Open the run of a link: its lease, its row, the orchestrator's ids for it, its stored options.

The lease is acquired under the run's id before the row is written. The writing transaction notices a run that another
process opened or ended in between.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime

from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.errors import PermanentError, UsageError
from tidemark.formats.landing import decode_manifest
from tidemark.formats.layout import MANIFEST
from tidemark.ledger import journal
from tidemark.ledger.leases import Lease, Leases, assert_held
from tidemark.ledger.sender import links as link_rows
from tidemark.ledger.sender import runs as run_rows
from tidemark.ledger.sender.links import forget_attempt
from tidemark.settings.model import LinkSettings, SiteSettings
from tidemark.stores.protocol import Store, read_record
from tidemark.sync.session import Options, Plan
from tidemark.untrusted_files import MOST_DOCUMENT


def open_lease(app: App, link: LinkSettings, external: str | None, options: Options) -> tuple[Lease, bool]:
    """Return the lease of the run to work on, and whether that run existed before. Raises UsageError for contradictory
    options."""
    _require_one_choice(options)
    leases = Leases(app.ledger, app.identity)
    _register_link(app, link)
    while True:
        with app.ledger.read() as connection:
            unfinished = run_rows.unfinished_run(connection, link.name)
        lease = leases.acquire_lease(f"link:{link.name}", unfinished or new_run_id(app.clock()))
        with app.ledger.write() as connection:
            assert_held(connection, lease)
            now_unfinished = run_rows.unfinished_run(connection, link.name)
            if now_unfinished == unfinished:
                _write_run(connection, link.name, lease, external, options, known=unfinished is not None)
                return lease, unfinished is not None
        leases.release(lease)  # another process opened or ended a run before we had the lease


def _write_run(connection: Connection, link: str, lease: Lease, external: str | None, options: Options, known: bool) -> None:
    run_id = lease.holder
    if known:
        journal.record_event(connection, "run.continued", link=link, run_id=run_id, fence=lease.fence)
    else:
        run_rows.add_run(connection, run_id, link, lease.fence, write_options(options))
        link_rows.set_link(connection, link, last_run=run_id)
        journal.record_event(connection, "run.opened", link=link, run_id=run_id)
    if external is not None:
        run_rows.add_alias(connection, external, run_id)
    else:
        forget_attempt(connection, link)  # a scheduler's earlier result is obsolete: this process goes on


def _require_one_choice(options: Options) -> None:
    """Raise UsageError if a plan is combined with options that narrow or widen it."""
    asked = (("--only", options.only_paths), ("--again", options.send_all_again))
    given = [name for name, value in asked if value]
    if options.plan and given:
        raise UsageError(f"--plan and {given[0]} exclude each other: give one of them", hint="./tidemark sync --help")


def refuse_other_prefix(site: SiteSettings, prefix: str | None) -> None:
    """Raise PermanentError if the site sent its files with another prefix than the settings have. None: it sent nothing."""
    if prefix not in (None, site.prefix):
        raise PermanentError(
            f"site {site.name} has sent its files with prefix {_quote(prefix)}, the settings say {_quote(site.prefix)}: its"
            " devices would have two names",
            hint=f"set prefix = {_quote(prefix)} again; to rename its devices give it a new id, a new name and a link of its"
            " own: it sends everything again, and the catalog keeps what it has under the old names",
            subject=f"sites.{site.name}.prefix",
        )


def require_same_ends(app: App, link: LinkSettings) -> None:
    """Raise PermanentError if the settings give a link that has run another site or receiver."""
    site = app.site_settings(link.site)
    with app.ledger.read() as connection:
        known = link_rows.get_link(connection, link.name)
        prefix = link_rows.fixed_prefix(connection, site.id)
    refuse_other_prefix(site, prefix)
    refuse_other_ends(link, site, known)


def refuse_other_ends(link: LinkSettings, site: SiteSettings, known: link_rows.LinkRow | None) -> None:
    """Raise PermanentError if the ledger knows the link (`known`) with another site or receiver. A link's acknowledgements
    are valid for one site and one receiver only (DESIGN §1)."""
    if known is None:
        return
    if known.site_id != site.id:
        raise PermanentError(
            f"link {link.name} belongs to site {known.site_id}, the settings say {site.id} ({site.name})",
            hint=f'set id = "{known.site_id}" again in [sites.{site.name}]; if {site.name} is another site now, give it'
            f' a link of its own: [links.NAME] site = "{site.name}" receiver = "{link.receiver}"',
            subject=link.name,
        )
    if known.receiver != link.receiver:
        raise PermanentError(
            f"link {link.name} has sent its files to receiver {known.receiver}, the settings say {link.receiver}, which"
            " never got them",
            hint=f'for {link.receiver} add a link of its own, which sends everything: [links.NAME] site = "{site.name}"'
            f' receiver = "{link.receiver}"; link {link.name} keeps receiver = "{known.receiver}"',
            subject=link.name,
        )


def _quote(prefix: str | None) -> str:
    return f'"{prefix or ""}"'


def _register_link(app: App, link: LinkSettings) -> None:
    """Add the site and the link to the ledger. Raises PermanentError, with what to do, if the link is new here but the
    receiver has landings of its site: the ledger was lost, and sequence numbers would be given twice."""
    site = app.site_settings(link.site)
    require_same_ends(app, link)
    with app.ledger.read() as connection:
        known = link_rows.get_link(connection, link.name)
    if known is None:
        with app.receiver_store(app.receiver_settings(link.receiver)) as target:
            _require_no_landing(target, site.id, link.name)
    with app.ledger.write() as connection:
        link_rows.put_site(connection, site.id, site.name, site.time_unit, site.partition_interval_ms, prefix=site.prefix)
        link_rows.add_link(connection, link.name, site.id, link.receiver)


def _require_no_landing(target: Store, site_id: str, link: str) -> None:
    """Raise PermanentError, with what to do, if the receiver has a landing of the site already. A receiver loads a site's
    landings in one sequence, and a new link would restart it."""
    folder = f"landing/{site_id}"
    records = (
        read_record(target, f"{folder}/{name}/{MANIFEST}", MOST_DOCUMENT) for name in reversed(target.list_folder(folder))
    )
    manifest = next((decode_manifest(data) for data in records if data is not None), None)
    if manifest is None:
        return
    if manifest.link == link:
        raise PermanentError(
            f"link {link} is new to this ledger, but its landing {manifest.landing} is at the receiver",
            hint="./tidemark ledger rebuild",
            subject=link,
        )
    raise PermanentError(
        f"link {link} is new to this ledger, but landing {manifest.landing} of its site came to the receiver by link"
        f" {manifest.link}: a receiver takes a site's landings in one sequence",
        hint=f"send by link {manifest.link}, with the ledger that counts its landings, or to another receiver folder",
        subject=link,
    )


def new_run_id(at: float) -> str:
    """Return UTC time and six random hex digits: sorts by time."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y%m%dT%H%M%SZ-") + secrets.token_hex(3)


def write_options(options: Options) -> Mapping[str, object]:
    """Encode the options for the run's row."""
    plan = options.plan
    return {
        "only_paths": options.only_paths,
        "adopted": sorted(options.adopted),
        "exactly": None if options.exactly is None else sorted(options.exactly),
        "send_all_again": options.send_all_again,
        "plan": {"send": plan.send, "drop": plan.drop, "superseded": plan.superseded} if plan else None,
    }


def read_options(text: str) -> Options:
    """Decode the options of a run's row."""
    raw = json.loads(text)
    plan = raw.get("plan")
    return Options(
        only_paths=tuple(raw.get("only_paths") or ()),
        adopted=frozenset(raw.get("adopted") or ()),
        exactly=None if raw.get("exactly") is None else frozenset(raw["exactly"]),
        send_all_again=bool(raw.get("send_all_again")),
        plan=Plan(tuple((p, n) for p, n in plan["send"]), tuple(plan["drop"]), tuple(plan["superseded"])) if plan else None,
    )
