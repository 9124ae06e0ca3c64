"""Turn ledger rows into the values that proof decides on."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime

from sqlalchemy.engine import Connection

from tidemark.ledger.sql import Row, run_report
from tidemark.proof.coverage.cells import CatalogView, Expected, Held, ReplicaProof, account_trouble
from tidemark.tsfiles.devices import put_below


def expected_files(connection: Connection, receiver: str, site_id: str) -> list[Expected]:
    """Return the files that the site has, by its loaded manifests."""
    rows = run_report(connection, "site_inventory", receiver=receiver, site=site_id)
    return [Expected(r["path"], int(r["size"]), int(r["generation"]), extent_of(r["extent"]), r["landing"]) for r in rows]


def extent_of(text: str) -> tuple[tuple[str, int, int], ...]:
    """Parse the (device, first, last) triples of an `extent` column."""
    return tuple((device, int(start), int(end)) for device, start, end in json.loads(text))


def catalog_view(
    connection: Connection, receiver: str, site_id: str, wrong: Mapping[str, str], names: Mapping[str, str]
) -> CatalogView:
    """Return all of the site in the catalog. `wrong`: location → what is wrong with its bytes. `names`: {site id: name}."""
    place = {"receiver": receiver, "site": site_id}
    rows = run_report(connection, "catalog_held", **place)
    held = {int(r["file_id"]): _parse_held(r) for r in rows}
    broken = {int(r["file_id"]): wrong.get(r["location"]) or wrong.get(r["mods_location"]) or "" for r in rows}
    late = late_paths(connection, site_id, receiver)
    shadowed = {file_id: late[row.path] for file_id, row in held.items() if row.state == "live" and row.path in late}
    broken |= {file_id: why for file_id, why in shadowed.items() if not broken[file_id]}
    by_path: dict[str, list[Held]] = defaultdict(list)
    for row in held.values():
        if row.path:
            by_path[row.path].append(row)
    merged_over: dict[int, list[int]] = defaultdict(list)
    for r in run_report(connection, "catalog_lineage", **place):
        merged_over[int(r["source_id"])].append(int(r["merged_id"]))
    account = {
        int(r["merged_id"]): account_trouble(
            int(r["merged_id"]), int(r["points_in"]), int(r["points_out"]), int(r["overwritten"]), int(r["deleted"])
        )
        for r in run_report(connection, "merge_accounts", **place)
    }
    trouble = late | {r["path"]: _format_trouble(r, names) for r in run_report(connection, "site_troubles", **place)}
    return CatalogView(held, dict(by_path), dict(merged_over), account, broken, trouble, late)


def read_replica_proof(connection: Connection, receiver: str) -> ReplicaProof | None:
    """Return what `replica verify` found of the copies at data nodes; None where there are none. A copy that came later than
    its last proof counts as not proved."""
    (row,) = run_report(connection, "replica_proofs", receiver=receiver)
    return ReplicaProof(**row) if row["copies"] else None


def late_paths(connection: Connection, site_id: str, receiver: str = "") -> dict[str, str]:
    """Return path → why settled files hold back its newest content. At one receiver, or at any."""
    found: dict[str, str] = {}
    for r in run_report(connection, "settled_waits", site=site_id):
        if receiver in ("", r["receiver"]):
            found |= json.loads(r["waits"])
    return found


def waiting_files(connection: Connection, link: str, expected: Mapping[str, Expected]) -> list[tuple[Expected, str]]:
    """Return files that this ledger's link has seen and no landing has carried, with why; without those in manifests."""
    found = []
    for r in run_report(connection, "waiting_extents", link=link):
        if r["path"] in expected and expected[r["path"]].size == int(r["size"]):
            continue
        why = r["reason"] or f"link {link} has not sent it yet"
        extent = tuple((put_below(r["prefix"], device), first, last) for device, first, last in extent_of(r["extent"]))
        found.append((Expected(r["path"], int(r["size"]), 0, extent, ""), why))
    return found


def _parse_held(r: Row) -> Held:
    return Held(
        int(r["file_id"]), r["path"], int(r["generation"]), int(r["size"]), r["state"], bool(r["visible"]), r["location"]
    )


def _format_trouble(r: Row, names: Mapping[str, str]) -> str:
    why: str = r["why"]
    for site_id, name in names.items():
        word = rf"(?<![\w/-]){re.escape(site_id)}(?![\w/-])"  # not within a path, where it is a folder's name
        why = re.sub(word, name.replace("\\", r"\\"), why)
    return f"{why} (since {datetime.fromtimestamp(r['at'], UTC):%Y-%m-%d %H:%M} UTC)"
