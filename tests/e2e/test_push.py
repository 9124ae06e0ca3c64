"""A Tidemark at the site pushes to a remote receiver, where another one loads; and nodes between: senders and receivers.

What needs no more than an sshd at the far end: the landing, its manifest, the answer that is fetched by the next run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.expected import SITES, RealSite
from tests.landing_maker import tsfiles_below
from tests.services.deployed import SITE_ID, Deployed
from tests.services.filling_site import FillingSite
from tests.services.sshd import Sshd

pytestmark = pytest.mark.full
FOLDERS = pytest.mark.parametrize("site", SITES.values(), ids=list(SITES))
NEW = SITES["2.0.1-beta"]


@dataclass
class Receiving:
    """The Tidemark beside the receiver's files: it knows no site and no link."""

    folder: Path
    root: Path

    def made(self) -> Deployed:
        deployed = Deployed(self.folder, NEW, Path("/nowhere"), self.root, here=True)
        self.folder.mkdir()
        deployed.config.write_text(f'[receivers.here]\nstore = "file://{self.root}"\n')
        return deployed


@pytest.fixture
def site_root(tmp_path: Path) -> Path:
    return tmp_path / "site"


def pushed_and_proved(pushing: Deployed, receiving: Deployed) -> None:
    """Sync to the far receiver, load there, read there; the answers come back with the next sync."""
    files = len(tsfiles_below(pushing.site_root, pushing.site.data))
    run = pushing.run("sync", "plant1")
    assert (run["state"], run["files"], run["loaded"]) == ("landed", files, 0)
    assert pushing.run("load", expect=(2,))["hint"]  # only the Tidemark beside the files can
    loaded = receiving.run("load")
    assert (loaded["loaded"], loaded["quarantined"], loaded["refused"]) == (files, 0, 0)
    assert receiving.read() == pushing.site.rows()
    assert receiving.run("coverage")["complete"] is True
    assert receiving.run("verify")["differences"] == []
    receiving.run("merge")
    assert receiving.read("points.parquet", "--site", "plant1") == pushing.site.rows()
    assert receiving.run("verify")["differences"] == []
    assert receiving.run("verify", "--deep", expect=(23,))["differences"] == []  # the site's points are out of its reach
    again = pushing.run("sync", "plant1")
    assert again["state"] == "nothing"
    (link,) = pushing.run("status")["links"]
    assert (link["backlog_files"], link["state"]) == (0, "idle")
    proof = pushing.run("verify")
    assert proof["differences"] == [] and proof["checked"] >= files
    assert [one["what"] for one in proof["not_compared"]] == ["the bytes at receiver centre"]
    assert pushing.run("verify", "--deep", expect=(2,))["hint"]
    assert not [p for p in pushing.site_root.rglob(".tidemark/*/*/**/*") if p.is_file()]


@FOLDERS
def test_a_site_pushes(site: RealSite, tmp_path: Path, site_root: Path, sshd: Sshd) -> None:
    FillingSite.whole(site, site_root)
    root = sshd.new_folder("receiver")
    pushing = Deployed(tmp_path / "at_site", site, site_root, root, receiver_through=sshd).write()
    pushed_and_proved(pushing, Receiving(tmp_path / "at_centre", root).made())


@pytest.mark.parametrize("tier", ["sshd_sftp_only", pytest.param("sshd_chroot", marks=pytest.mark.soak)])
def test_a_receiver_with_less_than_a_shell(
    tier: str, tmp_path: Path, site_root: Path, request: pytest.FixtureRequest
) -> None:
    server: Sshd = request.getfixturevalue(tier)
    FillingSite.whole(NEW, site_root)
    root = server.new_folder("receiver")
    pushing = Deployed(tmp_path / "at_site", NEW, site_root, root, receiver_through=server, here=True).write()
    pushed_and_proved(pushing, Receiving(tmp_path / "at_centre", root).made())


