"""Open an sftp store: log in, find out what the far end can run, make the best store for it."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tidemark.connections import Connection, HeldConnection
from tidemark.errors import HostKeyError, PermanentError, UsageError
from tidemark.stores.protocol import Store, StoreAddress, Tier, place_of, without_password
from tidemark.stores.python.session import start_far_end
from tidemark.stores.python.store import PythonStore
from tidemark.stores.ssh.client_config import ClientConfig, read_client_config
from tidemark.stores.ssh.connection import SshConnection
from tidemark.stores.ssh.dial import Dialled
from tidemark.stores.ssh.login import Limits, Login
from tidemark.stores.ssh.login import known_host_key as known_host_key  # noqa: PLC0414  for those who write settings

NEEDED_TOOLS = {"find", "sha256sum", "head", "tail", "rm"}


def open_sftp(
    address: StoreAddress, tier: Tier | None = None, limits: Limits | None = None, dialled: Dialled | None = None
) -> Store:
    """Open a store and connect it. `tier` forces one. Raises PermanentError where the far end does not have it."""
    login, root = login_of(address)
    connection = SshConnection(login, limits or Limits(), address.nice, address.memory, dialled)
    try:
        return open_on(connection, root, tier)
    except BaseException:
        connection.drop()
        raise


def open_on(connection: SshConnection, root: str, tier: Tier | None = None) -> Store:
    """Make a store at the far end of a connection. The store owns the connection from now on."""
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
    from tidemark.stores.posix.store import PosixStore  # here, because most far ends have python3 and do not need it

    return PosixStore(url, root, connection, tools)


def _by_sftp(url: str, root: str, connection: SshConnection) -> Store:
    from tidemark.stores.sftp.store import SftpStore

    return SftpStore(url, root, connection)


def _what_lacks(tier: Tier, tools: Sequence[str]) -> str:
    """Return why the far end cannot have `tier`. `tools`: what its shell found; none: the login has no shell."""
    if not tools:
        return "the login has no shell there, SFTP only"
    if tier is Tier.PYTHON:
        return "its shell finds no python3 that runs our program"
    return f"its shell finds no {', '.join(sorted(NEEDED_TOOLS.difference(tools)))}"


def login_of(address: StoreAddress) -> tuple[Login, str]:
    """Return the login and the store's folder of an address. What the address leaves open, its connection says.

    Raises UsageError for an invalid address, and as `read_connection`.
    """
    host, port = place_of(address.url)
    parts, shown = urlsplit(address.url), without_password(address.url)
    root = unquote(parts.path).rstrip("/")
    if any(part in ("..", ".") for part in root.split("/")):
        raise UsageError(f"store {shown!r} is not sftp://user@host:port/path", subject=shown)
    held = HeldConnection(address.connection) if address.connection else None
    told = held.now if held else Connection("")
    if told.host_key and address.host_key and told.host_key.rstrip("=") != address.host_key.rstrip("="):
        raise UsageError(
            f"the settings pin {address.host_key} for {shown}, {told.name} pins {told.host_key}",
            hint="compare with the server's key, and leave one of them out; ./tidemark doctor tries it",
            subject=shown,
        )
    if held and not (told.private_key or told.key_file or told.password):
        raise UsageError(
            f"Airflow {told.name} has no key and no password",
            hint=f"give it the extra private_key or key_file: {told.next_step}",
            subject=told.id,
        )
    config = read_client_config(address.ssh_config, host) if address.ssh_config else ClientConfig(host)
    user = unquote(parts.username or "") or told.login or config.user or getpass.getuser()
    number = parts.port or told.port or config.port or port
    key = "" if address.agent else address.key or config.key
    pinned, through = address.host_key or told.host_key, config.through(number)
    login = Login(config.host, number, user, pinned, key, held, through, address.agent)
    return login if login.host_key or not address.known_hosts else _pin_known_key(login, address.known_hosts), root


def _pin_known_key(login: Login, file: str) -> Login:
    known = known_host_key(login.host, login.port, Path(file))
    if not known:
        raise HostKeyError(
            f"{file} has no key of {login.name}",
            hint=f"`ssh -p {login.port} {login.host}` puts it there, after you compared it; or set host_key",
            subject=login.host,
        )
    return replace(login, host_key=known)
