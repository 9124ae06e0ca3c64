"""The cluster as one HTML file: a row per node, the slots from left to right, readable without network or script.

Full colour: slots that a node heads; pale: slots of which it has a copy; amber with a stroke: slots on their way to it.
Adjacent slots of one kind are one rectangle, so ten thousand slots stay a small page. Below them each data group with its
members: their roles, and the versions at which their logs end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby

from tidemark.cluster.replicas.core.roles import Role
from tidemark.progress import format_size
from tidemark.proof.cluster.replicas import GroupReplicasView, ReplicaView
from tidemark.proof.cluster.view import ClusterView, MovingView, NodeView, spans_text
from tidemark.proof.page_style import STYLE, escape_html

_WIDE, _ROW, _TOP = 880, 26, 34
_NAMES = 120  # pixels for a node's name and state
_COLUMNS = 880  # at most; with more slots, a column shows several
_WAYS = 200  # rows of the list below the map
_MORE = """
svg .copy { fill: var(--ok); opacity: .38 } .bar { background: var(--line); border-radius: 4px; width: 160px; height: 10px }
.bar i { display: block; height: 10px; border-radius: 4px; background: var(--ok) }
.members { display: flex; flex-wrap: wrap; gap: 8px } .waits { white-space: normal }
.members div { border: 1px solid var(--line); border-left: 6px solid var(--line); border-radius: 6px; padding: 4px 10px;
               width: 220px; font-size: 12px; white-space: normal; overflow-wrap: anywhere; background: var(--panel) }
.members .master { border-color: var(--ok) } .members .slave { border-left-color: var(--ok) }
.members .unsynced { border-left-color: var(--some) } .members .offline { border-style: dashed; border-color: var(--bad) }
"""
_BOXES = {Role.MASTER: "master", Role.SLAVE: "slave", Role.UNSYNCED: "unsynced", Role.OFFLINE: "offline"}
HEADS, COPY, COMING = "ok", "copy", "some"
_SAID = {HEADS: "heads them", COPY: "has a copy", COMING: "on their way to it"}
_RANK = (COMING, HEADS, COPY, "")


def render_page(view: ClusterView, groups: Sequence[GroupReplicasView] = ()) -> str:
    """Render the whole HTML page. `groups`: as the nodes told them. Pure."""
    at = datetime.fromtimestamp(view.made, UTC).strftime("%Y-%m-%d %H:%M UTC")
    counts = [node.slots for node in view.nodes if node.state in ("serving", "joining")] or [0]
    totals = [
        ("", f"{view.epoch:,}", "epoch"),
        ("", f"{view.slots:,} × {view.replicas}", "slots × copies"),
        ("", f"{min(counts):,} to {max(counts):,}", "slots a node heads"),
        ("", f"{view.moving_slots:,}", "slots move"),
        ("", f"{format_size(view.moved_bytes)} of {format_size(view.moving_bytes)}", "have come"),
    ]
    boxes = "".join(f'<div class="{kind}"><b>{number}</b>{text}</div>' for kind, number, text in totals)
    change = f"<div class='gap'>{escape_html(view.change.command)} is {view.change.state}</div>" if view.change else ""
    change += f"<div class='gap'>{escape_html(view.older)}</div>" if view.ahead else ""
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width,initial-scale=1'>"
        f"<title>Tidemark cluster: {escape_html(view.receiver)}</title><style>{STYLE}{_MORE}</style></head><body><main>"
        f"<h1>Cluster of {escape_html(view.receiver)}</h1><div class='faint'>slots by node · {at}</div>"
        f"<div class='totals'>{boxes}</div>{change}{_LEGEND}"
        f"{_render_map(view)}{_render_groups(groups)}{_render_nodes(view)}{_render_moves(view)}</main></body></html>\n"
    )


_LEGEND = (
    "<div class='legend'>"
    "<span><svg width='14' height='14'><rect width='14' height='14' rx='2' class='ok'/></svg>heads the slots</span>"
    "<span><svg width='14' height='14'><rect width='14' height='14' rx='2' class='copy'/></svg>has a copy</span>"
    "<span><svg width='14' height='14'><rect width='14' height='14' rx='2' class='some'/>"
    "<path d='M2 12L12 2' class='stroke'/></svg>on their way to it</span><span>empty: not its slots</span></div>"
)


def _render_map(view: ClusterView) -> str:
    height = _TOP + _ROW * len(view.nodes) + 6
    names: list[str] = []
    rows: list[str] = []
    for number, node in enumerate(view.nodes):
        y = _TOP + number * _ROW
        names.append(f"<text x='10' y='{y + 16}'>{escape_html(node.name)}</text>")
        rows.extend(_render_run(node, view, run, y) for run in group_columns(view, node.name))
    return (
        f"<div class='map'><div class='names'><svg width='{_NAMES}' height='{height}'>{''.join(names)}</svg></div>"
        f"<div class='cells'><svg width='{_WIDE + 24}' height='{height}' role='img' aria-label='slots by node'>"
        f"{''.join(_render_ticks(view.slots, height))}<g class='rows'>{''.join(rows)}</g></svg></div></div>"
    )


def group_columns(view: ClusterView, node: str) -> Iterator[tuple[int, int, str]]:
    """Yield (first slot, last slot, kind) of adjacent columns in which the node has the same part, if any."""
    step = -(-view.slots // _COLUMNS)
    parts = _list_parts(view, node)
    columns = [_pick_worst(parts, start, min(start + step, view.slots)) for start in range(0, view.slots, step)]
    for kind, run in groupby(enumerate(columns), key=lambda column: column[1]):
        places = [place for place, _ in run]
        if kind:
            yield places[0] * step, min((places[-1] + 1) * step, view.slots) - 1, kind


def _list_parts(view: ClusterView, node: str) -> list[str]:
    """Return by slot: the node's part in it."""
    members: Mapping[str, tuple[str, ...]] = {group.header: group.members for group in view.groups}
    parts = [HEADS if owner == node else COPY if node in members.get(owner, ()) else "" for owner in view.owners]
    for one in view.moving:
        if one.state == "moving" and node in one.new and node not in one.old:
            for first, last in one.spans:
                parts[first : last + 1] = [COMING] * (last + 1 - first)
    return parts


