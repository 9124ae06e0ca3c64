"""docs/settings.md from the code: keys, defaults, what is allowed, and the meaning that `./tidemark init` writes.

python -m docs.make.settings_page       writes the page
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tidemark.settings import keys, template

PAGE = Path(__file__).resolve().parents[1] / "settings.md"
HEAD = """\
# Settings

<!-- made by docs/make/settings_page.py: change the code, then run it -->

`tidemark.toml` holds all settings. `./tidemark init` writes one with comments. `./tidemark doctor` checks it.

- `--config FILE` names the file; else `$TIDEMARK_CONFIG`, else `tidemark.toml` in the folder you stand in.
- Relative paths are below the folder of the file.
- Every key can be given as `TIDEMARK__SECTION__KEY`, for example `TIDEMARK__SITES__PLANT1__STORE`. The environment wins.
- An unknown key is an error. It names the line and the nearest key.
- Passwords and private keys stand in files of their own. The settings name those files.
"""
TITLES = {
    "ledger": ("`[ledger]`", "The metadata database."),
    "receivers": ("`[receivers.NAME]`", "Where files land and where the catalog lies. One table for each receiver."),
    "sites": ("`[sites.NAME]`", "An IoTDB at the edge: its folders, and how they are reached. One table for each site."),
    "links": ("`[links.NAME]`", "Which site goes to which receiver, when and how fast. One table for each link."),
    "spark": ("`[spark]`", "What checks and merges files."),
    "cluster": ("`[cluster]`", "How the data of a receiver is spread over nodes. Leave it out for one machine."),
    "nodes": ("`[nodes.NAME]`", "A data node. One table for each node."),
}
KEY_FILE, CONNECTION = (
    "private key file for sftp",
    "reserved for the id of an Airflow connection; a store without `key` is refused today",
)
MEANT = {  # keys that the template explains by an example, or not at all
    ("ledger", "url"): "SQLAlchemy address of the database; for PostgreSQL `postgresql+psycopg://user@host/tidemark`",
    **{(section, "key"): KEY_FILE for section in ("receivers", "sites", "nodes")},
    **{(section, "connection"): CONNECTION for section in ("receivers", "sites", "nodes")},
    **{
        (
            section,
            "host_key",
        ): "fingerprint of the SSH server; required for sftp. `doctor` tells how to see it"
        for section in ("receivers", "sites", "nodes")
    },
    ("nodes", "store"): "`sftp://user@host:port/folder`, or a folder of this machine; of its own, and empty",
    ("links", "bandwidth"): '"20 MB/s"; "": no limit. Inside the bandwidth of the receiver',
    ("links", "schedule"): 'cron line of the DAG; "": by hand only',
    ("links", "site"): "the name of a `[sites.NAME]`",
    ("links", "receiver"): "the name of a `[receivers.NAME]`; may be left out where there is only one",
    ("sites", "store"): "IoTDB's folder: of this machine, or `sftp://user@host:port/folder`",
    ("spark", "host_key"): "of the server in `files`",
    ("spark", "key"): "private key file for `files`; at this path on every executor",
    ("spark", "master"): "where Spark jobs run",
    ("links", "exclude"): "device patterns that are left out",
    ("links", "digest"): 'SHA-256 at both ends; or "target": there alone, and `./tidemark verify` proves it later',
    ("links", "deletes"): 'files that vanished at the site stay in the catalog, marked; "apply" removes them',
    ("links", "delete_limit_share"): 'with "apply": a larger share of the known files waits for `./tidemark approve`',
    ("sites", "id"): "a UUID: this site for ever. Never change it, never use it twice",
}
SECTION = re.compile(r"(?:# )?\[(\w+)(?:\.\w+)?\]")
SETTING = re.compile(r"(?:# )?(\w+) = (\S.*?)\s*(?:#\s*(.*))?$")


@dataclasses.dataclass(frozen=True)
class Written:
    """A key as the template writes it."""

    value: Any
    meaning: str


def page() -> str:
    written = dict(_written())
    readers = keys.value_readers(Path("/"))
    parts = [HEAD]
    for section, (title, what) in TITLES.items():
        parts.append(f"## {title}\n\n{what}\n")
        rows = ["| key | default | meaning | allowed |", "|---|---|---|---|"]
        fields = {field.name: field for field in dataclasses.fields(keys.SECTIONS[section])}
        for key, read in readers[section].items():
            told = written.get((section, key), Written(None, ""))
            default = _default(section, key, fields[key].default, told.value, read)
            rows.append(f"| `{key}` | {default} | {_meaning(section, key, told, written)} | {_allowed(read)} |")
        parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)


def _written() -> Iterator[tuple[tuple[str, str], Written]]:
    section = ""
    for line in template.render_template().splitlines():
        if found := SECTION.match(line):
            section = found[1]
        elif (found := SETTING.match(line)) and section:
            yield (section, found[1]), Written(tomllib.loads(f"v = {found[2]}")["v"], found[3] or "")


def _default(section: str, key: str, default: Any, written: Any, read: Any) -> str:
    if key in keys.required_keys(section):
        return "must be given"
    if default is dataclasses.MISSING:
        return "the only one"
    try:
        same = written is not None and read(written) == default
    except (ValueError, TypeError):
        same = False
    value = written if same else list(default) if isinstance(default, tuple) else default
    return f"`{keys.format_value(value)}`" if value not in ("", 0.0) or isinstance(value, int) else '`""`'


def _meaning(section: str, key: str, told: Written, written: Mapping[tuple[str, str], Written]) -> str:
    text = MEANT.get((section, key)) or told.meaning
    if text == "see the receiver's" or (not text and (section, key) not in written):
        text = written.get(("receivers", key), told).meaning or _comment(section, key)
    return text.replace("|", "\\|")


def _comment(section: str, key: str) -> str:
    source = inspect.getsource(keys.SECTIONS[section])
    found = re.search(rf"^    {key}: .*?#\s*(.*)$", source, re.MULTILINE)
    return found[1] if found else ""


def _allowed(read: Any) -> str:
    """What the reader says about a value that cannot be right."""
    try:
        read(object())
    except ValueError as wrong:
        allowed = str(wrong).removeprefix("must be ").split("; ssh-keyscan")[0].split("; here is")[0]
        return allowed.replace("a text in quotes", "text").replace("|", "\\|")
    except (TypeError, AttributeError):
        return ""
    return ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
