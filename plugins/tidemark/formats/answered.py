"""Which landings lie at a receiver, their manifests, and what the receiver answered, kept by itself.

Whoever fills a landing may put anything there under any name. So landings are found by folders of readable names,
and a manifest is read through `untrusted_files`.

A landing belongs to whoever may write below `landing/`: its manifest and its receipt can be changed there after they
were read. So the receiver keeps the manifest that it loaded and the receipt that it gave, byte for byte, where no
edge can write: `answered/<site id>/<landing>.manifest.json` and `….receipt.json`. What lies in the landing
afterwards is a copy for the sender. `list_altered` says which of the two differ there. `answered/format.json` says that
this is so of every landing here: from then on a receipt that lies in a landing alone is nobody's answer. Fields:
docs/formats/answered.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from dataclasses import replace
from pathlib import Path

from tidemark.errors import CorruptionError, PermanentError, PermissionDeniedError
from tidemark.formats.landing import Manifest, Receipt, decode_manifest, decode_receipt
from tidemark.formats.layout import MANIFEST, RECEIPT, landing_folder
from tidemark.untrusted_files import MOST_PAPER, MOST_SMALL, UntrustedFile

_LOOK = "ls -ld shows its rights: give the user that Tidemark runs as access, or move it away; then run again"


def read_manifest(root: Path, path: str) -> Manifest:
    """The manifest at `path` below `root`. Raises CorruptionError, FileNotFoundError, PermissionDeniedError."""
    return decode_manifest(UntrustedFile(str(root), path).read(MOST_PAPER))


def landings_of(root: Path, site_id: str) -> list[tuple[str, str]]:
    """(landing, path of its manifest below `root`) of a site's whole landings, by name, and of those that nobody may look
    into. PermanentError where they cannot be listed."""
    site = root / "landing" / site_id
    if site.is_symlink():
        return []
    names = folder_names(site)[0]
    paths = [(name, f"{landing_folder(site_id, name)}/{MANIFEST}") for name in names]
    return [(name, path) for name, path in paths if _is_there(root / path)]


def _is_there(paper: Path) -> bool:
    try:
        paper.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # whoever reads it says why it cannot be
        return True
    return True


def folder_names(place: Path) -> tuple[list[str], list[str]]:
    """The folders in `place` by name, symlinks passed over, and those whose name is not UTF-8, readably.

    PermanentError where it cannot be listed: whoever sends may close a folder of its own, which costs that alone.
    """
    try:
        with os.scandir(place) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return [], []
    except OSError as refused:
        kind = PermissionDeniedError if isinstance(refused, PermissionError) else PermanentError
        raise kind(f"cannot list {place}: {refused.strerror}", hint=_LOOK, subject=str(place)) from refused
    odd = [name for name in names if readable_name(name) != name]
    return sorted(set(names) - set(odd)), sorted(map(readable_name, odd))


def readable_name(name: str) -> str:
    r"""A name as the file system gives it, with `\x..` for each byte that is not UTF-8."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


FOLDER = "answered"
BEGUN = f"{FOLDER}/format.json"
ANSWERED_FORMAT = 1
_MANIFEST, _RECEIPT = ".manifest.json", ".receipt.json"


def kept_manifest(site_id: str, landing: str) -> str:
    """Where the manifest of a landing is kept, relative to the receiver's root."""
    return f"{FOLDER}/{site_id}/{landing}{_MANIFEST}"


def kept_receipt(site_id: str, landing: str) -> str:
    """Where the receipt of a landing is kept, relative to the receiver's root."""
    return f"{FOLDER}/{site_id}/{landing}{_RECEIPT}"


def encode_begun() -> bytes:
    return json.dumps({"format": ANSWERED_FORMAT}).encode()


def has_begun(root: Path) -> bool:
    """Whether all answers of this receiver are kept. CorruptionError for those of a newer Tidemark."""
    try:
        raw = json.loads(UntrustedFile(str(root), BEGUN).read(MOST_SMALL))
        newest = int(raw["format"])
    except FileNotFoundError:
        return False
    except (ValueError, KeyError, TypeError):
        return True  # it was written: what it says is all that is lost
    if newest > ANSWERED_FORMAT:
        raise CorruptionError(
            f"{BEGUN} has format {newest}, this Tidemark knows {ANSWERED_FORMAT}", hint="upgrade Tidemark here"
        )
    return True


def answered_landings(root: Path) -> set[tuple[str, str]]:
    """(site id, landing) of every receipt that is kept."""
    found: set[tuple[str, str]] = set()
    for site in (root / FOLDER).glob("*/"):
        with os.scandir(site) as entries:
            names = [entry.name for entry in entries]
        found |= {(site.name, name.removesuffix(_RECEIPT)) for name in names if name.endswith(_RECEIPT)}
    return found


def same_answer(one: bytes, other: bytes) -> bool:
    """Whether two receipts say the same. Older ones do not tell which devices were claimed."""
    if one == other:
        return True
    try:
        first, second = decode_receipt(one), decode_receipt(other)
    except CorruptionError:
        return False
    return _without_claimed(first) == _without_claimed(second)


def _without_claimed(receipt: Receipt) -> Receipt:
    return replace(receipt, claimed=None)


def landing_sign(root: Path, site_id: str, landing: str) -> int:
    """A number that stays while nobody touched a landing: put a file into its folder or took one out, or wrote to its
    manifest or receipt. 0 where there is no landing.

    By times of change and inodes, which nobody can set: times of modification are whatever a sender says.
    """
    place = root / landing_folder(site_id, landing)
    signs: list[int] = []
    for path in (place, place / MANIFEST, place / RECEIPT):
        try:
            info = os.lstat(path)
        except OSError:  # not there, or nobody may look
            signs += (0, 0, 0)
        else:
            signs += (info.st_ino, info.st_ctime_ns, 0 if stat.S_ISDIR(info.st_mode) else info.st_size)
    return (hash(tuple(signs)) & ((1 << 63) - 1)) or 1 if signs[0] else 0


def list_altered(root: Path, site_id: str, landing: str, manifest_sha256: str) -> list[str]:
    """Which of a loaded landing's papers are not what was loaded and answered, a sentence each; those that are not there
    are passed over."""
    folder = landing_folder(site_id, landing)
    found = []
    manifest = read_landed(root, f"{folder}/{MANIFEST}")
    if manifest is not None and hashlib.sha256(manifest).hexdigest() != manifest_sha256:
        found.append(f"{folder}/{MANIFEST} is not the manifest that was loaded (SHA-256 {manifest_sha256[:16]}…)")
    receipt, kept = read_landed(root, f"{folder}/{RECEIPT}"), read_landed(root, kept_receipt(site_id, landing))
    if receipt is not None and kept is not None and not same_answer(receipt, kept):
        found.append(f"{folder}/{RECEIPT} is not the answer that was given")
    return found


def read_landed(root: Path, path: str) -> bytes | None:
    """A paper; None where there is no regular file, or one that is too large for a paper. No symlink is followed."""
    try:
        return UntrustedFile(str(root), path).read(MOST_PAPER)
    except (OSError, CorruptionError, PermissionDeniedError):
        return None
