"""Send files of one node to another without their bytes passing through this machine.

A push (`push`) whose reader is the source node: this end says what is sent and which files get names, is told of every piece
what was read and what became of it, and judges as if it had read itself. The source's far program has the target's receiving
program at the end of its own ssh (`agent.forward`), logged in by a key that it is lent for that moment (`lent_keys`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence

from tidemark.errors import HostKeyError, UnreachableError
from tidemark.stores.agent.frames import FAILED, NOTHING, PIECES, RANGE, READ
from tidemark.stores.lent_keys import LentKeys
from tidemark.stores.line import Line
from tidemark.stores.push import Push
from tidemark.stores.push_carrier import Feed, PushCarrier, Reader
from tidemark.stores.python.bundle import command, forwarding, program
from tidemark.stores.python.session import FarPool, FarSession, start_far_end
from tidemark.stores.python.store import PythonStore
from tidemark.stores.ssh.connection import SshConnection
from tidemark.stores.ssh.login import Limits, Login
from tidemark.stores.ssh.sink import Frame
from tidemark.stores.transfer_items import SendItem, Wire, changed

ALIAS = "tidemark-target"  # the target's name in the file of known hosts, whatever its address
CIPHERS = "aes128-gcm@openssh.com,aes256-gcm@openssh.com,chacha20-poly1305@openssh.com,aes256-ctr,aes128-ctr"
ANOTHER_KEY = "Host key verification failed"  # ssh's words


class NoRoad(Exception):
    """The source does not reach the target; its text is why."""


class Direct(Push):
    def __init__(self, wire: Wire, road: Road, items: Sequence[SendItem]) -> None:
        self._road = road
        source, target = wire.source, wire.target
        assert isinstance(source, PythonStore) and isinstance(target, PythonStore)
        super().__init__(wire, source, target, items)

    def _line(self, feed: Feed) -> Line:
        return Line(self._road, self.schedule, self.asking, self.wire, lambda *what: DirectCarrier(feed, *what), sends=True)

    def _editions_of(self, paths: list[str]) -> Sequence[int | None]:
        assert isinstance(self.source, PythonStore)
        return self.source.editions(paths)

    def _records(self, frame: Frame) -> Iterator[tuple[int, int, int, int, int, int, bytes]]:
        for record in super()._records(frame):
            if record[4] != READ:
                yield record
            elif record[0] < len(self._files):
                self._was_read(*record[:3], record[5], record[6])
            else:
                raise self._not_asked()

    def _was_read(self, number: int, offset: int, length: int, edition: int, prefix: bytes) -> None:
        """It is on its way already: a piece of another edition is answered, and nobody waits for it any more."""
        self._crossed([(number, length)])
        known = prefix if prefix != NOTHING else b""
        if self.schedule.waits_for(number) and not self._read(number, edition, offset + length, known):
            self._lose(number, changed(self._files[number]))

    def _cut(self) -> None:
        self.target.connection.drop()
        super()._cut()


class DirectCarrier(PushCarrier):
    """Sends nothing but what is to be read, and which files are to get names."""

    said = ""  # of the line between the nodes, when it was lost

    @property
    def last_words(self) -> str:
        return self.said or super().last_words

    def _reader(self, frame: int, digest: bool) -> Reader:
        self.session.begin("forward", frame, digest, self._feed.reserve)
        return self

    def answer(self, asked: bytes) -> None:
        numbers, at = [], 0
        while at < len(asked):
            number, *_, name = RANGE.unpack_from(asked, at)
            numbers.append(number)
            at += RANGE.size + name
        self._send(PIECES, numbers, [asked], memoryview(b""))

    def _deliver(self, frame: Frame | None) -> None:
        if frame is not None and frame.kind == FAILED:  # of the line between the nodes
            self.said, frame = str(json.loads(bytes(frame.words))[1]), None
        super()._deliver(frame)


class Road(PythonStore):
    """The source, over a connection of its own, as the node that has `target` at the end of its ssh.

    Raises NoRoad where it does not reach it, HostKeyError where it meets another host key there than we do, UnreachableError
    and what else opening a connection to either of them raises.
    """

    def __init__(self, source: PythonStore, target: PythonStore) -> None:
        connection = source.connection.another()
        try:
            first = _reach(connection, source.root, target)
        except BaseException:
            connection.drop()
            raise
        super().__init__(source.url, source.root, connection, first)
        self._forwarding = _Forwarding(connection, source.root, first, target)
        self.pool = self._forwarding

    def ready(self, target: PythonStore) -> None:
        """The line is there, or there again. `target`: as it is open now. Raises as at the beginning."""
        self._forwarding.target = target
        self.pool.give(self.pool.take())


class _Forwarding(FarPool):
    def __init__(self, connection: SshConnection, root: str, first: FarSession, target: PythonStore) -> None:
        super().__init__(connection, root, first)
        self.target = target

    def _start(self) -> FarSession:
        return _reach(self._connection, self._root, self.target)


def _reach(connection: SshConnection, root: str, target: PythonStore) -> FarSession:
    """A session with the source's program once its ssh has the target's program at the other end."""
    host_key, key = target.connection.keys()
    login, limits = target.connection.login, connection.limits
    known = f"{ALIAS} {host_key.get_name()} {host_key.get_base64()}\n"
    lent, seconds = LentKeys(key, login.user, host_key), limits.connect + limits.handshake
    over = threading.Timer(seconds + limits.stall, lent.close)  # however long the source takes to answer
    over.daemon = True
    over.start()
    try:
        session, _ = start_far_end(connection, root or "/", agent=lent)
        if session is None:
            raise UnreachableError(f"{connection.login.name} does not start python3 any more", hint="run again")
        asked = (ssh_command(login, limits, command(nice=target.connection.nice)), known, seconds)
        said = session.put("reach", asked, [forwarding(), b"".join(program(target.root or "/", target.connection.memory))])
    finally:
        over.cancel()
        lent.close()
    if said:
        session.close()
        if ANOTHER_KEY in said:
            raise HostKeyError(
                f"{connection.login.name} meets another host key at {login.name} than {login.host_key}",
                hint="who answers there, seen from that node? docs/runbooks/host-key-changed.md",
                subject=login.host,
            )
        raise NoRoad(said)
    return session


def ssh_command(login: Login, limits: Limits, remote: str) -> list[str]:
    """The source's ssh to the target, running `remote` there. "{known}" stands for the file of known hosts. Pure."""
    options = {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": "{known}",
        "GlobalKnownHostsFile": "/dev/null",
        "HostKeyAlias": ALIAS,
        "CheckHostIP": "no",
        "IdentityFile": "none",  # the lent key alone
        "PreferredAuthentications": "publickey",
        "ClearAllForwardings": "yes",
        "ControlPath": "none",
        "ConnectTimeout": str(max(1, int(limits.connect))),
        "ServerAliveInterval": str(max(1, int(limits.stall / 3))),
        "ServerAliveCountMax": "3",
        "Ciphers": CIPHERS,
        "LogLevel": "ERROR",
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return ["ssh", "-F", "none", "-a", "-T", *words, "-p", str(login.port), "-l", login.user, "--", login.host, remote]
