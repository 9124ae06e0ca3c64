"""A cluster as flows open it: the table in force, the nodes' folders proved and kept open, a node that is away named."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from tidemark.app import App, open_app
from tidemark.cluster.nodes.cluster import Cluster, NodeStores, node_address, node_row, open_cluster
from tidemark.cluster.nodes.folder import NodeFolder
from tidemark.cluster.slots.balance import even_slots, first_owners
from tidemark.cluster.slots.hash_ring import Node, identifier_of
from tidemark.cluster.slots.table import PartitionTable, begin_table, encode_table
from tidemark.errors import CorruptionError, NotFoundError, PermanentError, UnreachableError, UsageError
from tidemark.ledger.cluster import moves as move_rows
from tidemark.ledger.cluster import tables as cluster_rows
from tidemark.ledger.cluster.moves import MoveRow
from tidemark.ledger.cluster.tables import NodeRow, TableRow
from tidemark.settings.model import ClusterSettings, NodeSettings, ReceiverSettings, Settings
from tidemark.stores.local import LocalStore
from tidemark.stores.open import open_store
from tidemark.stores.protocol import Store, StoreAddress

CENTRE = ReceiverSettings("centre", "file:///srv/centre")
NAMES = ("n1", "n2", "n3")
HOST_KEY = "SHA256:" + "a" * 43


class Opener:
    """Opens real folders, counts it, and cannot reach what is `away`."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.away: set[str] = set()

    def __call__(self, address: StoreAddress) -> Store:
        name = address.url.rpartition("/")[2]
        self.opened.append(name)
        if name in self.away:
            raise UnreachableError(f"{address.url}: no route to host")
        store = open_store(address)
        assert isinstance(store, LocalStore)
        store.close = lambda: self.closed.append(name)  # type: ignore[method-assign]
        return store


@pytest.fixture
def opener() -> Opener:
    return Opener()


@pytest.fixture
def app(tmp_path: Path, opener: Opener) -> Iterator[App]:
    nodes = {name: NodeSettings(name, f"file://{tmp_path}/nodes/{name}") for name in NAMES}
    settings = Settings(
        path=tmp_path / "tidemark.toml",
        receivers={"centre": CENTRE},
        cluster=ClusterSettings(replicas=2, quorum=2, slots=12),
        nodes=nodes,
    )
    app = open_app(settings)
    app.opener = opener
    yield app
    app.ledger.close()


def first_table() -> PartitionTable:
    return begin_table([Node(identifier_of(name), name) for name in NAMES], 2, first_owners(12, NAMES))


def put_in_force(app: App, table: PartitionTable, change: str) -> None:
    with app.ledger.write() as connection:
        cluster_rows.swap_table(connection, TableRow("centre", table.epoch, encode_table(table), change, 1.0))


@pytest.fixture
def begun(app: App) -> App:
    """A cluster of three nodes, as `cluster init` leaves it."""
    for name in NAMES:
        row = node_row(app, CENTRE, name)
        NodeFolder(open_store(node_address(app, row)), name).claim_folder("c1")
        with app.ledger.write() as connection:
            cluster_rows.put_node(connection, replace(row, state="serving", epoch=1))
    put_in_force(app, first_table(), "c1")
    return app


def test_without_a_cluster_there_is_none(app: App) -> None:
    assert Cluster.open(app, CENTRE) is None  # no table yet
    with open_cluster(app, CENTRE) as cluster:
        assert cluster is None


@pytest.mark.parametrize("of", [None, ClusterSettings(receiver="another")])
def test_without_settings_the_ledger_is_not_even_asked(begun: App, of: ClusterSettings | None) -> None:
    begun.settings = replace(begun.settings, cluster=of)
    asked: list[str] = []
    sa.event.listen(begun.ledger.engine, "before_cursor_execute", lambda *call: asked.append(call[2]))
    assert Cluster.open(begun, CENTRE) is None
    assert asked == []


def test_settings_without_a_table_cost_one_look(app: App) -> None:
    asked: list[str] = []
    sa.event.listen(app.ledger.engine, "before_cursor_execute", lambda *call: asked.append(call[2]))
    assert Cluster.open(app, CENTRE) is None
    assert len([statement for statement in asked if statement.startswith("SELECT")]) == 1


def test_the_table_in_force_and_its_nodes(begun: App, opener: Opener) -> None:
    with open_cluster(begun, CENTRE) as cluster:
        assert cluster is not None
        assert cluster.table == first_table()
        assert cluster.table_bytes == encode_table(first_table())
        assert (cluster.epoch, cluster.quorum, cluster.identity) == (1, 2, "c1")
        assert sorted(cluster.nodes) == list(NAMES)
        assert opener.opened == []  # nobody was asked yet


