"""What a node's folder does, over any store. A store's test class gives `store` and `place`, as for `StoreConformance`."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.unit.stores.store_conformance import Place, sha
from tidemark.cluster.nodes.folder import NodeFolder
from tidemark.errors import (
    CorruptionError,
    DiskAwayError,
    PermanentError,
    SchemaTooNewError,
    SourceVanishedError,
    StaleEpochError,
    TidemarkError,
)
from tidemark.stores.protocol import Store

NODE = ".tidemark/node.json"


class NodeFolderConformance:
    @pytest.fixture
    def folder(self, store: Store) -> NodeFolder:
        return NodeFolder(store, "n1")

    # whose it is

    def test_a_new_folder_is_claimed_once_and_for_good(self, folder: NodeFolder, place: Place) -> None:
        assert folder.read_owner() is None
        with pytest.raises(DiskAwayError, match="not the folder of node n1"):
            folder.require_owner("c1")

        folder.claim_folder("c1")
        paper = place.get(NODE)
        folder.claim_folder("c1")
        folder.require_owner("c1")

        assert json.loads(paper or b"") == {"form": 1, "cluster": "c1", "node": "n1"}
        assert place.get(NODE) == paper
        assert place.names() == [NODE]

    @pytest.mark.parametrize(("cluster", "node"), [("c2", "n1"), ("c1", "n2")])
    def test_the_folder_of_another_is_refused_and_stays(self, store: Store, place: Place, cluster: str, node: str) -> None:
        NodeFolder(store, "n1").claim_folder("c1")
        paper = place.get(NODE)

        for act in (NodeFolder(store, node).claim_folder, NodeFolder(store, node).require_owner):
            with pytest.raises(PermanentError) as caught:
                act(cluster)
            assert "node n1 of cluster c1" in caught.value.message
            assert f"node {node} of cluster {cluster}" in caught.value.message
        assert place.get(NODE) == paper

    def test_a_folder_with_files_that_nobody_claimed_is_refused(self, folder: NodeFolder, place: Place) -> None:
        place.put("data/root.a/0/a.tsfile", b"the receiver's own")
        with pytest.raises(PermanentError, match=r"1 files below data/ that are no node's, data/root\.a/0/a\.tsfile"):
            folder.claim_folder("c1")
        assert place.names() == ["data/root.a/0/a.tsfile"]

    @pytest.mark.parametrize(
        "torn", [b"", b"{", b'{"form": 1, "cluster": "c1"}', b'{"form": 1, "cluster": 3, "node": "n1"}']
    )
    def test_a_torn_claim_is_told_and_not_written_over(self, folder: NodeFolder, place: Place, torn: bytes) -> None:
        place.put(NODE, torn)
        for act in (folder.claim_folder, folder.require_owner):
            with pytest.raises(CorruptionError, match=r"node\.json is damaged"):
                act("c1")
        assert place.get(NODE) == torn

    def test_a_claim_by_a_newer_version_is_left_alone(self, folder: NodeFolder, place: Place) -> None:
        place.put(NODE, b'{"form": 2, "cluster": "c1", "node": "n1", "more": []}')
        with pytest.raises(SchemaTooNewError, match="form 2"):
            folder.claim_folder("c1")

    def test_a_released_folder_keeps_nothing_of_ours_and_may_be_claimed_anew(self, folder: NodeFolder, place: Place) -> None:
        folder.claim_folder("c1")
        place.put("data/root.a/0/a", b"a")
        folder.put_table(1, b"table")
        folder.put_schema("root.a", b"schema")
        folder.create_snapshot(["data/root.a/0/a"], "move")
        folder.remove_files(["data/root.a/0/a"])

        for _ in range(2):
            folder.release_folder("c1")

        assert place.names() == []
        assert "data" not in folder.store.list_folder("")
        NodeFolder(folder.store, "n9").claim_folder("c2")

    def test_a_release_leaves_files_that_are_there(self, folder: NodeFolder, place: Place) -> None:
        folder.claim_folder("c1")
        place.put("data/root.a/0/left over", b"a")
        folder.release_folder("c1")
        assert place.names() == ["data/root.a/0/left over"]

    @pytest.mark.parametrize(("cluster", "node"), [("c2", "n1"), ("c1", "n2")])
    def test_the_folder_of_another_is_not_released(self, store: Store, place: Place, cluster: str, node: str) -> None:
        mine = NodeFolder(store, "n1")
        mine.claim_folder("c1")
        mine.put_table(1, b"table")
        NodeFolder(store, node).release_folder(cluster)
        assert place.names() == [NODE, ".tidemark/table/1"]

    # tables

    def test_the_newest_table_is_kept_whatever_its_bytes(self, folder: NodeFolder) -> None:
        assert folder.read_table() is None
        papers = {9: b"\x01\x00\xff\n{}\n", 10: b"", 11: bytes(range(256)) * 200}
        for epoch, paper in papers.items():
            for _ in range(2):
                folder.put_table(epoch, paper)
            assert folder.read_table() == (epoch, paper)

    def test_an_older_table_changes_nothing(self, folder: NodeFolder, place: Place) -> None:
        folder.put_table(7, b"seven")
        names = place.names()
        for epoch in (6, 1):
            with pytest.raises(StaleEpochError, match="node n1 has partition table 7"):
                folder.put_table(epoch, b"old")
        assert folder.read_table() == (7, b"seven")
        assert place.names() == names

    def test_a_task_that_slept_between_its_look_and_its_write_hides_nothing(self, folder: NodeFolder, store: Store) -> None:
        late = NodeFolder(_Sleeping(store, lambda: folder.put_table(8, b"eight")), "n1")  # type: ignore[arg-type]
        folder.put_table(6, b"six")

        late.put_table(7, b"seven")

        assert folder.read_table() == (8, b"eight")

    def test_a_table_that_is_rolled_back_uncovers_the_one_before(self, folder: NodeFolder) -> None:
        for epoch in (1, 2, 3):
            folder.put_table(epoch, f"{epoch}".encode())
        for _ in range(2):
            folder.withdraw_table(3)
            assert folder.read_table() == (2, b"2")
        folder.put_table(3, b"another plan")
        assert folder.read_table() == (3, b"another plan")

    def test_another_plan_of_the_same_epoch_replaces_what_was_left_of_one(self, folder: NodeFolder) -> None:
        folder.put_table(3, b"one")
        folder.put_table(3, b"other")
        assert folder.read_table() == (3, b"other")

    def test_two_tables_are_kept_and_no_more(self, folder: NodeFolder, place: Place) -> None:
        for epoch in range(1, 12):
            folder.put_table(epoch, b"x")
        assert place.names() == [".tidemark/table/10", ".tidemark/table/11"]

    @pytest.mark.parametrize("cut", [0, 1, 20, -1])
    def test_a_torn_table_is_told_and_may_be_written_again(self, folder: NodeFolder, place: Place, cut: int) -> None:
        folder.put_table(4, b"whole table")
        whole = place.get(".tidemark/table/4") or b""
        place.put(".tidemark/table/4", whole[:cut])

        with pytest.raises(CorruptionError, match="table/4 is damaged"):
            folder.read_table()

        folder.put_table(4, b"whole table")
        assert place.get(".tidemark/table/4") == whole

    def test_a_table_of_another_epoch_or_of_another_kind_is_no_table(self, folder: NodeFolder, place: Place) -> None:
        folder.put_table(4, b"four")
        four = place.get(".tidemark/table/4") or b""
        place.put(".tidemark/table/5", four)
        with pytest.raises(CorruptionError, match="holds the table of epoch 4"):
            folder.read_table()
        place.put(".tidemark/table/5", four.replace(b'"table"', b'"other"'))
        with pytest.raises(CorruptionError, match="of kind 'other'"):
            folder.read_table()
        place.put(".tidemark/table/5", four.replace(b'"form": 1', b'"form": 7'))
        with pytest.raises(SchemaTooNewError, match="form 7"):
            folder.read_table()

    # schema

    @pytest.mark.parametrize("database", ["root.a", "root.ä b/c", "", "..", "x" * 300, "$HOME;`'\"\n"])
    def test_the_schema_of_a_database_is_kept_and_replaced(self, folder: NodeFolder, place: Place, database: str) -> None:
        assert folder.read_schema(database) is None
        for paper in (b"one", b"two\n\x00", b"two\n\x00"):
            folder.put_schema(database, paper)
            assert folder.read_schema(database) == paper
        assert len(place.names()) == 1
        for _ in range(2):
            folder.drop_schema(database)
        assert folder.read_schema(database) is None
        assert place.names() == []

    def test_long_names_that_begin_alike_are_two_databases(self, folder: NodeFolder) -> None:
        folder.put_schema("x" * 300, b"one")
        folder.put_schema("x" * 301, b"two")
        assert (folder.read_schema("x" * 300), folder.read_schema("x" * 301)) == (b"one", b"two")

    def test_all_that_are_kept_are_found_again(self, folder: NodeFolder, place: Place) -> None:
        assert list(folder.read_schemas()) == []
        for database in ("root.a", "root.b", "x" * 300):
            folder.put_schema(database, database.encode())
        place.put(".tidemark/schema/root.b.schema", b"torn")
        *whole, torn = sorted(folder.read_schemas(), key=lambda kept: isinstance(kept, CorruptionError))
        assert {(kept.about, kept.body) for kept in whole} == {("root.a", b"root.a"), ("x" * 300, b"x" * 300)}  # type: ignore[union-attr]
        assert isinstance(torn, CorruptionError) and "root.b.schema" in torn.message

    def test_a_torn_or_exchanged_schema_is_told(self, folder: NodeFolder, place: Place) -> None:
        folder.put_schema("root.a", b"series")
        whole = place.get(".tidemark/schema/root.a.schema") or b""
        place.put(".tidemark/schema/root.b.schema", whole)
        place.put(".tidemark/schema/root.a.schema", whole[:-1])
        with pytest.raises(CorruptionError, match="is damaged"):
            folder.read_schema("root.a")
        with pytest.raises(CorruptionError, match=r"is the schema of root\.a"):
            folder.read_schema("root.b")

    # snapshots

    def test_a_snapshot_outlives_its_files(self, folder: NodeFolder, place: Place) -> None:
        locations = ["data/root.a/0/1.tsfile", "data/root.a/0/1.tsfile.abc.mods", "data/root.b/-3/ä '2.tsfile"]
        for location in locations:
            place.put(location, location.encode())

        taken = folder.create_snapshot(locations, "e2-17")
        folder.remove_files(locations)

        assert taken.linked and taken.label == "e2-17"
        assert set(taken.paths) == set(locations)
        assert {at: folder.store.read(path) for at, path in taken.paths.items()} == {at: at.encode() for at in locations}
        assert folder.list_snapshots() == ["e2-17"]
        assert folder.list_leftovers([]) == []
        for _ in range(2):
            folder.drop_snapshot("e2-17")
        assert folder.list_snapshots() == []
        assert place.names() == []

    def test_a_snapshot_is_of_all_files_or_of_none(self, folder: NodeFolder, place: Place) -> None:
        for number in range(5):
            place.put(f"data/{number}", b"x")
        with pytest.raises(SourceVanishedError, match=r"1 files went away at node n1 .* data/gone"):
            folder.create_snapshot([*(f"data/{number}" for number in range(5)), "data/gone"], "move")
        assert folder.list_snapshots() == []
        assert place.names() == [f"data/{number}" for number in range(5)]

    def test_a_source_that_compacts_while_it_is_linked_is_listed_anew(self, folder: NodeFolder, place: Place) -> None:
        place.put("data/1", b"1")
        place.put("data/2", b"2")
        listed = ["data/1", "data/2"]
        place.put("data/merged", b"12")
        folder.remove_files(["data/1", "data/2"])

        with pytest.raises(SourceVanishedError):
            folder.create_snapshot(listed, "move")

        assert dict(folder.create_snapshot(folder.list_sizes(), "move").paths) == {
            "data/merged": ".tidemark/snapshot/move/data/merged"
        }

    def test_a_snapshot_taken_again_has_what_is_asked_now_and_nothing_else(self, folder: NodeFolder, place: Place) -> None:
        for name in ("a", "b", "c"):
            place.put(f"data/{name}", name.encode())
        place.put(".tidemark/snapshot/move/data/b", b"from another life")
        folder.create_snapshot(["data/a", "data/b"], "move")

        taken = folder.create_snapshot(["data/b", "data/c"], "move")

        assert sorted(taken.paths) == ["data/b", "data/c"]
        there = [name for name in place.names() if name.startswith(".tidemark")]
        assert there == [".tidemark/snapshot/move/data/b", ".tidemark/snapshot/move/data/c"]
        assert folder.store.read(taken.paths["data/b"]) == b"b"

    def test_snapshots_do_not_disturb_each_other(self, folder: NodeFolder, place: Place) -> None:
        place.put("data/a", b"a")
        one, other = folder.create_snapshot(["data/a"], "one"), folder.create_snapshot(["data/a"], "other")
        folder.drop_snapshot("one")
        assert folder.store.stat(one.paths["data/a"]) is None
        assert folder.store.read(other.paths["data/a"]) == b"a"

    def test_a_snapshot_of_nothing_is_one(self, folder: NodeFolder, place: Place) -> None:
        assert dict(folder.create_snapshot([], "move").paths) == {}
        assert place.names() == []

    def test_without_hard_links_files_are_read_in_place(self, store: Store, place: Place) -> None:
        place.put("data/a", b"a")
        for plain in (_NoLinks(store), _RefusedLinks(store)):
            folder = NodeFolder(plain, "n1")  # type: ignore[arg-type]
            taken = folder.create_snapshot(["data/a"], "move")
            assert not taken.linked
            assert dict(taken.paths) == {"data/a": "data/a"}
            with pytest.raises(SourceVanishedError):
                folder.create_snapshot(["data/a", "data/gone"], "move")
            folder.drop_snapshot("move")
        assert place.names() == ["data/a"]

    @pytest.mark.parametrize("label", ["", "a/b", "..", "."])
    def test_a_label_is_one_folder(self, folder: NodeFolder, label: str) -> None:
        for act in (lambda: folder.create_snapshot([], label), lambda: folder.drop_snapshot(label)):
            with pytest.raises(ValueError, match="no label"):
                act()

    # files

    def test_only_files_of_the_catalog_are_removed(self, folder: NodeFolder, place: Place) -> None:
        folder.claim_folder("c1")
        place.put("data/a", b"a")
        place.put("data/b", b"b")
        for path in (NODE, "data", "data/../.tidemark/node.json", "database/x", "/data/a", ""):
            with pytest.raises(TidemarkError):
                folder.remove_files(["data/a", path])
        assert place.names() == [NODE, "data/a", "data/b"]

        for _ in range(2):
            folder.remove_files(["data/a", "data/none"])
        folder.remove_files([])
        assert place.names() == [NODE, "data/b"]

    def test_what_nobody_knows_is_left_over(self, folder: NodeFolder, place: Place) -> None:
        folder.claim_folder("c1")
        folder.put_table(1, b"t")
        place.put("data/root.a/0/known", b"1", mtime=1_000)
        place.put("data/root.a/0/old.part", b"22", mtime=1_000)
        place.put("data/root.a/0/unknown", b"333", mtime=2_000)
        folder.create_snapshot(["data/root.a/0/known"], "move")

        assert folder.list_leftovers(["data/root.a/0/known"]) == ["data/root.a/0/old.part", "data/root.a/0/unknown"]
        assert folder.list_leftovers({"data/root.a/0/known"}, before=1_500) == ["data/root.a/0/old.part"]
        assert folder.list_sizes() == {"data/root.a/0/known": 1, "data/root.a/0/old.part": 2, "data/root.a/0/unknown": 3}
        folder.remove_files(folder.list_leftovers(["data/root.a/0/known"]))
        assert folder.list_leftovers(["data/root.a/0/known"]) == []

    def test_an_empty_node_has_nothing_left_over(self, folder: NodeFolder) -> None:
        assert folder.list_leftovers(["data/a"]) == []
        assert folder.list_sizes() == {}
        assert folder.list_snapshots() == []

    def test_digests_are_of_what_lies_there_now(self, folder: NodeFolder, place: Place) -> None:
        place.put("data/a", b"a")
        place.put("data/b", b"b")
        asked = {"data/b": 1, "data/none": 1, "data/a": 0}
        assert folder.compute_digests(asked) == {"data/b": sha(b"b"), "data/none": None, "data/a": sha(b"a")}
        place.put("data/b", b"r")
        assert folder.compute_digests({"data/b": 1}) == {"data/b": sha(b"r")}
        place.put("data/b", b"rotted")
        assert folder.compute_digests({"data/b": 1}) == {"data/b": 6}, "of another length: not read"
        assert folder.compute_digests({}) == {}

    def test_free_space_is_that_of_the_nodes_disk(self, folder: NodeFolder) -> None:
        free = folder.free_bytes()
        assert free is None or free > 0


class _Passing:
    """A store that passes everything on but what a test changes."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


class _NoLinks(_Passing):
    @property
    def properties(self) -> object:
        return replace(self._inner.properties, hard_links=False)


class _RefusedLinks(_Passing):
    """A file system without hard links, as it answers once it is asked."""

    def link(self, _pairs: object) -> None:
        raise PermanentError("cannot be hard-linked: operation not supported")


class _Sleeping(_Passing):
    """Somebody else is at work between this one's look and its write."""

    def __init__(self, inner: Store, meanwhile: object) -> None:
        super().__init__(inner)
        self._meanwhile = meanwhile

    def publish(self, path: str, data: bytes) -> None:
        self._meanwhile()  # type: ignore[operator]
        self._inner.publish(path, data)
