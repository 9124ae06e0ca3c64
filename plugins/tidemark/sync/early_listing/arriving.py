"""A partial listing that is read while it still arrives, from a far end or from a child process.

At a local site a child process makes it, like the far end of an SSH connection (`stores.agent.server`). Meanwhile this
process loads its modules and compares what has come with the ledger.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Any, overload

from tidemark.stores.listing import Frame, PackedEntries
from tidemark.stores.os_errors import Where, translate_os_errors
from tidemark.stores.protocol import Listing, check_folder
from tidemark.stores.python.child_pipe import ChildPipe
from tidemark.stores.python.session import FarSession


def list_in_child(root: str, folders: Sequence[str], by_name: str) -> Listing:
    """Start `LocalStore(root).list_names` in a child process. Iterating the entries waits for them; `missing` and `odd` wait
    for the end. Raises OSError if no process can be started."""
    frames = ArrivingFrames()
    coming = _from_child(ChildPipe(root), root, [check_folder(folder) for folder in folders], by_name)
    threading.Thread(target=frames.receive_frames, args=(coming,), name="early look", daemon=True).start()
    return frames.make_listing()


def _from_child(pipe: ChildPipe, root: str, folders: Sequence[str], by_name: str) -> Iterator[tuple[Any, bytes]]:
    try:
        pipe.read_line()  # its greeting; if it could not start, the session below meets the end of the pipe
        with translate_os_errors(Where("", root), ""):
            yield from FarSession(pipe).stream_frames("list", folders, by_name, 0)
    finally:
        pipe.close()


class ArrivingFrames(Sequence[Frame]):
    """Frames that one thread receives and others iterate. A waiting thread raises the error that ended the listing."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._frames: list[Frame] = []
        self._rest: tuple[list[Any], list[Any]] | None = None
        self._error: Exception | None = None

    def make_listing(self) -> Listing:
        return Listing(PackedEntries(self), _AfterFrames(self, 0), _AfterFrames(self, 1), partial=True)

    def receive_frames(self, coming: Iterable[tuple[Any, bytes]]) -> None:
        """Receive the compressed frames of a listing, and the missing folders and odd paths at its end."""
        try:
            for words, data in coming:
                with self._news:
                    if data:
                        self._frames.append(Frame(words, data, compressed=True))
                    else:
                        missing, odd = words
                        self._rest = sorted(missing), sorted((path, why) for path, why in odd)
                    self._news.notify_all()
        except Exception as error:  # raised in the threads that wait for frames
            with self._news:
                self._error = error
                self._news.notify_all()

    @property
    def has_ended(self) -> bool:
        return bool(self._rest or self._error)

    def wait_for_rest(self) -> tuple[list[Any], list[Any]]:
        """Wait for the end. Returns (missing folders, odd paths)."""
        with self._news:
            self._news.wait_for(lambda: self._rest or self._error)
            if self._rest is None:
                assert self._error is not None
                raise self._error
            return self._rest

    def __iter__(self) -> Iterator[Frame]:
        for at in count():
            frame = self._wait_for(at)
            if frame is None:
                return
            yield frame

    def __len__(self) -> int:
        self.wait_for_rest()
        return len(self._frames)

    @overload
    def __getitem__(self, at: int) -> Frame: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Frame]: ...
    def __getitem__(self, at: int | slice) -> Frame | Sequence[Frame]:
        self.wait_for_rest()
        return self._frames[at]

    def _wait_for(self, at: int) -> Frame | None:
        """Wait for the frame with that number; None after the last one."""
        with self._news:
            self._news.wait_for(lambda: at < len(self._frames) or self._rest or self._error)
            if at < len(self._frames):
                return self._frames[at]
        self.wait_for_rest()
        return None


def is_under_way(listing: Listing) -> bool:
    """Whether the listing is still arriving."""
    return isinstance(listing.missing, _AfterFrames) and not listing.missing.has_arrived


class _AfterFrames(Sequence[Any]):
    """A sequence from the end of a listing: missing folders or odd paths. Access waits for the end."""

    def __init__(self, frames: ArrivingFrames, which: int) -> None:
        self._frames = frames
        self._which = which

    @property
    def has_arrived(self) -> bool:
        return self._frames.has_ended

    def __len__(self) -> int:
        return len(self._frames.wait_for_rest()[self._which])

    def __getitem__(self, at: Any) -> Any:
        return self._frames.wait_for_rest()[self._which][at]
