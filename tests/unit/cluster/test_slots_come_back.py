"""Slots come back to a group whose log told of them before: the logs tell what was loaded while another group had them."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from tests.clustered import Clustered, logs_tell_the_catalog
from tests.small_files import sealed, source
from tidemark.cluster.membership.change import Wanted, change_nodes
from tidemark.cluster.replicas import commit
from tidemark.cluster.replicas.commit import record_slots
from tidemark.operations.rebuild.from_nodes import open_from_nodes
from tidemark.operations.rebuild.rebuild import rebuild_ledger
from tidemark.receiver.read import Query, read
from tidemark.settings.model import NodeSettings

DATABASES = range(1, 9)
MIGRATION = Path(__file__).parents[3] / "sql" / "0029_group_cover_anew.sql"


class Changing(Clustered):
    """A file in each of some databases, at `nodes`; every log tells of its slots. `joins` is among the settings."""

    def __init__(self, folder: Path, *nodes: str, joins: str, replicas: int) -> None:
        super().__init__(folder, replicas=replicas)
        self.begin(*nodes)
        self.settings_of = {name: NodeSettings(name, f"file://{self.node(name)}") for name in (*nodes, joins)}
        self.app.settings.nodes.update(self.settings_of)
        self.site = self.sender()
        self.load_into(*DATABASES)
        with self.cluster() as cluster:
            record_slots(cluster)

    def load_into(self, *databases: int, later: int = 0) -> None:
        files = {}
        for number in databases:
            points = [(number + later, 10 * number + later)]
            path = source(number + later, database=f"root.sg{number}")
            files[path] = sealed({f"root.sg{number}.d1": {"s": points}})
        self.site.land(files)
        assert self.load().exit_code == 0

    def databases_of(self, header: str) -> list[int]:
        with self.cluster() as cluster:
            return [n for n in DATABASES if cluster.table.route_data(f"root.sg{n}", 0).header == header]

    def rows_from_nodes(self) -> list[tuple[object, ...]]:
        out = self.folder / "out.parquet"
        with open_from_nodes(self.app.settings, self.receiver, opener=self.open_store) as app:
            read(app, self.receiver, Query(tall=True), out)
        return [tuple(row.values()) for row in pq.read_table(out).to_pylist()]

    def rebuild(self) -> None:
        settings = self.app.settings
        self.app.ledger.close()
        (self.folder / "var" / "ledger.db").unlink()
        assert rebuild_ledger(settings).findings.lost == []
        self.reopen()
        self.app.settings.nodes.update(settings.nodes)


def test_a_node_that_left_and_joins_again_heads_the_slots_that_it_had(tmp_path: Path) -> None:
    centre = Changing(tmp_path, "n1", "n2", "n3", joins="n3", replicas=2)
    mine = centre.databases_of("n3")
    change_nodes(centre.app, centre.receiver, Wanted("remove", "n3"))
    centre.load_into(*mine, later=100)
    change_nodes(centre.app, centre.receiver, Wanted("add", "n3"))
    assert mine and centre.databases_of("n3") == mine
    expected = centre.rows()
    assert len(expected) == len(DATABASES) + len(mine)
    assert centre.rows_from_nodes() == expected
    logs_tell_the_catalog(centre)
    centre.rebuild()
    assert centre.rows() == expected


@pytest.mark.parametrize("wait", [False, True])
def test_a_node_that_joined_is_lost_before_its_slots_moved_and_they_go_back(tmp_path: Path, wait: bool) -> None:
    """What was loaded into them meanwhile is in its group's log alone, and the group before never told that they went."""
    centre = Changing(tmp_path, "n1", "n2", "n3", "n4", joins="n5", replicas=3)
    change_nodes(centre.app, centre.receiver, Wanted("add", "n5", request="first"), wait=False)
    mine = centre.databases_of("n5")
    centre.load_into(*mine, later=100)
    centre.away = {"n5"}
    change_nodes(centre.app, centre.receiver, Wanted("remove", "n5", supersedes="first"), wait=wait)
    expected = centre.rows()
    assert mine and len(expected) == len(DATABASES) + len(mine)
    assert centre.rows_from_nodes() == expected
    if wait:
        logs_tell_the_catalog(centre)
        del centre.app.settings.nodes["n5"]
        centre.rebuild()
        assert centre.rows() == expected


def test_the_logs_of_a_former_version_are_mended_by_the_next_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    centre = Changing(tmp_path, "n1", "n2", "n3", joins="n3", replicas=2)
    mine = centre.databases_of("n3")
    with monkeypatch.context() as former:
        former.setattr(commit, "_find_kept", lambda _connection, _cluster, cover: cover.slots)
        change_nodes(centre.app, centre.receiver, Wanted("remove", "n3"))
        centre.load_into(*mine, later=100)
        change_nodes(centre.app, centre.receiver, Wanted("add", "n3"))
    with centre.app.ledger.write() as connection:
        connection.execute(sa.text(MIGRATION.read_text().partition("\n\n")[2].rstrip(";\n")))
    with centre.cluster() as cluster:
        record_slots(cluster)
    assert centre.rows_from_nodes() == centre.rows()
    logs_tell_the_catalog(centre)
