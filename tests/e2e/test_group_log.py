"""The log at the member over real OpenSSH servers: python3, a shell with flock, SFTP alone. Workers race for it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.group_logs import fence_of, records_behind
from tests.services.sshd import Sshd
from tidemark.cluster.replicas.core.epochs import Verdict
from tidemark.cluster.replicas.core.roles import Position
from tidemark.cluster.replicas.log import GroupLog
from tidemark.errors import CorruptionError
from tidemark.stores.local import LocalStore
from tidemark.stores.open_sftp import login_of, open_on
from tidemark.stores.protocol import Store, StoreAddress, Tier
from tidemark.stores.ssh.connection import SshConnection
from tidemark.stores.ssh.login import Limits

pytestmark = pytest.mark.real("sshd")
WORKERS, EACH = 4, 6


class Member:
    """A node's folder, and as many stores at it as there are workers."""

    def __init__(self, server: Sshd | None, root: Path, tier: Tier) -> None:
        self.server, self.root, self.tier = server, root, tier
        self.opened: list[Store] = []

    def open_store(self) -> Store:
        if self.server is None:
            return LocalStore(str(self.root))
        login, _ = login_of(StoreAddress(self.server.url(), self.server.host_key, str(self.server.key)))
        store = open_on(SshConnection(login, Limits()), urlsplit(self.server.url(self.root)).path, None)
        self.opened.append(store)
        assert store.properties.tier is self.tier
        return store


@pytest.fixture(params=["local", "sshd", "sshd_posix", "sshd_sftp_only"])
def member(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Member]:
    tiers = {"local": Tier.LOCAL, "sshd": Tier.PYTHON, "sshd_posix": Tier.POSIX, "sshd_sftp_only": Tier.SFTP}
    server = None if request.param == "local" else request.getfixturevalue(request.param)
    made = Member(server, tmp_path if server is None else server.new_folder(), tiers[request.param])
    yield made
    for store in made.opened:
        store.close()


@pytest.mark.full_after(1)
def test_an_epoch_is_written_read_and_fenced(member: Member) -> None:
    store = member.open_store()
    assert store.properties.appends is (member.tier is not Tier.SFTP)
    log = GroupLog(store, "log/7")
    tail = log.vote(fence_of(1)).tail
    first = records_behind(tail.end, 1, 3, '{"ä":"\u0000\'$HOME"}'.encode())
    old = log.append(first, fence_of(1), expect=tail).tail
    assert log.append(first, fence_of(1), expect=tail).verdict is Verdict.DUPLICATE
    assert log.read_tail() == old

    assert log.vote(fence_of(2, "n2")).is_yes
    late = GroupLog(member.open_store(), "log/7")
    assert late.append(records_behind(old.end, 1), fence_of(1), expect=old).verdict is Verdict.STALE
    assert late.vote(fence_of(3, "n1", "another database")).verdict is Verdict.FOREIGN
    log.append(records_behind(old.end, 2), fence_of(2, "n2"))
    log.seal()
    tail = log.append(records_behind(log.read_tail().end, 2), fence_of(2, "n2")).tail
    found = list(late.read(1))
    assert found[:3] == first
    assert [stored.head.position for stored in found[3:]] == [Position(2, 4), Position(2, 5)]
    assert not [name for name in store.list_folder("log/7") if not name.endswith(".log")]


@pytest.mark.full_after(1)
def test_a_torn_tail_is_cut_and_damage_is_named(member: Member) -> None:
    log = GroupLog(member.open_store(), "log/7")
    tail = log.vote(fence_of(1)).tail
    tail = log.append(records_behind(tail.end, 1, 2), fence_of(1), expect=tail).tail
    log.append(records_behind(tail.end, 1, 2, b'{"torn":1}'), fence_of(1), expect=tail)
    last = sorted((member.root / "log/7").iterdir())[-1]
    last.write_bytes(last.read_bytes()[:-300])
    assert log.read_tail().end == tail.end
    assert log.append(records_behind(tail.end, 1, 1, b'{"new":1}'), fence_of(1)).is_yes
    assert [stored.body for stored in log.read(1)] == [b"{}", b"{}", b'{"new":1}']

    at = 256 + 8
    damaged = sorted((member.root / "log/7").iterdir())[0 if member.tier is not Tier.SFTP else 1]
    data = bytearray(damaged.read_bytes())
    data[at] ^= 1
    damaged.write_bytes(data)
    with pytest.raises(CorruptionError, match=f"log/7/{damaged.name} is damaged at byte 256"):
        list(log.read(1))


@pytest.mark.full_after(1)
def test_workers_of_one_master_race_and_each_record_is_there_once(member: Member) -> None:
    log = GroupLog(member.open_store(), "log/7", segment_bytes=3000)
    assert log.vote(fence_of(1)).is_yes

    def work(number: int) -> list[int]:
        mine = GroupLog(member.open_store(), "log/7", segment_bytes=3000)
        won: list[int] = []
        while len(won) < EACH:
            tail = mine.read_tail()
            answer = mine.append(records_behind(tail.end, 1, 1, b'{"worker":%d}' % number), fence_of(1), expect=tail)
            if answer.verdict is Verdict.ACCEPT:
                won.append(answer.tail.end.position.version)
            else:
                assert answer.verdict is Verdict.CONFLICT
        return won

    with ThreadPoolExecutor(WORKERS) as pool:
        won = dict(enumerate(pool.map(work, range(WORKERS))))
    found = list(log.read(1))
    assert [stored.head.position.version for stored in found] == list(range(1, WORKERS * EACH + 1))
    for stored in found:
        assert stored.head.position.version in won[int(stored.body[10:-1])]
