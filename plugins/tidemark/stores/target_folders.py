"""The folders of a local target that files of a transfer go to, made when the first file comes."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from tidemark.stores.agent.disk import Disk
from tidemark.stores.agent.durable import Disks, make_folder, make_folders
from tidemark.stores.transfer_items import SendItem


class TargetFolders:
    """`disks` watches each one that is made. For one thread."""

    def __init__(self, disk: Disk, items: Iterable[SendItem], disks: Disks) -> None:
        self._disk = disk
        self._disks = disks
        self._made: dict[str, bytes] = {}  # their places, with a slash
        self._beside: dict[str, dict[str, None]] = {}  # folder → those in it that files go to; until one of them is made
        for item in items:
            folder = item.target_path.rpartition("/")[0]
            self._beside.setdefault(folder.rpartition("/")[0], {})[folder] = None

    def place(self, path: str) -> bytes:
        """Where a file goes; its folder is there, and no symlink. Raises OSError."""
        folder, _, name = path.rpartition("/")
        above = self._made.get(folder)
        if above is None:
            self._make_beside(folder)
            place = self._disk.locate(path)
            above = place[: len(place) - len(name.encode())]
            make_folder(above.rstrip(b"/") or b"/")
            self._disks.watch(above)
            self._made[folder] = above
        return above + name.encode()

    def _make_beside(self, folder: str) -> None:
        """Make it together with those beside it that files go to, so that what lies above is synced once for all of them.

        What is in the way of another one is the trouble of the files that go there.
        """
        places = []
        for other in self._beside.pop(folder.rpartition("/")[0], {}):
            with suppress(OSError):  # a symlink is on the way
                places.append(self._disk.locate(other))
        with suppress(FileExistsError, NotADirectoryError):
            make_folders(places)
