"""Blocks of a reader's store, fetched ahead of who reads them. They must follow each other: nothing may be left out."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from math import inf

from tidemark.changes.delivery.blocks import Key
from tidemark.changes.delivery.http.client.readers import POLL_MILLISECONDS
from tidemark.changes.delivery.http.client.session import ReaderBehindError, ReaderClient, SessionEndedError
from tidemark.changes.delivery.http.requests import MOST_BYTES
from tidemark.changes.store.layout import State
from tidemark.changes.store.read import Stretch
from tidemark.errors import CorruptionError

MOST_AHEAD = 8 << 20
"""Bytes of blocks, decompressed, that a walk has ahead; one block more where they are fewer. Of a reply the rest waits as it
was sent."""
SPAN_BYTES = 1 << 20
"""Asked for at once where there is an end: what is fetched behind that is thrown away."""
IDLE_SECONDS = 60.0
"""A walk that waits so long for its consumer lets its session go."""


class FetchedStretches:
    """Blocks of a reader's store from a transaction on; a thread fetches them ahead of who reads them.

    `until`: none are fetched behind the one that has the transaction before that, and a store that ends earlier is a
    ReaderBehindError; 0: it goes on with what comes.
    """

    def __init__(
        self,
        connect: Callable[[int], ReaderClient],
        seq: int,
        note: Callable[[int], None],
        fail: Callable[[FetchedStretches, Exception], None],
        *,
        until: int = 0,
    ) -> None:
        self._connect = connect
        self._until = until
        self._note = note
        self._fail = fail
        self._changed = threading.Condition()
        self._queue: deque[Stretch] = deque()
        self._size = 0
        self._closed = False
        self._seq = seq
        self._parts = 0  # read of transaction `seq`, where that is in several blocks
        self._repeated = 0  # of these, how many come once more
        self._after: State | None = None
        threading.Thread(target=self._fetch_on, name=f"blocks from seq:{seq}", daemon=True).start()

    def read_next(self, ahead: Key) -> Stretch | None:
        del ahead  # they are fetched in order
        with self._changed:
            if not self._queue:
                return None
            found = self._queue.popleft()
            self._size -= found.size
            self._changed.notify_all()
            return found

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _fetch_on(self) -> None:
        client: ReaderClient | None = None
        try:
            is_new = True
            while not self._closed:
                if client is None:
                    client, is_new = self._begin_session(), True
                try:
                    found = client.fetch_stretches(POLL_MILLISECONDS, SPAN_BYTES if self._until else MOST_BYTES)
                except SessionEndedError:
                    client.close()
                    client = None
                    if is_new:
                        raise
                    continue
                is_new, is_empty = False, True
                for stretch in found:
                    is_empty = False
                    self._add(stretch)
                    if self._until and self._seq >= self._until:
                        self._closed = True
                        break
                    if not self._wait_for_room():
                        if client is not None:
                            client.close()
                            client = None
                        self._wait_for_room(inf)
                if self._until and is_empty:
                    raise ReaderBehindError(f"a reader's store ends before seq:{self._seq}")
            if self._until and client is not None:
                client.end()
        except Exception as wrong:
            if not self._closed:
                self._fail(self, wrong)
        finally:
            if client is not None:
                client.close()

    def _begin_session(self) -> ReaderClient:
        client = self._connect(self._seq)
        try:
            told = client.ask_server()
            if told.get("serverStatus") != "AVAILABLE":
                raise client.make_refusal(told)
            client.subscribe()
        except BaseException:
            client.close()
            raise
        self._repeated = self._parts
        return client

    def _wait_for_room(self, seconds: float = IDLE_SECONDS) -> bool:
        with self._changed:
            return self._changed.wait_for(
                lambda: self._closed or self._size < MOST_AHEAD, None if seconds == inf else seconds
            )

    def _add(self, stretch: Stretch) -> None:
        if not self._follows(stretch):
            return
        with self._changed:
            self._queue.append(stretch)
            self._size += stretch.size
        self._note(stretch.header.after.seq)

    def _follows(self, stretch: Stretch) -> bool:
        """Whether a block is the next one; False: it is there already. CorruptionError: it is none that can come here."""
        header, after = stretch.header, self._after
        if self._parts and header.begins and header.before == after:
            self._repeated = self._parts  # the reader began this transaction anew
        if self._repeated:
            self._repeated -= 1
            return False
        last = header.before.seq + len(stretch.pieces)
        has_end = (
            len(stretch.pieces) > 0 and header.after.seq == last and header.after.info == stretch.pieces[-1].transaction.info
        )
        if not (has_end if header.ends else header.after == header.before):
            raise CorruptionError("a reader sent a block that does not end where it says")
        if after is None:
            if not header.before.seq < self._seq <= last:
                raise CorruptionError(f"a reader sent a block without seq:{self._seq}, which was asked for")
        elif header.ends and header.begins and last <= after.seq:
            return False
        elif header.before.seq > after.seq or (header.before.seq == after.seq and header.before != after):
            raise CorruptionError(f"a reader left something out behind seq:{after.seq}")
        elif header.before.seq < after.seq:
            same = next(piece.transaction.info for piece in stretch.pieces if piece.seq == after.seq)
            if same != after.info:
                raise CorruptionError(f"a reader sent another transaction as seq:{after.seq}")
        self._after = header.after
        self._parts = 0 if header.ends else self._parts + 1
        self._seq = header.after.seq + 1
        return True
