"""What a receiver answered, kept by itself: `answered/<site id>/<landing>.manifest.json` and `….receipt.json`.

A landing belongs to whoever may write below `landing/`: its manifest and its receipt can be changed there after they were
read. So the receiver keeps the manifest that it loaded and the receipt that it gave, byte for byte, where no edge can
write; what lies in the landing afterwards is a copy for the sender. `answered/format.json` says that this is so of every
landing here: from then on a receipt that lies in a landing alone is nobody's answer. Fields: docs/formats/answered.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from dataclasses import replace
from pathlib import Path

from tidemark.errors import CorruptionError, PermissionDeniedError
from tidemark.stores.landing import MANIFEST, RECEIPT, Receipt, landing_folder
from tidemark.stores.landing_papers import decode_receipt
from tidemark.untrusted_files import MOST_PAPER, MOST_SMALL, UntrustedFile

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
    return _untold(first) == _untold(second)


def _untold(receipt: Receipt) -> Receipt:
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


def altered(root: Path, site_id: str, landing: str, manifest_sha256: str) -> list[str]:
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
