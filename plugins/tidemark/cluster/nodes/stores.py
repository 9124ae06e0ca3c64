"""The addresses of a receiver's nodes, and their stores: opened once, kept, closed together.

A node's address, host key and login come from the settings, or else from the ledger's record of its joining. Neither holds a
password. Source: docs/decisions/0015.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from urllib.parse import urlsplit

from tidemark.app import App
from tidemark.cluster.nodes.folder import NodeFolder
from tidemark.cluster.slots.hash_ring import identifier_of
from tidemark.errors import NotFoundError, TidemarkError, UnreachableError, UsageError
from tidemark.ledger.cluster.tables import NodeRow
from tidemark.settings import values
from tidemark.settings.model import ReceiverSettings
from tidemark.stores.protocol import Store, StoreAddress, without_password

OPENING_TRIES = 2  # a silent server costs twenty seconds a try, and other members of its groups can serve


def node_row(app: App, receiver: ReceiverSettings, name: str, url: str = "", host_key: str = "", key: str = "") -> NodeRow:
    """Make the row of a node that is to join, at `url`, or at its address in the settings. `identifier`: its place on the
    ring. `host_key`, `key`: for a node that is not in the settings.

    UsageError if there is no address, if `url` and settings differ, for a bad address, and as `node_address`.
    """
    settings = app.settings.nodes.get(name)
    if not 0 < len(name) <= 100 or not name.isascii() or not all(c.isalnum() or c in "_-." for c in name):
        raise UsageError(f"{name!r} is no name of a node: letters, digits, _ - and . only, at most 100", subject=name)
    if not url and settings is None:
        raise UsageError(
            f"nothing says where node {name} is",
            hint=f"./tidemark cluster add {name}=sftp://user@host:port/folder, or [nodes.{name}] in the settings",
            subject=name,
        )
    try:
        store = values.parse_store(url, app.settings.root) if url else ""
    except ValueError as wrong:
        raise UsageError(
            f"the address of node {name} {wrong}", hint="./tidemark cluster add --help", subject=name
        ) from wrong
    if settings is not None and store not in ("", settings.store):
        raise UsageError(
            f"node {name} is at {settings.store} in the settings, not at {store}",
            hint=f"leave the address out, or mend [nodes.{name}] store",
            subject=name,
        )
    where = settings.store if settings else store
    row = NodeRow(receiver.name, name, identifier_of(name), where, host_key, key)
    address = node_address(app, row)
    return NodeRow(receiver.name, name, row.identifier, address.url, address.host_key, address.key)


def node_address(app: App, row: NodeRow) -> StoreAddress:
    """Return a node's address and login. UsageError for an sftp node without a host key or with a password."""
    settings = app.settings.nodes.get(row.node)
    address = StoreAddress.of(settings) if settings is not None else StoreAddress(row.store, row.host_key, row.key_file)
    if without_password(address.url) != address.url:
        raise UsageError(
            f"the address of node {row.node} has a password: {without_password(address.url)}",
            hint=f'log in by key: [nodes.{row.node}] key = "…"; the ledger keeps no secrets',
            subject=row.node,
        )
    if address.url.startswith("sftp://") and not (address.host_key or address.known_hosts or address.connection):
        raise UsageError(
            f"node {row.node} at {address.url} needs its server's key",
            hint=f'--host-key, or [nodes.{row.node}] host_key = "SHA256:…"; {values.scan_command(address.url)} shows it',
            subject=row.node,
        )
    return replace(address, tries=OPENING_TRIES)


class NodeStores:
    """Stores of nodes, each opened on first use, kept, and closed together. Safe for several threads.

    A node that could not be reached is not tried again before `forget_away`, so work on many groups waits for it once.
    """

    def __init__(self, app: App, rows: Iterable[NodeRow]) -> None:
        self._app = app
        self._rows = {row.node: row for row in rows}
        self._stores: dict[str, Store] = {}
        self._away: dict[str, UnreachableError] = {}
        self._door = threading.Lock()
        self._doors: dict[str, threading.Lock] = {}

    def add_node(self, row: NodeRow) -> None:
        """Add a node, or replace its row; a store that is open stays."""
        self._rows[row.node] = row

    def open_store(self, node: str) -> Store:
        """Return the store. UnreachableError names the node; NotFoundError if unknown; UsageError as `node_address`."""
        with self._door:
            door = self._doors.setdefault(node, threading.Lock())
        with door:
            if node in self._away:
                raise self._away[node]
            if node not in self._stores:
                self._stores[node] = self._connect_node(node)
            return self._stores[node]

    def open_folder(self, node: str) -> NodeFolder:
        """Return the folder without checking its owner: a joining node has none yet."""
        return NodeFolder(self.open_store(node), node)

    def open_all(self) -> None:
        """Open the stores of all nodes, those of different machines at once. What fails is raised to who asks for it."""

        def open_one(node: str) -> None:
            with suppress(TidemarkError):
                self.open_store(node)

        self.call_machines(list(self._rows), open_one)

    def machine_of(self, node: str) -> str:
        """Return host and port of a node: nodes that share them work one after another."""
        row = self._rows.get(node)
        return urlsplit(row.store).netloc if row else ""

    def call_machines(self, nodes: Iterable[str], act: Callable[[str], None]) -> None:
        """Call `act` with each node: those of different machines at once, those of one machine one after another."""
        machines: dict[str, list[str]] = {}
        for node in nodes:
            machines.setdefault(self.machine_of(node), []).append(node)

        def call_machine(mine: Sequence[str]) -> None:
            for node in mine:
                act(node)

        if len(machines) < 2:
            call_machine([node for mine in machines.values() for node in mine])
            return
        with ThreadPoolExecutor(len(machines)) as pool:
            list(pool.map(call_machine, machines.values()))

    def mark_away(self, node: str, error: UnreachableError) -> UnreachableError:
        """Note that a node went away: it is not tried again before `forget_away`. Returns the error with its name."""
        named = unreachable_error(node, error)
        with self._door:
            self._away[node] = named
            store = self._stores.pop(node, None)
        if store is not None:
            store.close()
        return named

    def forget_away(self) -> None:
        """Let nodes that were away be tried again."""
        with self._door:
            self._away.clear()

    def close(self) -> None:
        with self._door:
            stores, self._stores = self._stores, {}
        for store in stores.values():
            store.close()

    def __enter__(self) -> NodeStores:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _connect_node(self, node: str) -> Store:
        row = self._rows.get(node)
        if row is None:
            raise NotFoundError(
                f"no node named {node!r}; there are: {', '.join(sorted(self._rows)) or 'none'}",
                hint="./tidemark cluster show",
                subject=node,
            )
        try:
            return self._app.opener(node_address(self._app, row))
        except UnreachableError as away:
            self._away[node] = unreachable_error(node, away)
            raise self._away[node] from away


def unreachable_error(node: str, error: UnreachableError) -> UnreachableError:
    """Return the error with the node's name added, unless it has it."""
    if error.subject == node:
        return error
    return UnreachableError(f"node {node} cannot be reached: {error.message}", hint="./tidemark cluster check", subject=node)
