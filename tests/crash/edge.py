"""A made-up edge site for tests of the sync: what IoTDB does to its data folders, as verbs, on any store.

Contents are not TsFiles (the sync looks at none), but `.resource` files are real ones, so that extents are.
"""

from __future__ import annotations

import os
import struct
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

DATA = ("data/sequence", "data/unsequence")
Extent = Mapping[str, tuple[int, int]]


class Ground(Protocol):
    """Where a site's files are: put, remove, read. Time stands still unless it is given."""

    def put(self, path: str, data: bytes, mtime: int) -> None: ...

    def remove(self, path: str) -> None: ...

    def read(self, path: str) -> bytes: ...

    def exists(self, path: str) -> bool: ...


@dataclass(frozen=True)
class DiskGround:
    root: Path

    def put(self, path: str, data: bytes, mtime: int) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        fresh = place.with_name(place.name + ".new")  # as IoTDB does: a new file under the name, never written in place
        fresh.write_bytes(data)
        os.utime(fresh, (mtime, mtime))
        fresh.replace(place)

    def append(self, path: str, data: bytes) -> None:
        with (self.root / path).open("ab") as file:
            file.write(data)

    def remove(self, path: str) -> None:
        (self.root / path).unlink()

    def read(self, path: str) -> bytes:
        return (self.root / path).read_bytes()

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()


def resource_bytes(extent: Extent) -> bytes:
    """A `.resource` as IoTDB 1.x writes it (research/iotdb.md §5; read by tsfiles.companions.resource)."""
    out = [struct.pack(">BBi", 1, 1, len(extent))]
    out += [struct.pack(">qq", *span) for span in extent.values()]
    for number, device in enumerate(extent):
        out.append(struct.pack(">i", len(device.encode())) + device.encode() + struct.pack(">i", number))
    return b"".join([*out, struct.pack(">qq", 1, 1)])


def path_of(version: int, *, inner: int = 0, cross: int = 0, unsequence: bool = False, partition: int = 0) -> str:
    folder = "unsequence" if unsequence else "sequence"
    return f"data/{folder}/root.sg/0/{partition}/{1_600_000_000_000 + version}-{version}-{inner}-{cross}.tsfile"


@dataclass
class Edge:
    """A site. `contents`: path → bytes of the TsFile; `mods`: path → bytes of its deletions; `extents` likewise.
    `history`: every content that a file ever had, companions too."""

    ground: Ground
    contents: dict[str, bytes] = field(default_factory=dict)
    mods: dict[str, bytes] = field(default_factory=dict)
    extents: dict[str, Extent] = field(default_factory=dict)
    history: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    clock: int = 1_700_000_000

    def seal(self, path: str, content: str = "", extent: Extent | None = None) -> str:
        """A TsFile closed for writing, its `.resource` beside it. The same path again is a changed file."""
        self.clock += 1
        data = b"TsFile" + (content or path).encode() + b"." * 20
        span = extent or {"root.sg.d1": (0, 10)}
        self.ground.put(path, data, self.clock)
        self.ground.put(path + ".resource", resource_bytes(span), self.clock)
        self.contents[path], self.extents[path] = data, span
        self.history[path].append(data)
        self.history[path + ".resource"].append(resource_bytes(span))
        return path

    def delete_points(self, path: str, entry: str = "x") -> None:
        """The file's mods grow by an entry."""
        self.clock += 1
        self.mods[path] = self.mods.get(path, b"") + f"{entry}-{self.clock};".encode()
        self.ground.put(path + ".mods", self.mods[path], self.clock)
        self.history[path + ".mods"].append(self.mods[path])

    def rewrite_deletions(self, path: str) -> None:
        """Other deletions of the same length."""
        self.clock += 1
        self.mods[path] = bytes(reversed(self.mods[path]))
        self.ground.put(path + ".mods", self.mods[path], self.clock)
        self.history[path + ".mods"].append(self.mods[path])

    def drop(self, path: str) -> None:
        """The file goes with all that belongs to it: TTL, a user, a lost disk."""
        for end in ("", ".resource", ".mods"):
            if self.ground.exists(path + end):
                self.ground.remove(path + end)
        for known in (self.contents, self.mods, self.extents):
            known.pop(path, None)

    def compact(self, sources: list[str], target: str) -> str:
        """One file made of several; the sources go once it is there."""
        extent: dict[str, tuple[int, int]] = {}
        for source in sources:
            for device, (start, end) in self.extents[source].items():
                low, high = extent.get(device, (start, end))
                extent[device] = (min(low, start), max(high, end))
        self.seal(target, "+".join(sorted(sources)), extent)
        for source in sources:
            self.drop(source)
        return target

    def append_schema(self, path: str, data: bytes) -> None:
        self.clock += 1
        before = self.ground.read(path) if self.ground.exists(path) else b""
        self.ground.put(path, before + data, self.clock)
