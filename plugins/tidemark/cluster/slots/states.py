"""The states of a slot at a node while it moves, and which event leads from which state to which.

At a member of the new group: PULLING until the schema is there (it is not writable), PULLING_WRITABLE until all files are,
then NULL. At a member of the old group: SENDING, SENT once every member of the new group has acknowledged, NULL once its
files are removed. Source: seed 001 "Data migration"; research/iotdb.md §3.6.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from tidemark.errors import OutcomeUnknownError


class SlotState(enum.StrEnum):
    """State of one slot at one node. NULL: nothing moves."""

    NULL = "null"
    PULLING = "pulling"
    PULLING_WRITABLE = "pulling_writable"
    SENDING = "sending"
    SENT = "sent"


class SlotEvent(enum.StrEnum):
    """An event of a slot at a node."""

    GAINED = "gained"  # phase 2 begins: the node is of the new group and not of the old one
    SCHEMA_LOADED = "schema_loaded"
    FILES_LOADED = "files_loaded"
    LOST = "lost"  # phase 2 begins: the node is of the old group
    ALL_ACKNOWLEDGED = "all_acknowledged"
    FILES_GONE = "files_gone"


_ = SlotState
TRANSITIONS: Mapping[tuple[SlotState, SlotEvent], SlotState] = {
    (_.NULL, SlotEvent.GAINED): _.PULLING,
    (_.PULLING, SlotEvent.SCHEMA_LOADED): _.PULLING_WRITABLE,
    (_.PULLING_WRITABLE, SlotEvent.FILES_LOADED): _.NULL,
    (_.NULL, SlotEvent.LOST): _.SENDING,
    (_.SENDING, SlotEvent.ALL_ACKNOWLEDGED): _.SENT,
    (_.SENT, SlotEvent.FILES_GONE): _.NULL,
}
AGAIN: frozenset[tuple[SlotState, SlotEvent]] = frozenset(
    [
        (_.PULLING, SlotEvent.GAINED),
        (_.PULLING_WRITABLE, SlotEvent.GAINED),
        (_.PULLING_WRITABLE, SlotEvent.SCHEMA_LOADED),
        (_.NULL, SlotEvent.FILES_LOADED),
        (_.SENDING, SlotEvent.LOST),
        (_.SENT, SlotEvent.ALL_ACKNOWLEDGED),
        (_.NULL, SlotEvent.FILES_GONE),
    ]
)
"""Told once more, as happens after a lost answer: the state stays."""


def next_state(state: SlotState, event: SlotEvent) -> SlotState:
    """Return the next state. OutcomeUnknownError for an event that cannot come now: one of another epoch, or a bug."""
    if (state, event) in AGAIN:
        return state
    found = TRANSITIONS.get((state, event))
    if found is None:
        raise OutcomeUnknownError(
            f"a slot that is {state} cannot be {event} now",
            hint="./tidemark cluster show tells what moves; the task of an earlier epoch is to be cleared",
        )
    return found
