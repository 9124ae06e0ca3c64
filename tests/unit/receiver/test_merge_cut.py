"""On several nodes a file that spans time partitions is cut: each part lies at its own slot's nodes, reads are the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.centre import d1, rows
from tests.clustered import Clustered
from tests.small_files import deletion, source
from tidemark.cluster.health import check as cluster_check
from tidemark.cluster.slots.hash_ring import data_slot

WEEK = 604_800_000
NODES = ("n1", "n2", "n3", "n4", "n5")
FAR = 40  # partitions apart: the slots of 0 and 40 have different nodes
POINTS = ((1, 10), (2, 20), (FAR * WEEK + 1, 30), (FAR * WEEK + 2, 40))


@pytest.fixture
def centre(tmp_path: Path) -> Clustered:
    return Clustered(tmp_path, replicas=1, quorum=1)


def visible(centre: Clustered) -> dict[str, tuple[str, int]]:
    """Location → role and the one partition of it."""
    found = centre.sql("SELECT location, role, partition_from, partition_to FROM catalog_file WHERE visible = 1")
    assert all(first == last for _, _, first, last in found)
    return {location: (role, first) for location, role, first, _ in found}


def sound(centre: Clustered) -> None:
    with centre.cluster() as cluster:
        for node in cluster.nodes:
            cluster.open_folder(node).put_table(cluster.epoch, cluster.table_bytes)
    assert cluster_check.check_cluster(centre.app, centre.receiver).problems == ()


def test_a_spanning_file_is_cut_and_each_half_lies_at_its_own_group(centre: Clustered) -> None:
    table = centre.begin(*NODES)
    centre.sender().land({source(1): d1(*POINTS)})
    assert centre.load().exit_code == 0
    owners = [table.group_of(data_slot("root.sg", partition, table.slots, table.hash))[0] for partition in (0, FAR)]
    assert len(set(owners)) == 2
    ((whole, holders),) = centre.copies().items()
    assert holders == set(NODES), "whole, it lies at the nodes of all partitions between"

    result = centre.merge()
    assert (result.groups, result.files_in, result.files_out, result.rows, result.exit_code) == (1, 1, 2, 4, 0)
    assert centre.rows() == rows(*POINTS)
    halves = visible(centre)
    assert sorted(halves.values()) == [("merged", 0), ("merged", FAR)]
    assert {centre.copies()[at] == {owners[partition == FAR]} for at, (_, partition) in halves.items()} == {True}
    accounts = centre.sql("SELECT points_in, points_out, overwritten, deleted FROM merge_account")
    assert [tuple(account) for account in accounts] == [(2, 2, 0, 0)] * 2
    assert centre.sql("SELECT count(DISTINCT merged_id), count(DISTINCT source_id) FROM lineage") == [(2, 1)]
    assert centre.copies()[whole] == set(NODES), "the source goes when it is settled, as every merge's"
    sound(centre)
    assert centre.merge().groups == 0, "what was cut is not cut again"


@pytest.mark.full
def test_it_is_cut_from_its_nodes_when_the_receiver_gave_it_up(centre: Clustered) -> None:
    centre.begin(*NODES)
    centre.sender().land({source(1): d1(*POINTS, mods=deletion("root.sg.d1.s", 2, 2))})
    assert centre.load().exit_code == 0
    centre.empty_cache()
    assert centre.merge().files_out == 2
    assert centre.rows() == rows(POINTS[0], *POINTS[2:])
    centre.empty_cache()
    assert centre.rows() == rows(POINTS[0], *POINTS[2:])


def test_what_comes_late_and_overlaps_puts_it_together_again(centre: Clustered) -> None:
    centre.begin(*NODES)
    sender = centre.sender()
    sender.land({source(2): d1(*POINTS)})
    centre.load()
    centre.merge()
    sender.land({source(1): d1((1, 99), (3, 33))})  # an older version: its 1 loses
    assert centre.load().exit_code == 0
    seen = rows(*POINTS[:2], (3, 33), *POINTS[2:])
    assert centre.rows() == seen
    assert centre.merge().files_in == 2
    assert centre.rows() == seen and sorted(visible(centre).values()) == [("merged", 0), ("merged", FAR)]
    sound(centre)


def test_without_a_table_nothing_is_cut(centre: Clustered) -> None:
    centre.sender().land({source(1): d1(*POINTS)})
    assert centre.load().exit_code == 0
    assert centre.merge().groups == 0
    assert centre.sql("SELECT role FROM catalog_file") == [("source",)]
