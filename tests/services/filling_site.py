"""The data folder of a real server, revealed portion by portion, as it would have looked while the server filled it."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from tests.expected import RealSite
from tests.landing_maker import tsfiles_below

LATE_RESOURCE, LATE_MODS, GROWING_MODS = 0.15, 0.3, 0.3  # shares of the files to which that happens


@dataclass(frozen=True)
class Piece:
    """The first `size` bytes of a file (None: all of it)."""

    path: str
    size: int | None = None


@dataclass
class FillingSite:
    """`portions` of pieces, each revealed by one call. `late`: TsFiles may come before their companions; a schema log
    grows by whole pieces; unsequence files may come first: the order is random."""

    site: RealSite
    root: Path  # where it is revealed
    chance: random.Random
    count: int = 8
    late: bool = True
    portions: list[list[Piece]] = field(init=False)

    def __post_init__(self) -> None:
        self.portions = [[] for _ in range(self.count)]
        for path in tsfiles_below(self.site.root, self.site.data):
            self._plan_tsfile(path)
        for log in sorted(p for p in (self.site.root / self.site.schema).rglob("*") if p.is_file()):
            self._plan_log(log.relative_to(self.site.root).as_posix(), log.stat().st_size)
        for folder in (*self.site.data, self.site.schema):
            (self.root / folder).mkdir(parents=True, exist_ok=True)

    def reveal(self) -> bool:
        """Bring the next portion to light; False where nothing was hidden any more."""
        if not self.portions:
            return False
        for piece in self.portions.pop(0):
            self._put(piece)
        return True

    def _plan_tsfile(self, path: str) -> None:
        first = self.chance.randrange(self.count)
        later = self.chance.randint(first, self.count - 1)
        name = self.site.root / path
        self.portions[first].append(Piece(path))
        resource = self.late and self.chance.random() < LATE_RESOURCE
        self.portions[later if resource else first].append(Piece(f"{path}.resource"))
        for mods in sorted(name.parent.glob(name.name + ".mods*")):
            whole, size = mods.relative_to(self.site.root).as_posix(), mods.stat().st_size
            roll = self.chance.random() if self.late else 1.0
            if roll < GROWING_MODS:
                self.portions[first].append(Piece(whole, self.chance.randint(1, size)))  # torn in an entry, too
            self.portions[later if roll < GROWING_MODS + LATE_MODS else first].append(Piece(whole))

    def _plan_log(self, path: str, size: int) -> None:
        cuts = sorted(self.chance.sample(range(self.count), min(3, self.count)))
        for at, portion in enumerate(cuts, 1):
            self.portions[portion].append(Piece(path, size * at // len(cuts)))

    def _put(self, piece: Piece) -> None:
        """Append what is new; a file never shrinks and is never written anew, as on the server."""
        target = self.root / piece.path
        data = (self.site.root / piece.path).read_bytes()[: piece.size]
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() and not piece.path.endswith(".mods"):
            fresh = target.with_name(target.name + ".temp")
            fresh.write_bytes(data)
            fresh.replace(target)
        else:
            with target.open("ab") as file:
                file.write(data[file.tell() :])

    @staticmethod
    def whole(site: RealSite, root: Path) -> None:
        """All of a server's folder at once."""
        shutil.copytree(site.root / "data", root / "data", dirs_exist_ok=True)
