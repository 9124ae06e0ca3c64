"""Print a cluster to the terminal: slots of each node as bars, moving slots with their progress."""

from __future__ import annotations

from collections import Counter

from tidemark.cli.screen import Screen
from tidemark.progress import format_size
from tidemark.proof.cluster.view import ClusterView, MovingView, spans_text

WIDTH = 32  # of a node's bar, in characters
PROGRESS = 20  # width of a progress bar
SHOWN = 12  # rows of the table of moves

_EIGHTHS = " ▏▎▍▌▋▊▉"


def print_cluster(screen: Screen, view: ClusterView) -> None:
    """Print what `cluster show` shows without `--json`."""
    screen.print_line(format_headline(view))
    coming = _count_incoming(view)
    most = max((node.slots for node in view.nodes), default=0)
    rows = [
        (
            node.name,
            node.state,
            format_bar(node.slots, coming[node.name], most),
            node.slots,
            node.holds,
            format_size(node.bytes),
            node.epoch,
            node.store,
        )
        for node in view.nodes
    ]
    screen.print_table(["node", "state", "slots it heads", ">", "copies of>", "bytes>", "table>", "folder"], rows)
    if coming:
        screen.print_line("  ▒ its files are on the way; readers ask the old group, too")
    _print_moves(screen, view)
    for road in view.roads:
        screen.print_line(f"  {road.source} to {road.node}: {road.road}")
    if view.change is not None:
        screen.print_line(
            f"  {view.change.command} is {view.change.state}; ./tidemark cluster {verb_of(view)} goes on with it"
        )


def format_headline(view: ClusterView) -> str:
    serving = sum(node.state == "serving" for node in view.nodes)
    text = f"{view.receiver}: epoch {view.epoch}, {view.slots:,} slots × {view.replicas} copies on {serving} nodes"
    if not view.moving:
        return text
    come = f"{format_size(view.moved_bytes)} of {format_size(view.moving_bytes)} have come"
    return f"{text}; {view.moving_slots:,} slots move, {come}"


def verb_of(view: ClusterView) -> str:
    """The subcommand that continues the open change."""
    return view.change.command if view.change is not None else "rebalance"


def format_bar(whole: int, coming: int, most: int) -> str:
    """Draw `whole` of `most` as a bar of at most WIDTH. Its last part, `coming`, is drawn light."""
    if not most or not whole:
        return ""
    settled = (whole - coming) * WIDTH * 8 // most
    solid = "█" * (settled // 8) + _EIGHTHS[settled % 8].strip()
    light = round(coming * WIDTH / most) or bool(coming)
    return solid + "▒" * light


def progress_bar(done: int, whole: int) -> str:
    """Draw a progress bar `████░░ 66 %`. It says 100 % only if all is done."""
    share = 1.0 if done >= whole else done / whole
    filled = int(share * PROGRESS)
    return f"{'█' * filled}{'░' * (PROGRESS - filled)} {int(share * 100):3d} %"


def _count_incoming(view: ClusterView) -> Counter[str]:
    """Count by node the slots that it will head, did not hold before and has not received completely."""
    found: Counter[str] = Counter()
    for one in view.moving:
        if one.state == "moving" and one.new[0] not in one.old:
            found[one.new[0]] += one.slots
    return found


def _print_moves(screen: Screen, view: ClusterView) -> None:
    ordered = sorted(view.moving, key=lambda one: (one.done - one.bytes, one.spans))  # most missing bytes first
    screen.print_table(
        ["slots", "number>", "from", "to", "how far", "bytes>", "of>"], [_format_move(one) for one in ordered[:SHOWN]]
    )
    if len(ordered) > SHOWN:
        screen.print_line(f"… {len(ordered) - SHOWN:,} more ways: --json, or --html FILE")


def _format_move(one: MovingView) -> tuple[object, ...]:
    far = "all there" if one.state == "acknowledged" else progress_bar(one.done, one.bytes)
    old, new = ", ".join(one.old) or "the receiver", ", ".join(one.new)
    return (spans_text(one.spans, 2), one.slots, old, new, far, format_size(one.done), format_size(one.bytes))
