"""What the sections say of each other: names that must exist, UUIDs that must differ, host keys that sftp needs."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any
from urllib.parse import urlsplit

from tidemark.settings.document import Problems, suggest_nearest

RECEIVERS_OWN = ("landing", "data", "quarantine", "refused", "schema", "staging", "decided", "settled", "answered", "taken")
"""What a receiver keeps below its store (CONTRACT §3, docs/formats)."""

Sections = Mapping[str, Mapping[str, dict[str, Any]]]


def check_references(sections: Sections, problems: Problems) -> None:
    """Add what is wrong between sections to `problems`. Fill in the receiver of links where there is only one.

    `sections` holds the values that are sound by themselves, by section and table. Names are looked up in the document:
    a site with one bad key is not also called unknown.
    """
    for name, link in sections["links"].items():
        _check_link(name, link, problems)
    _check_ids(sections["sites"], problems)
    _check_pairs(sections["links"], problems)
    _check_receivers(sections["receivers"], problems)
    _check_ends(sections["sites"], sections["receivers"], problems)
    _check_nodes(sections["nodes"], sections["receivers"], problems)
    for section in ("receivers", "sites", "nodes"):
        for name, table in sections[section].items():
            _check_login(section, name, table, problems)
    for cluster in sections["cluster"].values():
        _check_cluster(cluster, sections["nodes"], problems)


def _check_link(name: str, link: dict[str, Any], problems: Problems) -> None:
    sites, receivers = _section_names(problems, "sites"), _section_names(problems, "receivers")
    if "site" in link:
        _check_name(("links", name, "site"), link["site"], sites, problems)
    if link.get("receiver"):
        _check_name(("links", name, "receiver"), link["receiver"], receivers, problems)
    elif len(receivers) == 1:
        link["receiver"] = receivers[0]
    else:
        message = (
            f'needs receiver = "…"{suggest_nearest("", receivers)}'
            if receivers
            else "there is no [receivers.NAME] to send to"
        )
        problems.add_problem(message, "links", name)


def _check_name(path: tuple[str, ...], name: str, known: list[str], problems: Problems) -> None:
    if name not in known:
        problems.add_problem(f"no {path[-1]} of that name{suggest_nearest(name, known)}", *path, value=name)


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
    """Refuse a second link of one site and receiver. A receiver keeps one sequence of landings for each site."""
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
    """Refuse a receiver in another's folder. Each takes what lies below its store for its own."""
    stores = {name: table["store"].rstrip("/") for name, table in receivers.items() if table.get("store")}
    for (one, first), (other, second) in combinations(stores.items(), 2):
        if f"{first}/".startswith(f"{second}/") or f"{second}/".startswith(f"{first}/"):
            _add_shared_folders(("receivers", other), second, ("receivers", one), problems)


def _check_ends(sites: Mapping[str, dict[str, Any]], receivers: Mapping[str, dict[str, Any]], problems: Problems) -> None:
    """Refuse a data folder of a site among a receiver's own folders, and a receiver in a data folder.

    Files of the one would pass for files of the other. One machine, one disk, one parent folder may serve both.
    """
    for name, site in sites.items():
        folders = [_folder_address(site["store"], folder) for folder in site.get("data", ())] if site.get("store") else []
        for receiver, table in receivers.items():
            store = table.get("store", "")
            own = [_folder_address(store, folder) for folder in RECEIVERS_OWN] if store else []
            among = any(folder.startswith(mine) or mine.startswith(folder) for folder in folders for mine in own)
            if among:
                _add_shared_folders(("sites", name), site["store"], ("receivers", receiver), problems)


def _check_nodes(nodes: Mapping[str, dict[str, Any]], receivers: Mapping[str, dict[str, Any]], problems: Problems) -> None:
    """Refuse a node in another's folder or among a receiver's own. What one gives up would go from the other."""
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
                _add_shared_folders(("nodes", name), table["store"], (section, other), problems)
                break
        owned.append(("nodes", name, mine))


def _add_shared_folders(table: tuple[str, str], store: str, other: tuple[str, str], problems: Problems) -> None:
    where = problems.document.locate_key(*other, "store")
    message = f"shares folders with the store of {other[0].removesuffix('s')} {other[1]} ({where}): give each its own"
    problems.add_problem(message, *table, "store", value=store)


def _folder_address(store: str, folder: str) -> str:
    """Write a folder of a store, relative or absolute, as an address that ends in a slash."""
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


def _check_cluster(cluster: dict[str, Any], nodes: Mapping[str, dict[str, Any]], problems: Problems) -> None:
    receivers = _section_names(problems, "receivers")
    if cluster.get("receiver"):
        _check_name(("cluster", "receiver"), cluster["receiver"], receivers, problems)
    elif len(receivers) > 1:
        problems.add_problem(f'needs receiver = "…"{suggest_nearest("", receivers)}', "cluster")
    replicas, quorum = cluster.get("replicas", 0), cluster.get("quorum", 0)
    if quorum > replicas:
        problems.add_problem(f"cannot be more than replicas ({replicas})", "cluster", "quorum", value=quorum)
    if nodes and replicas > len(nodes):
        problems.add_problem(f"needs as many [nodes.NAME]; there are {len(nodes)}", "cluster", "replicas", value=replicas)


def _section_names(problems: Problems, section: str) -> list[str]:
    tables = problems.document.tree.get(section)
    return list(tables) if isinstance(tables, dict) else []
