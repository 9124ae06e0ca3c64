"""The landings at a receiver, their manifests, and the receiver's own copies of what it loaded and answered.

An edge may put any file with any name into a landing. So landings are found by folders with readable names, and a manifest
is read through `untrusted_files`.

All with write access below `landing/` can change a manifest and a receipt after they were read. So the receiver keeps the
manifest that it loaded and the receipt that it gave, byte for byte, where no edge can write: `answered/<site
id>/<landing>.manifest.json` and `….receipt.json`. The files in the landing are then copies for the sender. `list_altered`
lists which of the two differ there. With `answered/format.json` this holds for every landing here: a receipt that is only in
a landing is no answer. Fields: docs/formats/answered.md.
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
from tidemark.untrusted_files import MOST_DOCUMENT, MOST_SMALL, UntrustedFile

_LOOK = "ls -ld shows its rights: give the user that Tidemark runs as access, or move it away; then run again"


def read_manifest(root: Path, path: str) -> Manifest:
    """Read the manifest at `path` below `root`. Raises CorruptionError, FileNotFoundError, PermissionDeniedError."""
    return decode_manifest(UntrustedFile(str(root), path).read(MOST_DOCUMENT))


def landings_of(root: Path, site_id: str) -> list[tuple[str, str]]:
    """Return (landing, path of its manifest below `root`) of a site's whole landings, by name, and of unreadable ones.
    PermanentError if they cannot be listed."""
    site = root / "landing" / site_id
    if site.is_symlink():
        return []
    names = folder_names(site)[0]
    paths = [(name, f"{landing_folder(site_id, name)}/{MANIFEST}") for name in names]
    return [(name, path) for name, path in paths if _is_there(root / path)]


def _is_there(record: Path) -> bool:
    try:
        record.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # reading it reports the error
        return True
    return True


def folder_names(place: Path) -> tuple[list[str], list[str]]:
    """Return the folders in `place` by name, without symlinks, and readable forms of names that are not UTF-8.

    PermanentError if it cannot be listed: a sender may close its own folder, which fails only that sender.
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
    r"""Return a name of the file system with `\x..` for each byte that is not UTF-8."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


FOLDER = "answered"
BEGUN = f"{FOLDER}/format.json"
ANSWERED_FORMAT = 1
_MANIFEST, _RECEIPT = ".manifest.json", ".receipt.json"


def kept_manifest(site_id: str, landing: str) -> str:
    """Return the path of a landing's kept manifest, relative to the receiver's root."""
    return f"{FOLDER}/{site_id}/{landing}{_MANIFEST}"


def kept_receipt(site_id: str, landing: str) -> str:
    """Return the path of a landing's kept receipt, relative to the receiver's root."""
    return f"{FOLDER}/{site_id}/{landing}{_RECEIPT}"


def landing_of_receipt(name: str) -> str:
    """Return the landing of a kept receipt, by the receipt's file name; "" for another file."""
    return name.removesuffix(_RECEIPT) if name.endswith(_RECEIPT) else ""


def encode_begun() -> bytes:
    return json.dumps({"format": ANSWERED_FORMAT}).encode()


def has_begun(root: Path) -> bool:
    """Return whether all answers of this receiver are kept. CorruptionError for those of a newer Tidemark."""
    try:
        raw = json.loads(UntrustedFile(str(root), BEGUN).read(MOST_SMALL))
        newest = int(raw["format"])
    except FileNotFoundError:
        return False
    except (ValueError, KeyError, TypeError):
        return True  # it was written; only its content is lost
    if newest > ANSWERED_FORMAT:
        raise CorruptionError(
            f"{BEGUN} has format {newest}, this Tidemark knows {ANSWERED_FORMAT}", hint="upgrade Tidemark here"
        )
    return True


def answered_landings(root: Path) -> set[tuple[str, str]]:
    """Return (site id, landing) of every kept receipt."""
    found: set[tuple[str, str]] = set()
    for site in (root / FOLDER).glob("*/"):
        with os.scandir(site) as entries:
            names = [entry.name for entry in entries]
        found |= {(site.name, landing) for landing in map(landing_of_receipt, names) if landing}
    return found


def same_answer(one: bytes, other: bytes) -> bool:
    """Return whether two receipts say the same. Older ones have no list of claimed devices."""
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
    """Return a number that stays the same while a landing is untouched: no file added to or removed from its folder, no
    write to its manifest or receipt. 0 if there is no landing.

    It uses times of change and inodes, which nobody can set; a sender can set times of modification.
    """
    place = root / landing_folder(site_id, landing)
    signs: list[int] = []
    for path in (place, place / MANIFEST, place / RECEIPT):
        try:
            info = os.lstat(path)
        except OSError:  # missing, or not accessible
            signs += (0, 0, 0)
        else:
            signs += (info.st_ino, info.st_ctime_ns, 0 if stat.S_ISDIR(info.st_mode) else info.st_size)
    return (hash(tuple(signs)) & ((1 << 63) - 1)) or 1 if signs[0] else 0


def list_altered(root: Path, site_id: str, landing: str, manifest_sha256: str) -> list[str]:
    """List which of a loaded landing's documents differ from those loaded and answered, a sentence each. Missing ones are
    skipped."""
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
    """Read a document; None if there is no regular file, or it is too large. No symlink is followed."""
    try:
        return UntrustedFile(str(root), path).read(MOST_DOCUMENT)
    except (OSError, CorruptionError, PermissionDeniedError):
        return None
