"""`replica verify`: members are equal by the digests of their disks, or the file that differs is named."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.clustered import LoadedCentre
from tidemark.cluster.replicas.commit import record_slots
from tidemark.operations.replicas import MemberVerified, ReplicasVerified, verify_replicas
from tidemark.proof.prove import coverage
from tidemark.settings.model import NodeSettings
from tidemark.stores.local import LocalStore
from tidemark.stores.protocol import Range

NODES = ("n1", "n2", "n3")


@pytest.fixture
def centre(tmp_path: Path) -> LoadedCentre:
    made = LoadedCentre(tmp_path)
    made.app.settings.nodes.update({name: NodeSettings(name, f"file://{made.node(name)}") for name in NODES})
    made.land(1, 2, 3)
    made.load()
    with made.cluster() as cluster:
        record_slots(cluster)
    return made


def verified(centre: LoadedCentre) -> ReplicasVerified:
    return verify_replicas(centre.app, centre.receiver)


def test_members_that_are_equal_have_one_root(centre: LoadedCentre) -> None:
    found = verified(centre)
    assert (found.wrong, found.exit_code, found.as_json()["ok"]) == ((), 0, True)
    (group,) = (group for group in found.groups if group.group == centre.header)
    assert {(member.root, member.files) for member in group.members} == {(group.root, 3)}
    assert verified(centre) == found


def test_a_file_that_differs_is_named_with_its_node(centre: LoadedCentre) -> None:
    rotten, gone, short = centre.at("n1")
    place = centre.node("n1") / rotten
    place.write_bytes(bytes([place.read_bytes()[0] ^ 1]) + place.read_bytes()[1:])
    (centre.node("n2") / gone).unlink()
    (centre.node("n3") / short).write_bytes(b"short")
    told = verified(centre)
    assert [(member.node, [one.location for one in member.differences]) for member in group_of(told, centre)] == [
        ("n1", [rotten]),
        ("n2", [gone]),
        ("n3", [short]),
    ]
    words = " ".join(told.wrong)
    assert "has digest" in words and "is missing" in words and "has 5 bytes" in words
    assert told.exit_code == 20 and told.as_json()["hint"] == "./tidemark cluster check --repair"


def test_a_member_that_is_behind_lacks_what_its_log_does_not_tell(centre: LoadedCentre) -> None:
    centre.away = {"n3"}
    centre.land(4)
    centre.load()
    (silent,) = (member for member in group_of(verified(centre), centre) if member.node == "n3")
    assert "nobody answers" in silent.why and not silent.root
    centre.away = set()
    (late,) = (member for member in group_of(verified(centre), centre) if member.node == "n3")
    assert [one.found for one in late.differences] == ["is not in its log"]


def test_a_member_whose_log_is_gone_is_not_equal(centre: LoadedCentre) -> None:
    shutil.rmtree(centre.node("n2") / ".tidemark" / "log")
    (emptied,) = (member for member in group_of(verified(centre), centre) if member.node == "n2")
    assert [one.found for one in emptied.differences] == ["is not in its log"] * 3


def test_with_cached_digests_nothing_that_agrees_is_read_again(centre: LoadedCentre) -> None:
    grow_old(centre)
    first = verified(centre)
    read = count_reads(centre)
    assert verify_replicas(centre.app, centre.receiver, cached=True) == first and read == []
    assert verified(centre) == first and len(read) == 3, "without the option every node's files are read"


def test_with_cached_digests_a_file_that_changed_is_read_again(centre: LoadedCentre) -> None:
    grow_old(centre)
    verified(centre)
    rotten, gone, _ = centre.at("n1")
    place = centre.node("n1") / rotten
    place.write_bytes(bytes([place.read_bytes()[0] ^ 1]) + place.read_bytes()[1:])
    (centre.node("n2") / gone).unlink()
    told = verify_replicas(centre.app, centre.receiver, cached=True)
    found = [(member.node, [one.location for one in member.differences]) for member in group_of(told, centre)]
    assert found == [("n1", [rotten]), ("n2", [gone]), ("n3", [])]


def test_a_digest_of_a_file_that_has_just_changed_is_not_kept(centre: LoadedCentre) -> None:
    """It may change again within the second that a listing tells."""
    verified(centre)
    read = count_reads(centre)
    verify_replicas(centre.app, centre.receiver, cached=True)
    assert len(read) == 3


def test_coverage_tells_how_many_copies_are_proved(centre: LoadedCentre) -> None:
    def told() -> tuple[int, int, int]:
        found = coverage(centre.app, centre.receiver).replicas
        assert found is not None and (found.oldest is not None) == bool(found.proved)
        return found.copies, found.proved, found.differ

    assert told() == (9, 0, 0)
    verified(centre)
    assert told() == (9, 9, 0)
    (centre.node("n2") / centre.at("n2")[0]).unlink()
    verified(centre)
    assert told() == (9, 8, 1)
    report = coverage(centre.app, centre.receiver)
    assert report.exit_code == 20 and "1 of 9 copies at data nodes" in report.as_json()["error"]
    centre.land(4)
    centre.load()
    assert told() == (12, 8, 1), "what came since is not proved"


def grow_old(centre: LoadedCentre) -> None:
    for name in NODES:
        for at in centre.at(name):
            os.utime(centre.node(name) / at, (1_600_000_000, 1_600_000_000))


def count_reads(centre: LoadedCentre) -> list[str]:
    """Nodes whose files are digested from now on."""
    read: list[str] = []

    class Counted(LocalStore):
        def digest_ranges(self, ranges: Sequence[Range]) -> list[str | None]:
            read.append(self.url)
            return super().digest_ranges(ranges)

    opened = centre.app.opener
    centre.app.opener = lambda a: Counted(a.url.removeprefix("file://")) if "/nodes/" in a.url else opened(a)
    return read


def group_of(found: ReplicasVerified, centre: LoadedCentre) -> list[MemberVerified]:
    """The members of the group that has the files, by name."""
    (group,) = (group for group in found.groups if group.group == centre.header)
    return sorted(group.members, key=lambda member: member.node)
