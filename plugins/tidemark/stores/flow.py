"""Contents of many files in one stream: what is wanted is asked ahead, over the borders of files, and comes in that order.

A store that can keep many requests on their way offers `flow` itself; of any other the same stream is made of its calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol, runtime_checkable

from tidemark.errors import SourceVanishedError, TidemarkError
from tidemark.stores.protocol import Store
from tidemark.stores.transfer_items import PIECE

BUNDLE_FILES = 512
BUNDLE_BYTES = 8 << 20


class Want(NamedTuple):
    """`length` bytes of a file from `offset`."""

    number: int
    path: str
    offset: int
    length: int
    small: bool = False  # the file is whole in it, and may come in a bundle


class Piece(NamedTuple):
    """The next bytes of a want, good until the next piece is taken; or why there are no more of it."""

    number: int
    data: bytes | memoryview
    trouble: TidemarkError | None = None


@runtime_checkable
class Flowing(Protocol):
    """What a store may do besides, where a round trip costs more than its bytes."""

    def flow(self, wants: Iterator[Want], ahead: int = 0) -> Iterator[Piece]:
        """All bytes of each want, in the order of the wants; an empty one gives one empty piece. `wants` is asked ahead,
        for `ahead` bytes or, without it, for as many as the line may hold.

        A file that is gone or ends too early gives a piece with that trouble, and the stream goes on with the next one.
        """
        ...


class Digesting(Protocol):
    """A digest that is being made at a far end."""

    def digest(self) -> str | None:
        """Waits for it; None where the file is gone or cannot be read."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class DigestingBeside(Protocol):
    """What a store may do besides, whose far end has a tool for it."""

    def digest_beside(self, path: str, length: int) -> Digesting | None:
        """Begin to digest the first `length` bytes of a file; None where that is not worth it."""
        ...


def flow(store: Store, wants: Iterator[Want], ahead: int = 0) -> Iterator[Piece]:
    """`store.flow` where the store can, else the same from its calls: small files by bundles, others by themselves."""
    return store.flow(wants, ahead) if isinstance(store, Flowing) else _by_calls(store, wants, ahead or BUNDLE_BYTES)


def gone(path: str, why: str) -> SourceVanishedError:
    return SourceVanishedError(f"{path} {why}", hint="the next run lists again", subject=path)


def _by_calls(store: Store, wants: Iterator[Want], ahead: int) -> Iterator[Piece]:
    bundle: list[Want] = []
    for want in wants:
        if bundle and not (
            want.small and len(bundle) < BUNDLE_FILES and sum(w.length for w in bundle) < min(ahead, BUNDLE_BYTES)
        ):
            yield from _many(store, bundle)
            bundle = []
        if want.small:
            bundle.append(want)
        else:
            yield from _one(store, want)
    yield from _many(store, bundle)


def _many(store: Store, wants: list[Want]) -> Iterator[Piece]:
    found = store.read_many([want.path for want in wants], [want.length for want in wants]) if wants else ()
    for want, (_, data) in zip(wants, found, strict=True):
        if data is None or len(data) < want.length:
            yield Piece(want.number, b"", gone(want.path, "is gone" if data is None else "is shorter than it was"))
        else:
            yield Piece(want.number, data)


def _one(store: Store, want: Want) -> Iterator[Piece]:
    try:
        for data in store.chunks(want.path, want.offset, want.length, PIECE):
            yield Piece(want.number, data)
    except SourceVanishedError as trouble:
        yield Piece(want.number, b"", trouble)
