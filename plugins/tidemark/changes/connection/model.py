"""What a connection is made from, where a dump begins, and what it gives. Frozen values, pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from tidemark.changes.binlog.gtid_sets import MariaGtidPosition, MysqlGtidSet
from tidemark.changes.binlog.layout import MAGIC, Header, read_header

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Identity(NamedTuple):
    """What tells the servers of a cluster apart. A place in the logs of one means nothing at another."""

    server_id: str
    uuid: str
    host: str
    port: str


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """The servers of one cluster, and the login there. `server_id` 0 takes one that nobody there uses."""

    addresses: tuple[tuple[str, int], ...]
    user: str
    password_file: str = ""
    password: str = field(default="", repr=False)
    """For a caller that has it from elsewhere than a file."""
    tls: str = "required"
    """"required", "verify" (the certificate, by `ca` or the system's), or "off"."""
    ca: str = ""
    server_id: int = 0
    heartbeat_seconds: float = 10.0
    name: str = ""
    """The source's name: what the server shows as this replica's host."""
    only: Identity | None = None
    """The server that is meant, whichever answers at the address; None: any."""


@dataclass(frozen=True, slots=True)
class FilePosition:
    """Byte `position` of a binary log. An event that stands outside of a transaction begins there."""

    file: str
    position: int = len(MAGIC)


Start: TypeAlias = FilePosition | MysqlGtidSet | MariaGtidPosition
"""A GTID set or position stands for what the caller has: the rest is sent."""


class RawEvent(NamedTuple):
    """An event as it stands in the binary log `file` from byte `position`, with its checksum if the log has checksums.

    Without `data` it is a heartbeat, which comes to those who follow: the server lives, and has nothing new for them.
    """

    file: str
    position: int
    header: Header
    data: bytes

    @property
    def end(self) -> int:
        return self.position + len(self.data)


class Block(NamedTuple):
    """Events of the binary log `file`, one behind the other from byte `position`. Event e is data[begins[e]:ends[e]]."""

    file: str
    position: int
    data: bytes
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]

    def events(self, first: int = 0) -> Iterator[RawEvent]:
        """They, one by one, without the first ones."""
        begins, ends = self.begins[first:].tolist(), self.ends[first:].tolist()
        position = self.position + int((self.ends[:first] - self.begins[:first]).sum())
        for begin, end in zip(begins, ends, strict=True):
            yield RawEvent(self.file, position, read_header(self.data, begin), self.data[begin:end])
            position += end - begin

    @property
    def end(self) -> int:
        """Where the next event is."""
        return self.position + int((self.ends - self.begins).sum())


class Dump(Protocol):
    """Events in their order. Of each log the format description comes first, wherever the dump begins."""

    @property
    def file(self) -> str:
        """The log that is read now, by its bare name. Empty before the first event."""

    def events(self) -> Iterator[RawEvent]:
        """To be called once, or `blocks` once."""

    def blocks(self) -> Iterator[RawEvent | Block]:
        """The same events, of which those that stand together may come together: that is faster."""

    def close(self) -> None: ...
