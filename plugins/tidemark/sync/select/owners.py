"""Find devices to send that are another site's at the receiver, before a byte is sent (decision 0009, docs/same-names.md).

A device has one owner at a receiver: the site that sent it first. This ledger knows the owners that its loads recorded,
and what other links of the settings have selected for the receiver and no load has answered yet. A receiver with a ledger
of its own may know more owners. It refuses files when it loads them.
"""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy.engine import Connection

from tidemark.errors import OwnershipError
from tidemark.ledger.receiver import refusals as refusal_rows
from tidemark.ledger.sender import links as link_rows
from tidemark.ledger.sender.runs import SEND
from tidemark.progress import format_count
from tidemark.sync.select.choose import Selection
from tidemark.sync.session import Site
from tidemark.tsfiles.companions.resource import ANY_DEVICE
from tidemark.tsfiles.devices import put_below, quote_node


class Collision(NamedTuple):
    """A device to send, by the catalog's name, that is another site's. `path`: one of the files that hold it."""

    path: str
    device: str
    owner: str  # the site's id


def find_collisions(connection: Connection, site: Site, selection: Selection) -> tuple[Collision, ...]:
    """Return the devices of a selection that are another site's, by name, as far as this ledger knows."""
    sending = {item.path for item in selection.items if item.action == SEND}
    found = ((path, device) for path in sending for device, _, _ in selection.extents.get(path, ()))
    paths = {put_below(site.site.prefix, device): path for path, device in found if device != ANY_DEVICE}
    owners = {device: row.site_id for device, row in refusal_rows.owners_of(connection, site.link.receiver, paths).items()}
    for other, prefix, device in link_rows.devices_on_the_way(connection, site.beside):
        owners.setdefault(put_below(prefix, device), other)
    return tuple(
        Collision(paths[device], device, owners[device])
        for device in sorted(paths)
        if owners.get(device, site.site.id) != site.site.id
    )


def require_own_devices(connection: Connection, site: Site, selection: Selection) -> None:
    """Raise OwnershipError if the first files of a site collide, and nothing is sent. The site may still get a prefix.

    A site that has sent before goes on: the receiver takes its other files, and keeps those that collide apart.
    """
    if link_rows.fixed_prefix(connection, site.site.id) is not None:
        return
    found = find_collisions(connection, site, selection)
    if not found:
        return
    first, mine = found[0], site.site.name
    owner = link_rows.site_name(connection, first.owner)
    more = f" and {format_count(len(found) - 1, 'more device')}" if len(found) > 1 else ""
    belong = "belong" if more else "belongs"
    raise OwnershipError(
        f"{first.device}{more} of site {mine} {belong} to site {owner} at receiver {site.link.receiver}: nothing was sent",
        hint=f'write prefix = "root.{quote_node(mine)}" in [sites.{mine}] (docs/same-names.md); or exclude the devices in'
        f" [links.{site.link.name}]; or, if they have moved: ./tidemark owners transfer PATTERN --to {mine}",
        subject=first.device,
    )