def _pick_worst(parts: list[str], start: int, end: int) -> str:
    """Return the part that needs most attention among several slots in one column."""
    return min(parts[start:end], key=_RANK.index)


def _render_run(node: NodeView, view: ClusterView, run: tuple[int, int, str], y: int) -> str:
    first, last, kind = run
    x, right = (4 + slot * _WIDE / view.slots for slot in (first, last + 1))
    title = f"<title>{escape_html(node.name)}\nslots {first} to {last}\n{_SAID[kind]}</title>"
    box = f"x='{x:.1f}' y='{y + 3}' width='{max(1.0, right - x - 0.5):.1f}' height='{_ROW - 6}'"
    if kind != COMING:
        return f"<rect {box} class='{kind}'>{title}</rect>"
    stroke = f"M{x:.1f} {y + _ROW - 4}L{right:.1f} {y + 4}"
    return f"<g><rect {box} class='some'>{title}</rect><path d='{stroke}' class='stroke' pointer-events='none'/></g>"


def _render_ticks(slots: int, height: int) -> Iterator[str]:
    for tenth in range(0, 10, 2):
        x = 4 + tenth * _WIDE / 10
        yield f"<path d='M{x:.1f} {_TOP - 10}V{height}' class='rule'/>"
        yield f"<text x='{x:.1f}' y='{_TOP - 14}' class='tick'>{slots * tenth // 10:,}</text>"


def _render_nodes(view: ClusterView) -> str:
    head = "<tr><th>node</th><th>heads</th><th>copies of</th><th>bytes</th><th>state</th><th>folder</th></tr>"
    rows = "".join(
        f"<tr><td class='mono'>{escape_html(n.name)}</td><td>{n.slots:,}</td><td>{n.holds:,}</td>"
        f"<td>{format_size(n.bytes)}</td>"
        f"<td>{escape_html(n.state)}</td><td class='mono'>{escape_html(n.store)}</td></tr>"
        for n in view.nodes
    )
    return f"<table>{head}{rows}</table>"


def _render_groups(groups: Sequence[GroupReplicasView]) -> str:
    """A row a group, a box a member in the order of the ring; below a group's row what it waits for."""
    if not groups:
        return ""
    rows = "".join(
        f"<tr><td class='mono'>{escape_html(group.group)}</td><td>{group.version:,} of epoch {group.epoch:,}</td>"
        f"<td><div class='members'>{''.join(_render_member(member) for member in group.members)}</div>"
        f"<div class='faint waits'>{escape_html(group.waits)}</div></td></tr>"
        for group in groups
    )
    return f"<h2>Groups</h2><table><tr><th>group</th><th>version</th><th>members</th></tr>{rows}</table>"


def _render_member(member: ReplicaView) -> str:
    heading = f"{member.node}: {member.role.value}"
    at = f"version {member.version:,}, epoch {member.epoch:,}" if member.version else ""
    lines = [line for line in (at, member.why, member.recovery) if line]
    told = "".join(f"<br>{escape_html(line)}" for line in lines)
    return f"<div class='{_BOXES[member.role]}'><b>{escape_html(heading)}</b>{told}</div>"


def _render_moves(view: ClusterView) -> str:
    if not view.moving:
        return ""
    rows = "".join(_render_move(one) for one in view.moving[:_WAYS])
    hidden = len(view.moving) - _WAYS
    more = f"<p class='faint'>{hidden:,} more; all of them: ./tidemark cluster show --json</p>" if hidden > 0 else ""
    head = "<tr><th>slots</th><th>number</th><th>bytes</th><th>how far</th><th>from</th><th>to</th></tr>"
    return f"<h2>What moves</h2><table>{head}{rows}</table>{more}"


def _render_move(one: MovingView) -> str:
    percent = 100 if one.done >= one.bytes else int(100 * one.done / one.bytes)
    far = "all there" if one.state == "acknowledged" else f"<div class='bar'><i style='width:{percent}%'></i></div>"
    return (
        f"<tr><td class='mono'>{spans_text(one.spans)}</td><td>{one.slots:,}</td>"
        f"<td>{format_size(one.done)} of {format_size(one.bytes)}</td><td>{far}</td>"
        f"<td>{escape_html(', '.join(one.old) or 'the receiver')}</td><td>{escape_html(', '.join(one.new))}</td></tr>"
    )
