"""The file that `./tidemark init` writes: every key, with a value and its meaning. It loads as it is."""

from __future__ import annotations

from collections.abc import Iterator

from tidemark.settings.model import SECTIONS, list_settings, make_start
from tidemark.settings.values import format_read, format_value

HEAD = """\
# Tidemark's settings. Every key can also be given as TIDEMARK__SECTION__KEY, e.g. TIDEMARK__SITES__PLANT1__STORE.
# Relative paths are below the folder of this file. Check what you wrote with:  ./tidemark doctor
"""
CLUSTER_HEAD = "# Several nodes for the catalog: take away the # of the lines below, then ./tidemark cluster init\n"
TABLES = {"receivers": "centre", "sites": "plant1", "links": "plant1", "nodes": "n1"}
COMMENTED = ("cluster", "nodes")  # sections that a new file does not use
MEANING_COLUMN = 43


def render_template() -> str:
    """Return the text of a new file, with a new UUID for its site."""
    parts = [HEAD]
    for section in SECTIONS:
        head = CLUSTER_HEAD if section == "cluster" else ""
        prefix = "# " if section in COMMENTED else ""
        parts.append(head + "".join(f"{prefix}{line}\n" for line in _render_section(section, MEANING_COLUMN - len(prefix))))
    return "\n".join(parts)


def _render_section(section: str, column: int) -> Iterator[str]:
    name = f"{section}.{TABLES[section]}" if section in TABLES else section
    yield f"{f'[{name}]':{column}}# {SECTIONS[section].__doc__}"
    for key, setting in list_settings(section).items():
        value = format_value(make_start(setting)) if setting.start else format_read(setting.default, setting.read)
        yield f"{f'{key} = {value}  ':{column}}# {setting.meaning}"
