"""What the specifications of whole runs share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.crash.edge import path_of
from tests.crash.explorer import Effects
from tests.crash.sync_world import SITE_ID, SyncWorld
from tidemark.app import App
from tidemark.formats.landing import Answer, Receipt, encode_document
from tidemark.ledger.sender import links as link_rows

DISJOINT = {n: {"root.sg.d1": (n * 10, n * 10 + 9)} for n in range(1, 30)}


@contextmanager
def opened(world: SyncWorld) -> Iterator[App]:
    app = world.app(Effects())
    yield app
    app.ledger.close()


def seal(world: SyncWorld, *numbers: int) -> list[str]:
    return [world.edge.seal(path_of(n), extent=DISJOINT[n]) for n in numbers]


def guard(world: SyncWorld) -> str | None:
    with opened(world) as app, app.ledger.read() as connection:
        link = link_rows.get_link(connection, "plant1")
    assert link is not None
    return link.guard


def answer(world: SyncWorld, landing: str, *answers: Answer) -> None:
    import hashlib

    folder = f"landing/{SITE_ID}/{landing}"
    digest = hashlib.sha256(world.centre.read(f"{folder}/manifest.json")).hexdigest()
    sequence = next(m.sequence for m in world.manifests() if m.landing == landing)
    world.centre.publish(f"{folder}/receipt.json", encode_document(Receipt(landing, sequence, digest, 1.0, answers)))
