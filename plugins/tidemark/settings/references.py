"""What the sections say of each other: names that must exist, UUIDs that must differ, host keys that sftp needs."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any
from urllib.parse import urlsplit

from tidemark.settings.document import Document
from tidemark.settings.keys import Problems, suggest_nearest

RECEIVERS_OWN = ("landing", "data", "quarantine", "refused", "schema", "staging", "decided", "settled", "answered", "taken")
"""What a receiver keeps below its store (CONTRACT §3, docs/formats)."""

Sections = Mapping[str, Mapping[str, dict[str, Any]]]


def check_references(
    document: Document, sections: Sections, single: Mapping[str, dict[str, Any]], problems: Problems
) -> None:
    """Add what is wrong between sections to `problems`; fill in the receiver of links where there is only one.

    `sections` holds the values that are sound by themselves; names are looked up in the document, so that a site with
    one bad key is not also called unknown.
    """
    for name, link in sections["links"].items():
        _check_link(document, name, link, problems)
    _check_ids(sections["sites"], problems)
    _check_pairs(sections["links"], problems)
    _check_receivers(sections["receivers"], problems)
    _check_ends(sections["sites"], sections["receivers"], problems)
    _check_nodes(sections["nodes"], sections["receivers"], problems)
    for section in ("receivers", "sites", "nodes"):
        for name, table in sections[section].items():
            _check_login(section, name, table, problems)
    _check_cluster(document, single.get("cluster"), sections["nodes"], problems)


def _check_link(document: Document, name: str, link: dict[str, Any], problems: Problems) -> None:
    sites, receivers = _section_names(document, "sites"), _section_names(document, "receivers")
    if "site" in link and link["site"] not in sites:
        problems.add_problem(
            f"no site of that name{suggest_nearest(link['site'], sites)}", "links", name, "site", value=link["site"]
        )
    if link.get("receiver"):
        if link["receiver"] not in receivers:
            message = f"no receiver of that name{suggest_nearest(link['receiver'], receivers)}"
            problems.add_problem(message, "links", name, "receiver", value=link["receiver"])
    elif len(receivers) == 1:
        link["receiver"] = receivers[0]
    else:
        message = (
            f'needs receiver = "…"{suggest_nearest("", receivers)}'
            if receivers
            else "there is no [receivers.NAME] to send to"
        )
        problems.add_problem(message, "links", name)


def _check_ids(sites: Mapping[str, dict[str, Any]], problems: Problems) -> None:
    first: dict[str, str] = {}
    for name, site in sites.items():
        if "id" not in site:
            continue
        other = first.setdefault(site["id"], name)
        if other != name:
            where = problems.document.locate_key("sites", other, "id")
            problems.add_problem(
                f"is the id of site {other} too ({where}): every site needs its own", "sites", name, "id", value=site["id"]
            )


def _check_pairs(links: Mapping[str, dict[str, Any]], problems: Problems) -> None:
    """A receiver keeps one sequence of landings a site: two links would each begin one."""
    first: dict[tuple[str, str], str] = {}
    for name, link in links.items():
        site, receiver = link.get("site"), link.get("receiver")
        if not site or not receiver:
            continue
        other = first.setdefault((site, receiver), name)
        if other != name:
            where = problems.document.locate_key("links", other)
            message = f"sends site {site} to {receiver} as link {other} does ({where}): keep one, with the patterns of both"
            problems.add_problem(message, "links", name)


def _check_receivers(receivers: Mapping[str, dict[str, Any]], problems: Problems) -> None:
    """No receiver in another's folder: each takes what lies below its store for its own."""
    stores = {name: table["store"].rstrip("/") for name, table in receivers.items() if table.get("store")}
    for (one, first), (other, second) in combinations(stores.items(), 2):
        if f"{first}/".startswith(f"{second}/") or f"{second}/".startswith(f"{first}/"):
            where = problems.document.locate_key("receivers", one, "store")
            message = f"shares folders with the store of receiver {one} ({where}): give each its own"
            problems.add_problem(message, "receivers", other, "store", value=second)


