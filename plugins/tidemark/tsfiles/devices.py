r"""Canonical names of devices: one text for what TsFiles of both models and all versions write differently (CONTRACT §1).

Tree model: nodes joined by `.`; a node is in back-quotes only where IoTDB's SQL needs it (anything but letters, digits,
`_` and U+2E80…U+9FFF, or a plain number); a back-quote inside is doubled.

Table model: `database.table.tag1.tag2…`; a null tag is `\N`; `\` and `.` inside a tag are escaped by `\`. Files leave out
the null tags at the end, and so does the canonical name. Readers get the padded form (`pad_null_tags`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

NULL_TAG = "\\N"
_PLAIN = re.compile(r"[0-9A-Za-z_\u2e80-\u9fff]+")
_NUMBER = re.compile(r"\d+(?:[eE]\d+)?[dDfFlL]?|0[xX][0-9a-fA-F]+", re.ASCII)
_NODE = re.compile(r"`(?:[^`]|``)*`|[^.]*", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_TAG = re.compile(r"(?:\\.|[^.\\])*", re.DOTALL)
_ANY_IN_TREE = r"(?:`(?:[^`]|``)*`|[^.`])"
_ANY_IN_TABLE = r"(?:\\.|[^.\\])"


def quote_node(identifier: str) -> str:
    """Quote an identifier for use as one node of a path in IoTDB's SQL, only if it needs back-quotes."""
    if _PLAIN.fullmatch(identifier) and not _NUMBER.fullmatch(identifier):
        return identifier
    return "`" + identifier.replace("`", "``") + "`"


def unquote_node(node: str) -> str:
    """The identifier of a node of a path, without its quotes."""
    if len(node) >= 2 and node[0] == "`" and node[-1] == "`":
        return node[1:-1].replace("``", "`")
    return node


def split_nodes(path: str) -> list[str]:
    """Split a path of the tree model into its nodes, quotes kept. A dot inside quotes does not separate."""
    return list(_iterate_nodes(path))


def tree_device(segments: Sequence[str | None]) -> str:
    """The canonical name of a device of the tree model.

    `segments` as a file has them: one whole path (V3), or the first nodes as one path and then a node each (V4).
    """
    first, *rest = segments
    # a segment is one node: a dot in it does not separate
    return ".".join((_first_nodes(first or ""), *(quote_node(unquote_node(node or "")) for node in rest)))


@lru_cache(maxsize=4096)
def _first_nodes(path: str) -> str:
    """The canonical first nodes. Cached, because devices of one file mostly share them."""
    return ".".join(quote_node(unquote_node(node)) for node in split_nodes(path))


@lru_cache(maxsize=4096)
def measurement_name(name: str) -> str:
    """The canonical name of a measurement of the tree model."""
    return quote_node(unquote_node(name))


def table_device(database: str, segments: Sequence[str | None]) -> str:
    """The canonical name of a device of the table model: `segments` is the table and its tags (None: null)."""
    tags = list(segments[1:])
    while tags and tags[-1] is None:
        tags.pop()
    names = [quote_node(part) for part in (database, segments[0] or "") if part]
    return ".".join([*names, *(NULL_TAG if tag is None else _escape_tag(tag) for tag in tags)])


@lru_cache(maxsize=4096)
def table_segments(device: str) -> tuple[str | None, ...]:
    """The table and the tags of a canonical device of the table model (None: null)."""
    _, table, *tags = _table_nodes(device)
    return (unquote_node(table), *(None if tag == NULL_TAG else _ESCAPED.sub(r"\1", tag) for tag in tags))


def file_device(segments: Sequence[str | None], database: str = "", prefix: str = "") -> str:
    """The canonical name of a device of either model. The file does not name the model: tree paths begin with `root`.

    `database` completes a device of the table model. `prefix`: of its site (`put_below`, `database_below`).
    """
    if is_table(segments):
        return table_device(database_below(prefix, database), segments)
    return put_below(prefix, tree_device(segments))


def put_below(prefix: str, name: str) -> str:
    """A device, series or pattern of either model as the catalog names it. A name of the tree model: `prefix` in place of
    `root`. One of the table model: its database as `database_below` has it.

    `prefix` is a canonical path, or empty for the name as it is. So is `name`.
    """
    if not prefix or not name:
        return name
    if not is_table([name]):
        return prefix + name[4:]
    database = split_nodes(name)[0]
    if "*" in database:  # a pattern of any database, or `resource.ANY_DEVICE`
        return name
    return quote_node(database_below(prefix, unquote_node(database))) + name[len(database) :]


