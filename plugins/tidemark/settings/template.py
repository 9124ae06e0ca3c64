"""The file that `./tidemark init` writes: every key, with a value and its meaning. It loads as it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tidemark.settings.model import INCLUDE, SECTIONS, list_settings, make_start
from tidemark.settings.values import format_read, format_toml, format_value

HEAD = """\
# Tidemark's settings. Every key can also be given as TIDEMARK__SECTION__KEY, e.g. TIDEMARK__SITES__PLANT1__STORE.
# Relative paths are below the folder of this file. Check what you wrote with:  ./tidemark doctor
#
# Many sites: [defaults.site] and [defaults.link] hold what sites and links have unless they say otherwise.
# A [links."north-*"] is a link for each site of such a name.
"""
CLUSTER_HEAD = "# Several nodes for the catalog: take away the # of the lines below, then ./tidemark cluster init\n"
SOURCES_HEAD = "# Changes of MySQL and MariaDB: take away the # of the lines below, then ./tidemark changes capture orders\n"
HEADS = {"cluster": CLUSTER_HEAD, "sources": SOURCES_HEAD}
TABLES = {"receivers": "centre", "sites": "plant1", "links": "plant1", "nodes": "n1", "sources": "orders", "sinks": "lake"}
COMMENTED = ("cluster", "nodes", "sources", "sinks", "changes")  # sections that a new file does not use
MEANING_COLUMN = 43


def render_template(sites: Mapping[str, Mapping[str, Any]] | None = None) -> str:
    """Return the text of a new file. It has the sites that are given, each with a link, or one with a new UUID."""
    parts = [HEAD, f"{f'include = {format_read(INCLUDE.default, INCLUDE.read)}':{MEANING_COLUMN}}# {INCLUDE.meaning}\n"]
    for section in SECTIONS:
        if section in ("sites", "links") and sites:
            if section == "sites":
                parts.append(render_sites(sites))
            continue
        head = HEADS.get(section, "")
        prefix = "# " if section in COMMENTED else ""
        parts.append(head + "".join(f"{prefix}{line}\n" for line in _render_section(section, MEANING_COLUMN - len(prefix))))
    return "\n".join(parts)


def render_sites(sites: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the tables of sites, each with a new UUID and the values that are given, and a link for each."""
    tables = []
    for name, values in sites.items():
        identity = {"id": make_start(list_settings("sites")["id"])}
        link = {"site": name, "receiver": TABLES["receivers"], "schedule": list_settings("links")["schedule"].start}
        for section, given in (("sites", {**identity, **values}), ("links", link)):
            tables.append("".join(f"{line}\n" for line in _render_section(section, MEANING_COLUMN, name, given)))
    return "\n".join(tables)


def _render_section(section: str, column: int, name: str = "", given: Mapping[str, Any] | None = None) -> Iterator[str]:
    """Yield the lines of a table: every key with its start, or those that are given."""
    titled = f"{section}.{name or TABLES[section]}" if section in TABLES else section
    yield f"{f'[{titled}]':{column}}# {SECTIONS[section].__doc__}"
    for key, setting in list_settings(section).items():
        if given is not None and key not in given:
            continue
        if given is not None:
            value = format_toml(given[key])
        else:
            value = format_value(make_start(setting)) if setting.start else format_read(setting.default, setting.read)
        yield f"{f'{key} = {value}  ':{column}}# {setting.meaning}"