def test_stores_are_opened_once_and_closed_together(begun: App, opener: Opener) -> None:
    with open_cluster(begun, CENTRE) as cluster:
        assert cluster is not None
        cluster.open_store("n1").publish("data/a", b"a")
        assert cluster.open_folder("n1").list_sizes() == {"data/a": 1}
        assert cluster.open_folder("n2").list_sizes() == {}
        assert opener.opened == ["n1", "n2"]
        assert opener.closed == []
    assert sorted(opener.closed) == ["n1", "n2"]
    cluster.close()
    assert sorted(opener.closed) == ["n1", "n2"]


def test_many_threads_share_one_store_a_node(begun: App, opener: Opener) -> None:
    with open_cluster(begun, CENTRE) as cluster:
        assert cluster is not None
        seen: list[Store] = []
        threads = [threading.Thread(target=lambda: seen.append(cluster.open_store("n1"))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(seen) == 8 and len({id(store) for store in seen}) == 1
        assert opener.opened == ["n1"]


def test_a_node_that_is_away_is_named_and_asked_once(begun: App, opener: Opener) -> None:
    opener.away = {"n2"}
    with open_cluster(begun, CENTRE) as cluster:
        assert cluster is not None
        for act in (cluster.open_store, cluster.open_folder):
            with pytest.raises(UnreachableError, match=r"node n2 cannot be reached: .*no route") as caught:
                act("n2")
            assert caught.value.subject == "n2"
        assert opener.opened == ["n2"]
        assert cluster.open_folder("n1").list_sizes() == {}  # the others serve

        opener.away = set()
        assert cluster.reload_table().open_folder("n2").list_sizes() == {}


def test_a_dead_node_holds_nobody_up_for_long(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its group has others: a store that stands alone is tried five times."""
    tried: list[str] = []

    def refused(address: StoreAddress, _tier: object, dialled: object) -> Store:
        tried.append(address.url)
        raise UnreachableError("connection refused")

    monkeypatch.setattr("tidemark.stores.open_sftp.open_sftp", refused)
    with_node(app, sftp(host_key=HOST_KEY, key="/keys/id"))
    address = node_address(app, node_row(app, CENTRE, "n1"))
    with pytest.raises(UnreachableError):
        open_store(address)
    assert len(tried) == 2


def test_a_node_that_goes_away_at_work_is_not_waited_for_again(begun: App, opener: Opener) -> None:
    with open_cluster(begun, CENTRE) as cluster:
        assert cluster is not None
        cluster.open_store("n1")
        told = cluster.stores.mark_away("n1", UnreachableError("connection reset"))
        assert told.message == "node n1 cannot be reached: connection reset"
        assert opener.closed == ["n1"]
        with pytest.raises(UnreachableError, match="node n1 cannot be reached: connection reset"):
            cluster.open_folder("n1")
        cluster.stores.forget_away()
        cluster.open_folder("n1")
        assert opener.opened == ["n1", "n1"]


def test_a_disk_that_was_exchanged_meanwhile_is_noticed_when_it_is_back(begun: App, tmp_path: Path) -> None:
    with open_cluster(begun, CENTRE) as cluster:
        assert cluster is not None
        cluster.open_folder("n1")
        cluster.stores.mark_away("n1", UnreachableError("connection reset"))
        (tmp_path / "nodes" / "n1").rename(tmp_path / "broken")
        cluster.stores.forget_away()
        with pytest.raises(UnreachableError, match="not the folder of node n1"):
            cluster.open_folder("n1")


def test_a_disk_that_is_not_mounted_is_not_taken_for_an_empty_node(begun: App, tmp_path: Path) -> None:
    (tmp_path / "nodes" / "n2").rename(tmp_path / "unmounted")
    (tmp_path / "nodes" / "n2").mkdir()
    with open_cluster(begun, CENTRE) as cluster:
        assert cluster is not None
        with pytest.raises(UnreachableError, match="not the folder of node n2"):
            cluster.open_store("n2")
    assert list((tmp_path / "nodes" / "n2").iterdir()) == []


def test_two_nodes_whose_folders_were_exchanged_are_refused(begun: App, tmp_path: Path) -> None:
    for old, new in (("n1", "x"), ("n2", "n1"), ("x", "n2")):
        (tmp_path / "nodes" / old).rename(tmp_path / "nodes" / new)
    with open_cluster(begun, CENTRE) as cluster:
        assert cluster is not None
        with pytest.raises(PermanentError, match="is the folder of node n2 of cluster c1, not of node n1"):
            cluster.open_folder("n1")


def test_an_unknown_node_is_told_with_those_there_are(begun: App) -> None:
    with open_cluster(begun, CENTRE) as cluster:
        assert cluster is not None
        with pytest.raises(NotFoundError, match="no node named 'n9'; there are: n1, n2, n3"):
            cluster.open_folder("n9")


def test_reload_takes_the_newest_table_and_nodes(begun: App, tmp_path: Path) -> None:
    with open_cluster(begun, CENTRE) as cluster:
        assert cluster is not None
        before = cluster.table
        after = before.with_node(Node(identifier_of("n4"), "n4"), even_slots)
        row = node_row(begun, CENTRE, "n4", f"file://{tmp_path}/nodes/n4")
        with begun.ledger.write() as connection:
            cluster_rows.put_node(connection, row)
        with NodeStores(begun, [row]) as stores:
            stores.open_folder("n4").claim_folder(cluster.identity)
        put_in_force(begun, after, "c2")
        with begun.ledger.write() as connection:
            rows = [MoveRow("centre", 2, slot, old, after.group_of(slot)) for slot, old in after.moving.items()]
            move_rows.add_moves(connection, rows)

        assert cluster.table == before
        assert cluster.reload_table().table == after
        assert (cluster.epoch, cluster.identity) == (2, "c1")
        assert cluster.open_folder("n4").read_table() is None


def test_what_has_moved_does_not_move_any_more(begun: App) -> None:
    after = first_table().without_node("n3", even_slots)
    put_in_force(begun, after, "c2")
    slots = sorted(after.moving)
    with begun.ledger.write() as connection:
        rows = [MoveRow("centre", 2, slot, old, after.group_of(slot)) for slot, old in after.moving.items()]
        move_rows.add_moves(connection, rows)
        move_rows.set_move_state(connection, "centre", 2, slots[:2], "done", 1.0)
        move_rows.set_move_state(connection, "centre", 2, slots[2:3], "acknowledged", 1.0)

    with open_cluster(begun, CENTRE) as cluster:
        assert cluster is not None
        assert sorted(cluster.table.moving) == slots[2:]
        assert cluster.table_bytes == encode_table(after)


def test_a_table_under_another_epoch_is_not_used(begun: App) -> None:
    with begun.ledger.write() as connection:
        connection.execute(sa.text("UPDATE cluster_table SET epoch = 5"))
    with pytest.raises(CorruptionError, match="epoch 1 as that of 5"):
        Cluster.open(begun, CENTRE)


# addresses


def sftp(name: str = "n1", **more: str) -> NodeSettings:
    return NodeSettings(name, "sftp://a@10.0.1.1:22/srv/node", **more)


def with_node(app: App, node: NodeSettings) -> App:
    app.settings = replace(app.settings, nodes={**app.settings.nodes, node.name: node})
    return app


def test_the_settings_say_where_a_node_is_before_the_ledger_does(app: App) -> None:
    with_node(app, sftp(host_key=HOST_KEY, key="/keys/new", tier="posix"))
    noted = NodeRow("centre", "n1", 1, "sftp://a@10.0.0.9:22/old", HOST_KEY, "/keys/old")
    expected = StoreAddress("sftp://a@10.0.1.1:22/srv/node", HOST_KEY, "/keys/new", tier="posix", tries=2)
    assert node_address(app, noted) == expected

    unknown = replace(noted, node="n9")
    assert node_address(app, unknown) == StoreAddress("sftp://a@10.0.0.9:22/old", HOST_KEY, "/keys/old", tries=2)


def test_a_row_keeps_what_another_process_needs_to_find_the_node(app: App, tmp_path: Path) -> None:
    with_node(app, sftp(host_key=HOST_KEY, key="/keys/id"))
    row = node_row(app, CENTRE, "n1")
    assert row == NodeRow("centre", "n1", identifier_of("n1"), "sftp://a@10.0.1.1:22/srv/node", HOST_KEY, "/keys/id")
    assert row.state == "joining"
    assert node_row(app, CENTRE, "n1", "sftp://a@10.0.1.1:22/srv/node") == row
    assert node_row(app, CENTRE, "n8", f"{tmp_path}/n8").store == f"file://{tmp_path}/n8"


def test_no_sftp_node_without_its_servers_key(app: App) -> None:
    with_node(app, sftp())
    for act in (
        lambda: node_row(app, CENTRE, "n1"),
        lambda: node_address(app, NodeRow("centre", "n1", 1, "sftp://a@10.0.1.1:22/srv/node")),
        lambda: node_row(app, CENTRE, "n7", "sftp://a@10.0.1.1:22/srv/n7"),
    ):
        with pytest.raises(UsageError) as caught:
            act()
        assert "host_key" in caught.value.hint and "[nodes.n" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "url", "said"),
    [
        ("n1", "sftp://a:secret@10.0.1.1:22/srv/n1", "must not hold a password"),
        ("n9", "ftp://a@b/c", "must be"),
        ("n9", "", "nothing says where node n9 is"),
        ("n1", "file:///elsewhere", "not at file:///elsewhere"),
        ("a/b", "file:///x", "no name of a node"),
        ("", "file:///x", "no name of a node"),
    ],
)
def test_a_bad_name_or_address_is_told_and_no_secret_shown(app: App, name: str, url: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        node_row(app, CENTRE, name, url)
    assert said in caught.value.message
    assert "secret" not in caught.value.message + caught.value.hint


def test_a_password_in_the_ledger_is_not_used(app: App) -> None:
    noted = NodeRow("centre", "n9", 1, "sftp://a:secret@10.0.0.9:22/old", HOST_KEY)
    with pytest.raises(UsageError) as caught:
        node_address(app, noted)
    assert "secret" not in caught.value.message