def database_below(prefix: str, database: str) -> str:
    """A database as the catalog names it. One of the tree model as `put_below` has it. A table model's has no path: below
    `root.fleet.ship7` `works` is `fleet_ship7_works`."""
    if not prefix or not database:
        return database
    if not is_table([database]):
        return prefix + database[4:]
    return "_".join([*(unquote_node(node) for node in split_nodes(prefix)[1:]), database])


def is_table(segments: Sequence[str | None]) -> bool:
    """Whether a device of a file is one of the table model (IoTDB's own rule: tree paths begin with `root`)."""
    first = segments[0] or ""
    return not (first == "root" or first.startswith("root."))


def pad_null_tags(device: str, tags: int) -> str:
    """The form that readers get of a table-model device: null tags appended up to the table's number of `tags`."""
    missing = tags - (len(_table_nodes(device)) - 2)
    return device + ("." + NULL_TAG) * missing if missing > 0 else device


def pattern_matches(pattern: str, device: str) -> bool:
    """Whether a canonical device name matches a pattern such as `root.plant1.**`, `root.*.line1.d*`, `works.sensors.r0.*`.

    `*` is any characters of one node, `**` (a node of its own) one or more whole nodes; all else is literal. Case counts.
    """
    return _compile_pattern(pattern, not is_table([device])).fullmatch(f"{device}.") is not None


def plain_path(pattern: str) -> str | None:
    """The canonical name that a tree pattern without a star matches; None for a pattern with one, or an empty one."""
    return (
        None if "*" in pattern or not pattern else ".".join(quote_node(unquote_node(node)) for node in split_nodes(pattern))
    )


@lru_cache(maxsize=1 << 14)
def _compile_pattern(pattern: str, tree: bool) -> re.Pattern[str]:
    anything = _ANY_IN_TREE if tree else _ANY_IN_TABLE
    runs = [""]  # of nodes, each with its dot; between two of them are any number of nodes
    for node in split_nodes(pattern) if tree else _table_nodes(pattern):
        if "*" in node and not (tree and node.startswith("`")):  # a `**` is one node and any number of them
            runs[-1] += translate_stars(node, anything) + r"\."
        else:
            runs[-1] += re.escape(quote_node(unquote_node(node)) if tree else node) + r"\."
        if node == "**":
            runs.append("")
    return re.compile(_join_pieces(runs, rf"(?:{anything}*+\.)"), re.DOTALL)


def translate_stars(pattern: str, anything: str = ".") -> str:
    """Return the regular expression of a pattern in which `*` is any number of `anything`; all else is literal."""
    return _join_pieces([re.escape(piece) for piece in pattern.split("*")], anything)


def _join_pieces(pieces: Sequence[str], anything: str) -> str:
    """Join regular expressions with any number of `anything` between two of them.

    The first place at which a piece matches is as good as any later one, but for the last piece. So no place is tried again
    (an atomic group), and a pattern of thousands of stars takes no longer than its text is long.
    """
    first, *others = pieces
    if not others:
        return first
    *middle, last = others
    return first + "".join(f"(?>{anything}*?{piece})" for piece in middle if piece) + f"{anything}*{last}"


def _iterate_nodes(path: str) -> Iterator[str]:
    at = 0
    while True:
        found = _NODE.match(path, at)
        end = found.end() if found else at
        while end < len(path) and path[end] != ".":  # text after a closing quote is part of the node
            end += 1
        yield path[at:end]
        if end >= len(path):
            return
        at = end + 1


def _table_nodes(device: str) -> list[str]:
    """Split into database, table (both may be quoted) and tags. In a tag a back-quote is an ordinary character."""
    nodes = []
    at = 0
    for node in _iterate_nodes(device):
        nodes.append(node)
        at += len(node) + 1
        if len(nodes) == 2:
            break
    while at <= len(device):
        found = _TAG.match(device, at)
        end = max(at, found.end() if found else at)
        while end < len(device) and device[end] != ".":  # a lone backslash at the end
            end += 1
        nodes.append(device[at:end])
        at = end + 1
    return nodes


def _escape_tag(tag: str) -> str:
    return tag.replace("\\", "\\\\").replace(".", "\\.")