def _check_ends(sites: Mapping[str, dict[str, Any]], receivers: Mapping[str, dict[str, Any]], problems: Problems) -> None:
    """No data folder of a site among a receiver's own, no receiver in one: what one keeps would pass for what the other has.
    One machine, one disk, one parent folder may serve both."""
    for name, site in sites.items():
        folders = [_folder_address(site["store"], folder) for folder in site.get("data", ())] if site.get("store") else []
        for receiver, table in receivers.items():
            store = table.get("store", "")
            own = [_folder_address(store, folder) for folder in RECEIVERS_OWN] if store else []
            among = any(folder.startswith(mine) or mine.startswith(folder) for folder in folders for mine in own)
            if among:
                where = problems.document.locate_key("receivers", receiver, "store")
                message = f"shares folders with the store of receiver {receiver} ({where}): give each its own"
                problems.add_problem(message, "sites", name, "store", value=site["store"])


def _check_nodes(nodes: Mapping[str, dict[str, Any]], receivers: Mapping[str, dict[str, Any]], problems: Problems) -> None:
    """No node in another's folder, nor in what a receiver takes for its own: what one gives up would go from the other."""
    owned = [
        ("receivers", name, _folder_address(table["store"], folder))
        for name, table in receivers.items()
        if table.get("store")
        for folder in RECEIVERS_OWN
    ]
    for name, table in nodes.items():
        if not table.get("store"):
            continue
        mine = _folder_address(table["store"], "")
        data = _folder_address(table["store"], "data")
        for section, other, folder in owned:
            if folder.startswith(mine if section == "nodes" else data) or mine.startswith(folder):
                where = problems.document.locate_key(section, other, "store")
                message = f"shares folders with the store of {section[:-1]} {other} ({where}): give each its own"
                problems.add_problem(message, "nodes", name, "store", value=table["store"])
                break
        owned.append(("nodes", name, mine))


def _folder_address(store: str, folder: str) -> str:
    """A folder of a store (relative, or absolute on another disk) as an address that ends in a slash."""
    parts = urlsplit(store)
    path = folder if folder.startswith("/") else f"{parts.path.rstrip('/')}/{folder}"
    return f"{parts.scheme}://{parts.netloc}{path.rstrip('/')}/"


def _check_login(section: str, name: str, table: dict[str, Any], problems: Problems) -> None:
    if table.get("store", "").startswith("sftp://") and "host_key" in table and not table["host_key"]:
        message = 'needs host_key = "SHA256:…" because its store is sftp; ssh-keyscan HOST | ssh-keygen -lf - shows it'
        problems.add_problem(message, section, name, "store")
    if table.get("store", "").startswith("file://") and table.get("tier", "auto") != "auto":
        message = "is for sftp:// stores, where it says what may be run at the far end: leave it out"
        problems.add_problem(message, section, name, "tier", value=table["tier"])
    if table.get("key") and table.get("connection"):
        problems.add_problem("key and connection exclude each other: give one", section, name, "connection")


def _check_cluster(
    document: Document, cluster: dict[str, Any] | None, nodes: Mapping[str, dict[str, Any]], problems: Problems
) -> None:
    if cluster is None:
        return
    receivers = _section_names(document, "receivers")
    if cluster.get("receiver") and cluster["receiver"] not in receivers:
        message = f"no receiver of that name{suggest_nearest(cluster['receiver'], receivers)}"
        problems.add_problem(message, "cluster", "receiver", value=cluster["receiver"])
    elif not cluster.get("receiver") and len(receivers) > 1:
        problems.add_problem(f'needs receiver = "…"{suggest_nearest("", receivers)}', "cluster")
    replicas, quorum = cluster.get("replicas", 0), cluster.get("quorum", 0)
    if quorum > replicas:
        problems.add_problem(f"cannot be more than replicas ({replicas})", "cluster", "quorum", value=quorum)
    if nodes and replicas > len(nodes):
        problems.add_problem(f"needs as many [nodes.NAME]; there are {len(nodes)}", "cluster", "replicas", value=replicas)


def _section_names(document: Document, section: str) -> list[str]:
    tables = document.tree.get(section)
    return list(tables) if isinstance(tables, dict) else []
