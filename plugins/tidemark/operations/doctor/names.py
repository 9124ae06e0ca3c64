"""The check of names: whether a site's prefix changed after its first landing, whether a link that has run got another site
or receiver since, and whether two sites of one receiver have a device of the same name. A device has one owner there, so the
first sync of the second site would be refused (docs/same-names.md).

It looks at one file of each database of a site, the newest: a server mostly flushes all devices that are written to
together. So it finds copies of one edge image, and proves nothing. `plan` and the load look at every file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from operator import attrgetter

from sqlalchemy.exc import ArgumentError

from tidemark.errors import OwnershipError, PermanentError, TidemarkError
from tidemark.ledger.database import Ledger, is_unmade
from tidemark.ledger.migrations import known_migrations, schema_version
from tidemark.ledger.sender import links as link_rows
from tidemark.operations.doctor.stores import Check, Opener, fail_check, pass_check
from tidemark.progress import format_count
from tidemark.settings.model import Settings, SiteSettings
from tidemark.stores.listing import list_names
from tidemark.stores.protocol import Store, StoreAddress
from tidemark.sync.start import refuse_other_ends, refuse_other_prefix
from tidemark.tsfiles.companions.resource import ANY_DEVICE, read_extent
from tidemark.tsfiles.devices import put_below, quote_node
from tidemark.tsfiles.names import RESOURCE, SourceName, parse_source_path
from tidemark.untrusted_files import MOST_DOCUMENT

PAGE = "docs/same-names.md"
_BESIDE = ".resource"


def check_names(settings: Settings, opener: Opener) -> Sequence[Check]:
    """Compare each site's prefix with that of its landings, and the sites of each receiver that has several.

    Sites that cannot be looked at are left to their own checks.
    """
    receivers: dict[str, dict[str, SiteSettings]] = {}
    for link in settings.links.values():
        receivers.setdefault(link.receiver, {})[link.site] = settings.sites[link.site]
    shared = {receiver: sites for receiver, sites in receivers.items() if len(sites) > 1}
    sent, links = _read_sent(settings)
    devices = {site.name: _devices_of(site, opener) for sites in shared.values() for site in sites.values()}
    compared = (check for receiver, sites in shared.items() for check in _compare(receiver, sites, devices, sent))
    return [*_check_prefixes(settings.sites.values(), sent), *_check_links(settings, links), *compared]


def _check_prefixes(sites: Iterable[SiteSettings], sent: Mapping[str, str]) -> Iterator[Check]:
    """Yield a failed check for each site whose prefix changed after its first landing."""
    for site in sites:
        try:
            refuse_other_prefix(site, sent.get(site.id))
        except PermanentError as changed:
            yield fail_check(f"site {site.name}: prefix", changed, changed.hint)


def _check_links(settings: Settings, known: Mapping[str, link_rows.LinkRow]) -> Iterator[Check]:
    """Yield a failed check for each link that has run for another site id or to another receiver."""
    for link in settings.links.values():
        try:
            refuse_other_ends(link, settings.sites[link.site], known.get(link.name))
        except PermanentError as changed:
            yield fail_check(f"link {link.name}", changed)


def _compare(
    receiver: str, sites: Mapping[str, SiteSettings], devices: Mapping[str, Collection[str]], sent: Collection[str]
) -> Iterator[Check]:
    label = f"receiver {receiver}: names"
    owner: dict[str, SiteSettings] = {}
    met: set[tuple[str, str]] = set()
    for site in sorted(sites.values(), key=lambda one: one.id not in sent):  # who has sent owns
        both = [device for device in sorted(devices[site.name]) if owner.setdefault(device, site) is not site]
        for first in {owner[device].name: owner[device] for device in both}.values():
            common = [device for device in both if owner[device] is first]
            met.add((first.name, site.name))
            told = f"sites {first.name} and {site.name} both have {common[0]}"
            told += f" and {format_count(len(common) - 1, 'more device')}" if len(common) > 1 else ""
            if site.id in sent:
                yield pass_check(label, f"warning: {told}; ./tidemark owners list says whose they are")
            else:
                way = f'write prefix = "root.{quote_node(site.name)}" in [sites.{site.name}], before its first sync ({PAGE})'
                yield fail_check(label, OwnershipError(f"{told}: the first sync of {site.name} would be refused"), way)
    if not met:
        yield pass_check(label, f"no device of two of its {len(sites)} sites, by the newest file of each database")


def _devices_of(site: SiteSettings, opener: Opener) -> frozenset[str]:
    """Return the catalog's names of the devices in the newest file of each database."""
    with contextlib.suppress(TidemarkError), closing(opener(StoreAddress.of(site))) as store:
        return frozenset(put_below(site.prefix, device) for device in _read_devices(store, site.data)) - {ANY_DEVICE}
    return frozenset()


def _read_devices(store: Store, data: Sequence[str]) -> Iterator[str]:
    listing = list_names(store, data, RESOURCE)
    tsfiles = (e.path.removesuffix(_BESIDE) for e in listing.entries if e.path.endswith(RESOURCE))
    parsed = (parse_source_path(path, data) for path in tsfiles)
    found = sorted((name for name in parsed if name is not None), key=attrgetter("database", "name"))
    newest: list[SourceName] = [list(files)[-1] for _, files in groupby(found, attrgetter("database"))]
    for name in newest:
        with contextlib.suppress(TidemarkError):  # damaged, or gone by now
            path = name.path + _BESIDE
            entry = store.stat(path)
            if entry is not None and entry.size <= MOST_DOCUMENT:
                yield from (device for device, _, _ in read_extent(store.read(path, 0, entry.size), name.database, path))


def _read_sent(settings: Settings) -> tuple[Mapping[str, str], Mapping[str, link_rows.LinkRow]]:
    """Return the prefixes of sites that sent files, by id, and the links that have run. Troubles of the ledger are left to
    its own check."""
    with contextlib.suppress(TidemarkError, ArgumentError, ImportError):
        if is_unmade(settings.ledger.url, settings.root):
            return {}, {}
        ledger = Ledger(settings.ledger.url, settings.root)
        try:
            if schema_version(ledger) != len(known_migrations()):
                return {}, {}
            with ledger.read() as connection:
                prefixes = {site.id: link_rows.fixed_prefix(connection, site.id) for site in settings.sites.values()}
                links = {name: link_rows.get_link(connection, name) for name in settings.links}
                return (
                    {site_id: prefix for site_id, prefix in prefixes.items() if prefix is not None},
                    {name: link for name, link in links.items() if link is not None},
                )
        finally:
            ledger.close()
    return {}, {}