def test_both_ends_are_remote(tmp_path: Path, sshd: Sshd, sshd_posix: Sshd) -> None:
    """A node between, which sees neither end's files: the site's server has python, the receiver's has not."""
    site_root, root = sshd.new_folder("site"), sshd_posix.new_folder("receiver")
    FillingSite.whole(NEW, site_root)
    between = Deployed(tmp_path / "between", NEW, site_root, root, site_through=sshd, receiver_through=sshd_posix).write()
    pushed_and_proved(between, Receiving(tmp_path / "at_centre", root).made())


def test_what_a_far_load_missed_is_sent_again(tmp_path: Path, site_root: Path, sshd: Sshd) -> None:
    """Bytes lost between landing and load: the receipt says so, the next sync sends them, the next load has them."""
    FillingSite.whole(NEW, site_root)
    root = sshd.new_folder("receiver")
    pushing = Deployed(tmp_path / "at_site", NEW, site_root, root, receiver_through=sshd, here=True).write()
    receiving = Receiving(tmp_path / "at_centre", root).made()
    pushing.run("sync", "plant1")
    victims = sorted(root.glob("landing/*/*/**/*.tsfile"))[:3]
    victims[0].unlink()
    victims[1].write_bytes(victims[1].read_bytes()[:-10])
    victims[2].write_bytes(b"TsFile" + bytes(100))
    answer = receiving.run("load", expect=(7,))
    assert answer["quarantined"] == 3
    assert receiving.run("coverage", expect=(20,))["complete"] is False
    again = pushing.run("sync", "plant1")
    assert (again["state"], again["files"]) == ("landed", 3)
    assert receiving.run("load")["loaded"] == 3
    assert receiving.read() == NEW.rows()
    assert receiving.run("coverage")["complete"] is True


def test_a_node_that_receives_and_sends(tmp_path: Path, sshd: Sshd) -> None:
    """A regional centre: it pulls a site's files into its own catalog and pushes its own IoTDB's files on to the main
    centre; and it hands the site's files on as well, from one far end to another (seed 000: node 15 between 14 and 16)."""
    old = SITES["0.12.0"]
    plant, own = sshd.new_folder("plant"), tmp_path / "own"
    FillingSite.whole(old, plant)
    FillingSite.whole(NEW, own)
    here, main = tmp_path / "regional_catalog", sshd.new_folder("main")
    far = f'host_key = "{sshd.host_key}"\nkey = "{sshd.key}"'
    regional = Deployed(tmp_path / "regional", NEW, own, here)
    regional.folder.mkdir()
    regional.config.write_text(
        f'[receivers.here]\nstore = "file://{here}"\n'
        f'[receivers.main]\nstore = "{sshd.url(main)}"\n{far}\n'
        f'[sites.plant]\nid = "{SITE_ID}"\nstore = "{sshd.url(plant)}"\n{far}\n'
        f'data = ["{old.data[0]}", "{old.data[1]}"]\nschema = "{old.schema}"\n'
        f'[sites.own]\nid = "1{SITE_ID[1:]}"\nstore = "file://{own}"\n'
        f'data = ["{NEW.data[0]}", "{NEW.data[1]}"]\nschema = "{NEW.schema}"\n'
        '[links.in]\nsite = "plant"\nreceiver = "here"\n'
        '[links.out]\nsite = "own"\nreceiver = "main"\n'
        '[links.on]\nsite = "plant"\nreceiver = "main"\n'
    )
    assert regional.run("sync", "in")["state"] == "loaded"
    assert regional.run("sync", "out")["state"] == "landed"
    assert regional.read("here.csv", "--receiver", "here") == old.rows()
    at_main = Receiving(tmp_path / "at_main", main).made()
    at_main.run("load")
    assert at_main.read("own.csv") == NEW.rows()
    assert regional.run("sync", "on")["state"] == "landed"
    refused = at_main.run("load", expect=(0, 21))["refused"]  # devices that both have belong to the node's own IoTDB
    assert refused == sum(1 for path in tsfiles_below(plant, old.data) if "root.plant" in path)
    assert regional.run("verify", "--deep", "--receiver", "here")["differences"] == []
    assert regional.run("coverage", "--receiver", "here")["complete"] is True
    assert regional.read("here.csv", "--receiver", "here") == old.rows()
