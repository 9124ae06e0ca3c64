"""What data nodes still have when the ledger is lost: their claims, the table, files that the receiver evicted.

    with open_survivors(app, receiver, findings) as nodes:   # before the receiver's documents are read
        nodes.bring_back(store, progress)                    # a rebuild describes files: they must be at the receiver

`cluster` writes the rows after the catalog. Nothing changes at a node. Source: docs/decisions/0015.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from tidemark.app import App
from tidemark.cluster.nodes.cluster import cluster_settings
from tidemark.cluster.nodes.formats import NodeClaim
from tidemark.cluster.nodes.stores import NodeStores, node_row, unreachable_error
from tidemark.cluster.slots.table import PartitionTable, decode_table
from tidemark.errors import CorruptionError, DiskFullError, PermanentError, UnreachableError
from tidemark.ledger.cluster.tables import NodeRow
from tidemark.operations.rebuild.result import Findings
from tidemark.progress import Progress, Tick
from tidemark.settings.model import ReceiverSettings
from tidemark.stores.listing import all_files
from tidemark.stores.protocol import Store
from tidemark.transfer import engine
from tidemark.transfer.engine import SendItem, Sent
from tidemark.untrusted_files import MOST_MODS

_NAMED = re.compile("[0-9a-f]{12}")
_ON_THE_WAY = (".part", ".part.blocks")


@dataclass(frozen=True)
class SurvivingNodes:
    """The nodes of one cluster, `identity`. `rows`: those with a claimed folder. `papers`: node → its newest whole table."""

    identity: str
    rows: Mapping[str, NodeRow]
    papers: Mapping[str, tuple[int, bytes]]
    stores: NodeStores
    findings: Findings

    @property
    def table_bytes(self) -> bytes | None:
        """The newest table of any node. One that was published and never in force is fine too: its slots are found at their
        old nodes."""
        return max(self.papers.values(), default=(0, None))[1]

    @property
    def table(self) -> PartitionTable | None:
        return decode_table(self.table_bytes) if self.table_bytes is not None else None

    @cached_property
    def sizes(self) -> Mapping[str, Mapping[str, int]]:
        """Node → location → bytes, of whole files there."""
        return {
            name: {
                at: size for at, size in self.stores.open_folder(name).list_sizes().items() if not at.endswith(_ON_THE_WAY)
            }
            for name in sorted(self.rows)
        }

    def bring_back(self, store: Store, progress: Progress) -> int:
        """Fetch files that the receiver lacks; return how many. A file that no node gives whole is added to the findings."""
        here = {entry.path for entry in all_files(store, ["data"])}
        missing = {at for sizes in self.sizes.values() for at in sizes} - here
        strange = {at for at in missing if not _NAMED.fullmatch(named_digest(at))}
        self.findings.unknown += [
            f"{at} at node {name}" for name, sizes in self.sizes.items() for at in sorted(strange & sizes.keys())
        ]
        missing -= strange
        total, why = len(missing), dict[str, str]()
        for name, sizes in self.sizes.items():
            items = []
            for at in sorted(missing & set(sizes)):
                most = MOST_MODS if ".mods" in at else store.free_bytes("data")
                if most is not None and sizes[at] > most:  # only this file fails
                    why[at] = f"node {name} has {sizes[at]} bytes, at most {most} can be taken"
                else:
                    items.append(SendItem(at, at, sizes[at]))
            for outcome in engine.send_files(self.stores.open_store(name), store, items) if items else ():
                at = outcome.item.target_path
                if isinstance(outcome, Sent) and outcome.sha256.startswith(named_digest(at)):
                    missing.discard(at)
                elif isinstance(outcome, Sent):
                    # CRASH WINDOW: wrong bytes under a right name: the repeated rebuild finds them unreadable or of another
                    # digest, as any damaged file at the receiver.
                    store.remove([at])
                    why[at] = f"node {name} has other bytes than its name says"
                elif isinstance(outcome.error, DiskFullError):
                    raise outcome.error
                else:
                    why[at] = f"node {name}: {outcome.error.message}"
                progress(Tick("fetch from nodes", total - len(missing), total))
        self.findings.troubles += [f"{at} cannot be fetched: {why[at]}" for at in sorted(missing)]
        return total - len(missing)


@contextmanager
def open_survivors(app: App, receiver: ReceiverSettings, findings: Findings) -> Iterator[SurvivingNodes | None]:
    """Open the nodes. None if the settings have no cluster of this receiver, or no node's folder is claimed.

    Raises UnreachableError for a node that cannot be asked (remove a lost one from the settings), PermanentError if folders
    belong to several clusters or were exchanged.
    """
    if cluster_settings(app, receiver) is None or not app.settings.nodes:
        yield None
        return
    rows = {name: node_row(app, receiver, name) for name in app.settings.nodes}
    with NodeStores(app, rows.values()) as stores:
        identity, mine = _identify_nodes(stores, rows)
        yield SurvivingNodes(identity, mine, _read_tables(stores, mine, findings), stores, findings) if mine else None


def _identify_nodes(stores: NodeStores, rows: Mapping[str, NodeRow]) -> tuple[str, dict[str, NodeRow]]:
    owners = {name: owner for name in sorted(rows) if (owner := _read_owner(stores, name)) is not None}
    clusters = sorted({owner.cluster for owner in owners.values()})
    if len(clusters) > 1:
        told = ", ".join(f"{name} of {owner.cluster}" for name, owner in owners.items())
        raise PermanentError(
            f"the folders of the nodes are of {len(clusters)} clusters: {told}",
            hint="leave the nodes of one cluster in the settings, then run it again",
        )
    for name, owner in owners.items():
        stores.open_folder(name).require_owner(owner.cluster)  # exchanged folders
    return (clusters[0] if clusters else ""), {name: rows[name] for name in owners}


def _read_owner(stores: NodeStores, name: str) -> NodeClaim | None:
    try:
        return stores.open_folder(name).read_owner()
    except UnreachableError as away:
        hint = f"wait for it; or take [nodes.{name}] out of the settings: what only it has is then asked of its site again"
        raise UnreachableError(unreachable_error(name, away).message, hint=hint, subject=name) from away
    except CorruptionError as torn:
        hint = (
            f"look whose disk it is; take [nodes.{name}] out of the settings, then run it again: the other nodes are asked"
        )
        raise CorruptionError(torn.message, hint=hint, subject=name) from torn


def _read_tables(stores: NodeStores, rows: Mapping[str, NodeRow], findings: Findings) -> dict[str, tuple[int, bytes]]:
    found = {}
    for name in rows:
        try:
            table = stores.open_folder(name).read_table()
            if table is not None and decode_table(table[1]).epoch == table[0]:
                found[name] = table
        except CorruptionError as torn:
            findings.troubles.append(f"node {name}: {torn.message}")
    return found


def named_digest(location: str) -> str:
    """Return the first digits of the digest in a location's name (`receiver.load.place`): of mods their own."""
    name = location.rpartition("/")[2]
    mods = name.rpartition(".mods")
    if mods[1]:
        return mods[0].rpartition(".")[2]
    parts = name.split("-", 2)
    return parts[1] if len(parts) == 3 else ""
