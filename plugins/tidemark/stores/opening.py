"""From a store's address in the settings to an open store."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from tidemark.errors import PermanentError, UsageError
from tidemark.settings.model import NodeSettings, ReceiverSettings, SiteSettings
from tidemark.stores.dialling import CONNECT_SECONDS, Dialled
from tidemark.stores.far_limits import MEMORY_BYTES
from tidemark.stores.protocol import Store, Tier
from tidemark.stores.translation import translated

TIERS = {"python": Tier.PYTHON, "posix": Tier.POSIX, "sftp": Tier.SFTP}
"""What the settings' `tier` may force; "auto" is what a probe finds."""


@dataclass(frozen=True)
class StoreAddress:
    """Where a store is and how to log in. `host_key`: the server's "SHA256:…" fingerprint; `key`: a private key file."""

    url: str  # file:///path or sftp://user@host:port/path
    host_key: str = ""
    key: str = ""
    connection: str = ""  # an Airflow connection id; orchestration puts its key file into `key`
    nice: int = 0  # of what we run at the far end, 0 … 19: its disk and CPU serve others first
    memory: int = MEMORY_BYTES  # that our program may take at the far end; 0: no limit
    tier: str = "auto"  # of an sftp store: a key of TIERS where the settings force one
    tries: int = 0  # how often it is tried to be opened, 0: as a store usually is; less for one that others stand in for

    @classmethod
    def of(cls, end: SiteSettings | ReceiverSettings | NodeSettings) -> StoreAddress:
        memory = getattr(end, "far_memory", MEMORY_BYTES)
        return cls(end.store, end.host_key, end.key, end.connection, getattr(end, "nice", 0), memory, end.tier)


def open_store(address: StoreAddress, tier: Tier | None = None) -> Store:
    """Open `address`; an sftp store is connected, its host key compared, its far end probed once.

    `tier`, or else the address's, is taken instead of what the probe finds best: PermanentError where it is not there.

    Opening it and its calls are tried again while the end is unreachable (`retrying`). Raises UsageError for an address
    that cannot be, PermanentError for one that is a file, HostKeyError, PermissionDeniedError (login), UnreachableError.
    """
    scheme = address.url.partition(":")[0].lower()
    if scheme == "file":
        return _local(address.url)
    if scheme == "sftp":
        return _remote(address, tier or TIERS.get(address.tier))
    shown = without_password(address.url)
    raise UsageError(
        f"store {shown!r} is neither file:///path nor sftp://user@host:port/path",
        hint="./tidemark doctor checks every store of the settings",
        subject=shown,
    )


def _remote(address: StoreAddress, tier: Tier | None) -> Store:
    """What speaks SSH is loaded while the server is dialled."""
    host, port = place_of(address.url)
    dialled = Dialled(host, port, CONNECT_SECONDS)
    try:
        from tidemark.stores.retrying import TRIES, RetryingStore, try_again
        from tidemark.stores.sftp import open_sftp

        return RetryingStore(try_again(lambda: open_sftp(address, tier, dialled=dialled), address.tries or TRIES))
    finally:
        dialled.drop()


def place_of(url: str) -> tuple[str, int]:
    """Host and port of an sftp address. UsageError where it is none."""
    shown = without_password(url)
    try:
        parts = urlsplit(url)
    except ValueError:  # a bracket without its other one
        raise UsageError(f"store {shown!r} is not sftp://user@host:port/path", subject=shown) from None
    if "#" in url or "?" in url:  # else a folder of that name would be taken for one of a shorter name
        raise UsageError(
            f"store {shown!r}: # and ? have a meaning in an address", hint="write %23 and %3F for them", subject=shown
        )
    try:
        port = parts.port or 22
    except ValueError:
        raise UsageError(f"store {shown!r}: its port must be a number up to 65535", subject=shown) from None
    if not parts.hostname:
        raise UsageError(f"store {shown!r} is not sftp://user@host:port/path", subject=shown)
    return parts.hostname, port


def without_password(url: str) -> str:
    """An address as it may be shown: "***" where a password stands, or may stand in an address that is badly written."""
    return re.sub(r"^([^/]*//[^/@:]*):.*@", r"\1:***@", url)


def _local(url: str) -> Store:
    from tidemark.stores.local import LocalStore

    root = Path(local_root(url))
    store = LocalStore(str(root))
    with translated(store.where, ""):
        is_file = root.exists() and not root.is_dir()
    if is_file:
        raise PermanentError(
            f"store {url} is a file, not a folder",
            hint="move the file away, or name a folder as store in the settings; ./tidemark doctor checks every store",
            subject=url,
        )
    return store


def local_root(url: str) -> str:
    """The folder of a `file://` address. Raises UsageError where it is no absolute path."""
    path = unquote(url.removeprefix("file://"))
    if not path.startswith("/") or ".." in PurePosixPath(path).parts:
        raise UsageError(f"store {url!r} needs an absolute path: file:///folder", subject=url)
    return path
