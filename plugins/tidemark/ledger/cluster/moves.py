"""Moves between nodes: slots, acknowledgements, states (`cluster_move`, `cluster_acknowledgement`, `cluster_slot`).

Every function works in the caller's transaction and writes rows in one order. Source: sql/0008_cluster.sql,
docs/decisions/0015.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.ledger.sql import write_rows


@dataclass(frozen=True)
class MoveRow:
    """The move of a slot at an epoch; groups are names of nodes, header first."""

    receiver: str
    epoch: int
    slot: int
    old: tuple[str, ...]
    new: tuple[str, ...]
    state: str = "moving"  # moving | acknowledged | done
    bytes_done: int = 0
    at: float = 0.0


def add_moves(connection: Connection, rows: Iterable[MoveRow]) -> None:
    """Add moves; rows that exist stay as they are."""
    values = [
        {
            "receiver": row.receiver,
            "epoch": row.epoch,
            "slot": row.slot,
            "old": json.dumps(row.old),
            "new": json.dumps(row.new),
            "state": row.state,
            "bytes": row.bytes_done,
            "at": row.at,
        }
        for row in rows
    ]
    sql = (
        "INSERT INTO cluster_move (receiver, epoch, slot, old_group, new_group, state, bytes_done, at) VALUES"
        " (:receiver, :epoch, :slot, :old, :new, :state, :bytes, :at) ON CONFLICT DO NOTHING"
    )
    write_rows(connection, sql, values)


def moves_of_epoch(connection: Connection, receiver: str, epoch: int, open_only: bool = False) -> list[MoveRow]:
    """Return the moves of one epoch, by slot; `open_only`: those that are not done."""
    sql = (
        "SELECT receiver, epoch, slot, old_group, new_group, state, bytes_done, at FROM cluster_move"
        " WHERE receiver = :r AND epoch = :e" + (" AND state <> 'done'" if open_only else "") + " ORDER BY slot"
    )
    return [
        MoveRow(row[0], int(row[1]), int(row[2]), tuple(json.loads(row[3])), tuple(json.loads(row[4])), *row[5:])
        for row in connection.execute(sa.text(sql), {"r": receiver, "e": epoch})
    ]


_BEFORE = {"acknowledged": "'moving'", "done": "'moving', 'acknowledged'"}


def set_move_state(connection: Connection, receiver: str, epoch: int, slots: Iterable[int], state: str, at: float) -> None:
    """Set the state forward, to `acknowledged` or `done`; a slot that has it, or is further, keeps its row."""
    values = [{"r": receiver, "e": epoch, "slot": slot, "s": state, "at": at} for slot in sorted(slots)]
    sql = (
        "UPDATE cluster_move SET state = :s, at = :at WHERE receiver = :r AND epoch = :e AND slot = :slot"
        f" AND state IN ({_BEFORE[state]})"
    )
    write_rows(connection, sql, values)


def add_bytes(connection: Connection, receiver: str, epoch: int, by_slot: Mapping[int, int]) -> None:
    values = [{"r": receiver, "e": epoch, "slot": slot, "b": count} for slot, count in sorted(by_slot.items())]
    sql = "UPDATE cluster_move SET bytes_done = bytes_done + :b WHERE receiver = :r AND epoch = :e AND slot = :slot"
    write_rows(connection, sql, values)


def acknowledge_slots(connection: Connection, receiver: str, epoch: int, slots: Iterable[int], node: str, at: float) -> None:
    """Record that the node has all of these slots, proved. A second call changes nothing."""
    values = [{"r": receiver, "e": epoch, "slot": slot, "n": node, "at": at} for slot in sorted(slots)]
    sql = (
        "INSERT INTO cluster_acknowledgement (receiver, epoch, slot, node, at) VALUES (:r, :e, :slot, :n, :at)"
        " ON CONFLICT DO NOTHING"
    )
    write_rows(connection, sql, values)


def acknowledged_nodes(connection: Connection, receiver: str, epoch: int) -> dict[int, frozenset[str]]:
    """Return slot → the nodes that have all of it, at exactly this epoch."""
    sql = "SELECT slot, node FROM cluster_acknowledgement WHERE receiver = :r AND epoch = :e"
    found: dict[int, set[str]] = {}
    for slot, node in connection.execute(sa.text(sql), {"r": receiver, "e": epoch}):
        found.setdefault(int(slot), set()).add(node)
    return {slot: frozenset(names) for slot, names in found.items()}


def slot_states(connection: Connection, receiver: str, node: str = "") -> dict[tuple[str, int], tuple[str, int]]:
    """Return (node, slot) → (state, epoch), of slots that move."""
    sql = "SELECT node, slot, state, epoch FROM cluster_slot WHERE receiver = :r" + (" AND node = :n" if node else "")
    rows = connection.execute(sa.text(sql), {"r": receiver, "n": node} if node else {"r": receiver})
    return {(row[0], int(row[1])): (row[2], int(row[3])) for row in rows}


def put_slot_states(connection: Connection, receiver: str, states: Mapping[tuple[str, int], str], epoch: int) -> None:
    """Set (node, slot) → state; `null` deletes the row. A row of a later epoch stays: the caller is out of date."""
    gone = [
        {"r": receiver, "n": n, "slot": slot, "e": epoch} for (n, slot), state in sorted(states.items()) if state == "null"
    ]
    kept = [
        {"r": receiver, "n": n, "slot": slot, "s": state, "e": epoch}
        for (n, slot), state in sorted(states.items())
        if state != "null"
    ]
    sql = "DELETE FROM cluster_slot WHERE receiver = :r AND node = :n AND slot = :slot AND epoch <= :e"
    write_rows(connection, sql, gone)
    sql = (
        "INSERT INTO cluster_slot (receiver, node, slot, state, epoch) VALUES (:r, :n, :slot, :s, :e)"
        " ON CONFLICT (receiver, node, slot) DO UPDATE SET state = excluded.state, epoch = excluded.epoch"
        " WHERE cluster_slot.epoch <= excluded.epoch"
    )
    write_rows(connection, sql, kept)
