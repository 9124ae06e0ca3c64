"""The store behind an SFTP server and nothing else: no shell, no tools, one pipelined session.

Enter by `store.SftpStore`; `stores.open` makes it where nothing better is there.

    protocol       SFTP version 3 over a pipe: many requests in flight, every status read, OpenSSH's extensions
    session        the same session with fewer copies, where the packet layer is ours
    read_stream    contents of many files as one stream
    write_stream   parts of many files written, made durable and closed in one stream of requests
    files          contents, links and renames by single calls; entries, trees and folders
    store          the `Store`

Imports `stores.ssh`, `stores.protocol` and `stores.os_errors`. Not guaranteed here: folders cannot be synced over
SFTP, so a name may be lost with power after a rename, and the source is kept until a later listing shows the file.
Digests are made of bytes that are read back over the line. Listings carry no inodes. Only `stores` and `transfer`
may import this folder.
"""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from urllib.parse import unquote, urlsplit

from tidemark.errors import PermanentError, UsageError
from tidemark.stores.dialling import Dialled
from tidemark.stores.far_session import start_far_end
from tidemark.stores.login import Limits, Login
from tidemark.stores.opening import StoreAddress, place_of, without_password
from tidemark.stores.protocol import Store, Tier
from tidemark.stores.python_store import PythonStore
from tidemark.stores.ssh import SshConnection

NEEDED_TOOLS = {"find", "sha256sum", "head", "tail", "rm"}


def open_sftp(
    address: StoreAddress, tier: Tier | None = None, limits: Limits | None = None, dialled: Dialled | None = None
) -> Store:
    """A connected store. `tier` is taken as given where the far end has it; PermanentError where it has not."""
    login, root = login_of(address)
    connection = SshConnection(login, limits or Limits(), address.nice, address.memory, dialled)
    try:
        return open_on(connection, root, tier)
    except BaseException:
        connection.drop()
        raise


def open_on(connection: SshConnection, root: str, tier: Tier | None = None) -> Store:
    """A store at the far end of a connection, which is the store's from now on."""
    login = connection.login
    url = f"sftp://{login.name}{root or '/'}"
    if tier is Tier.SFTP:
        return _by_sftp(url, root, connection)
    session, tools = start_far_end(connection, root or "/", python=tier is not Tier.POSIX)
    if session is not None:
        return PythonStore(url, root, connection, session)
    if tier in (None, Tier.POSIX) and set(tools) >= NEEDED_TOOLS:
        return _by_tools(url, root, connection, tools)
    if tier is None:
        return _by_sftp(url, root, connection)
    raise PermanentError(
        f"{login.name} cannot be used by the tier {tier.value}, which is forced: {_what_lacks(tier, tools)}",
        hint='install what is missing there, or set tier = "auto"; ./tidemark doctor shows what a probe finds',
        subject=login.host,
    )


def _by_tools(url: str, root: str, connection: SshConnection, tools: Sequence[str]) -> Store:
    from tidemark.stores.posix_store import PosixStore  # most far ends have python3: no time for loading the others

    return PosixStore(url, root, connection, tools)


def _by_sftp(url: str, root: str, connection: SshConnection) -> Store:
    from tidemark.stores.sftp_store import SftpStore

    return SftpStore(url, root, connection)


def _what_lacks(tier: Tier, tools: Sequence[str]) -> str:
    """`tools`: what the far end's shell found; none: it has no shell for this login."""
    if not tools:
        return "the login has no shell there, SFTP only"
    if tier is Tier.PYTHON:
        return "its shell finds no python3 that runs our program"
    return f"its shell finds no {', '.join(sorted(NEEDED_TOOLS.difference(tools)))}"


def login_of(address: StoreAddress) -> tuple[Login, str]:
    """Who logs in where, and the store's folder there. UsageError for an address that cannot be."""
    host, port = place_of(address.url)
    parts, shown = urlsplit(address.url), without_password(address.url)
    root = unquote(parts.path).rstrip("/")
    if any(part in ("..", ".") for part in root.split("/")):
        raise UsageError(f"store {shown!r} is not sftp://user@host:port/path", subject=shown)
    if address.connection and not address.key:
        raise UsageError(
            f"store {shown!r} logs in by the Airflow connection {address.connection!r}, which only Airflow knows",
            hint="set `key` to run it by hand",
            subject=shown,
        )
    user = unquote(parts.username or "") or getpass.getuser()
    return Login(host, port, user, address.host_key, address.key), root
