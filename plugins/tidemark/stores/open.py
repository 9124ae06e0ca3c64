"""Open the store at an address of the settings."""

from __future__ import annotations

from pathlib import Path

from tidemark.errors import PermanentError, UsageError
from tidemark.stores.os_errors import translate_os_errors
from tidemark.stores.protocol import Store, StoreAddress, Tier, local_root, place_of, without_password
from tidemark.stores.ssh.dial import CONNECT_SECONDS, Dialled

TIERS = {"python": Tier.PYTHON, "posix": Tier.POSIX, "sftp": Tier.SFTP}
"""What the settings' `tier` may force; "auto" is what a probe finds."""


def open_store(address: StoreAddress, tier: Tier | None = None) -> Store:
    """Open the store at `address`. For an sftp store: connect, compare the host key, probe the far end once.

    `tier`, or else the address's, replaces the best one found. Raises PermanentError where the far end does not have it.

    Opening a remote store and its calls are repeated while it is unreachable (`retrying`). Raises UsageError for an invalid
    address, PermanentError for a file, HostKeyError, PermissionDeniedError (login), UnreachableError.
    """
    scheme = address.url.partition(":")[0].lower()
    if scheme == "file":
        return _open_local(address.url)
    if scheme == "sftp":
        return _open_remote(address, tier or TIERS.get(address.tier))
    shown = without_password(address.url)
    raise UsageError(
        f"store {shown!r} is neither file:///path nor sftp://user@host:port/path",
        hint="./tidemark doctor checks every store of the settings",
        subject=shown,
    )


def _open_remote(address: StoreAddress, tier: Tier | None) -> Store:
    """Open an sftp store. The SSH modules are imported while the server is dialled."""
    host, port = place_of(address.url)
    elsewhere = address.connection or address.ssh_config  # they may say the port
    dialled = None if elsewhere else Dialled(host, port, CONNECT_SECONDS)
    try:
        from tidemark.stores.open_sftp import open_sftp
        from tidemark.stores.retrying import TRIES, RetryingStore, try_again

        return RetryingStore(try_again(lambda: open_sftp(address, tier, dialled=dialled), address.tries or TRIES))
    finally:
        if dialled is not None:
            dialled.drop()


def _open_local(url: str) -> Store:
    from tidemark.stores.local import LocalStore

    root = Path(local_root(url))
    store = LocalStore(str(root))
    with translate_os_errors(store.where, ""):
        is_file = root.exists() and not root.is_dir()
    if is_file:
        raise PermanentError(
            f"store {url} is a file, not a folder",
            hint="move the file away, or name a folder as store in the settings; ./tidemark doctor checks every store",
            subject=url,
        )
    return store
