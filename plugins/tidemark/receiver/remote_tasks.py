"""Run a task on an executor that does not see the receiver's folder: fetch its files over SFTP, send the outputs back.

The task itself is the same as everywhere and works on copies in a temporary folder. Outputs are staged at the receiver under
their usual names, complete and checked by digest. The caller publishes them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tidemark.cluster.migration.send_task import End, MoveTask
from tidemark.errors import RetryableError
from tidemark.formats.layout import landed_path
from tidemark.receiver.load.check import Examined, ExamineTask, examine_file, parts_of_file
from tidemark.receiver.merge.task import MergeOutcome, MergeTask, run_merge_task
from tidemark.stores.open import open_store
from tidemark.stores.protocol import Store, StoreAddress

_PIECE = 1 << 20


@dataclass(frozen=True)
class RemoteTask:
    """`files`: address at which the executor finds the root of the file system that holds the task's paths."""

    files: StoreAddress
    task: ExamineTask | MergeTask

    @property
    def subject(self) -> str:
        return self.task.subject


def run_remote_task(far: RemoteTask) -> Examined | MergeOutcome:
    """Fetch the files, run the task, send the outputs back. Raises as the task does, and as the store does."""
    task = far.task
    root = task.root if isinstance(task, MergeTask) else f"{task.folder}/{task.below}".rstrip("/")
    address = replace(far.files, url=far.files.url.removesuffix("/") + root)
    with tempfile.TemporaryDirectory(prefix="tidemark-far-") as folder, closing(open_store(address)) as store:
        if isinstance(task, ExamineTask):
            _fetch_files(store, [landed_path(part.path) for part in parts_of_file(task.file)], Path(folder))
            return examine_file(replace(task, folder=folder, below=""))
        _fetch_files(store, _needed_paths(task), Path(folder))
        outcome = run_merge_task(replace(task, root=folder))
        _stage_at_receiver(store, [(one.location, one.sha256) for one in outcome.staged], Path(folder))
        return outcome


def place_remote_tasks(files: StoreAddress, kind: str, tasks: Sequence[Any]) -> tuple[str, list[Any]]:
    """Return the kind and the tasks for executors that find this machine's files at `files`."""
    if kind == "slot_migrate":
        return kind, [reached_by(files, task) for task in tasks]
    return "far", [RemoteTask(files, task) for task in tasks]


def reached_by(files: StoreAddress, task: MoveTask) -> MoveTask:
    """Return the move for an executor that finds this machine's folders at `files`."""

    def end(one: End) -> End:
        if not one.address.url.startswith("file://"):
            return one
        return replace(
            one, address=replace(files, url=files.url.removesuffix("/") + one.address.url.removeprefix("file://"))
        )

    return replace(task, source=end(task.source), target=end(task.target))


def _needed_paths(task: MergeTask) -> list[str]:
    """List its sources, and the files that it must prove, which may hold none of its devices."""
    sources = [place for one in task.sources for place in (one.location, one.mods_location) if place]
    return list(dict.fromkeys([*sources, *(place for place, *_ in task.prove)]))


def _fetch_files(store: Store, paths: Sequence[str], folder: Path) -> None:
    """Copy the files that exist. The task itself reports missing ones."""
    for path, entry in zip(paths, store.stat_many(paths), strict=True):
        if entry is None:
            continue
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("wb") as file:
            for piece in store.read_chunks(path, 0, entry.size, _PIECE):
                file.write(piece)


def _stage_at_receiver(store: Store, made: Sequence[tuple[str, str]], folder: Path) -> None:
    """Stage (path, digest) at the receiver: durable, under its name, with the bytes written here."""
    for path, _ in made:
        with (folder / path).open("rb") as file:
            store.write_part(path + ".part", 0, iter(lambda file=file: file.read(_PIECE), b""))  # type: ignore[misc]
    store.seal_parts([(path + ".part", path) for path, _ in made])
    for path, digest in made:
        if store.sha256(path) != digest:
            raise RetryableError(
                f"{path} arrived at the receiver with another digest", hint="run the merge again", subject=path
            )
