"""The data folder of a real server, revealed portion by portion, as it would have looked while the server filled it."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from tests.expected import RealSite
from tests.landing_maker import tsfiles_below

LATE_RESOURCE, LATE_MODS, GROWING_MODS, COMPACTED = 0.15, 0.3, 0.3, 0.25  # shares of the files to which that happens


@dataclass(frozen=True)
class Piece:
    """The first `size` bytes of a file (None: all of it)."""

    path: str
    size: int | None = None


@dataclass(frozen=True)
class Compaction:
    """A TsFile gives way to one with the same content and a higher inner compaction count, its deletions with it."""

    path: str


@dataclass
class FillingSite:
    """`portions` of what happens, each revealed by one call; which file comes first is random.

    `late`: TsFiles may come before their `.resource`, deletions may come or grow later, files may be compacted.
    """

    site: RealSite
    root: Path  # where it is revealed
    chance: random.Random
    count: int = 8
    late: bool = True
    portions: list[list[Piece | Compaction]] = field(init=False)

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
            if isinstance(piece, Piece):
                self._put(piece)
            else:
                self._compact(piece.path)
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
        if self.late and later > first and self.chance.random() < COMPACTED:
            self.portions[later].append(Compaction(path))

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

    def _compact(self, path: str) -> None:
        """The new file is whole before the old one goes, as on the server."""
        old = self.root / path
        created, version, inner, cross = old.name.removesuffix(".tsfile").split("-")
        new = old.with_name(f"{created}-{version}-{int(inner) + 1}-{cross}.tsfile")
        companions = sorted(old.parent.glob(old.name + "*"), reverse=True)  # the TsFile itself comes last
        for companion in companions:
            fresh = new.with_name(new.name + companion.name.removeprefix(old.name))
            temporary = fresh.with_name(fresh.name + ".temp")
            shutil.copyfile(companion, temporary)
            temporary.replace(fresh)
        for companion in reversed(companions):
            companion.unlink()

    @staticmethod
    def whole(site: RealSite, root: Path) -> None:
        """All of a server's folder at once."""
        shutil.copytree(site.root / "data", root / "data", dirs_exist_ok=True)
