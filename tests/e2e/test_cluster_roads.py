"""A cluster of real servers grows: slots go from node to node, or where one cannot reach another through this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_world import last_json
from tests.moving_world import put
from tests.services.sshd import FarEnd, Sshd
from tests.services.wire import Wire
from tidemark.app import open_app
from tidemark.cli.main import main
from tidemark.cluster.membership.change import init_cluster
from tidemark.settings.load import load_settings

pytestmark = pytest.mark.real("sshd")
FILES, SIZE = 12, 1_500_000

Ask = Callable[..., dict[str, Any]]


@dataclass
class World:
    """n1 and n2 behind one server, reached by the line; n3 behind another."""

    folder: Path
    near: Sshd
    far: Sshd
    line: Wire

    def __post_init__(self) -> None:
        (self.folder / "centre").mkdir()
        self.nodes = {name: (self.far if name == "n3" else self.near).new_folder(name) for name in ("n1", "n2", "n3")}
        self.settings("n1", "n2")
        app = open_app(load_settings(str(self.folder / "tidemark.toml"), {}))
        for number in range(FILES):
            put(app, app.receiver_settings(), "root.sg", number, number, "", f"{number} ".ljust(SIZE // 3, "x"))
        init_cluster(app, app.receiver_settings())
        app.ledger.close()
        self.settings("n1", "n2", "n3")

    def settings(self, *names: str) -> None:
        lines = ['[receivers.centre]\nstore = "centre"\n[cluster]\nreplicas = 1\nquorum = 1\nslots = 60\ngrace_hours = 0']
        for name in names:
            server = self.far if name == "n3" else self.near
            port = self.line.port if server is self.near else server.port
            url = server.url(self.nodes[name]).replace(f":{server.port}/", f":{port}/")
            lines.append(f'[nodes.{name}]\nstore = "{url}"\nhost_key = "{server.host_key}"\nkey = "{server.key}"')
        (self.folder / "tidemark.toml").write_text("\n".join(lines))


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> dict[str, Any]:
        found = main([*words, "--json", "--quiet", "--config", str(tmp_path / "tidemark.toml")])
        said = capsys.readouterr()
        assert found == 0, f"{words}: {said.out}{said.err}"
        return last_json(said.out)

    return run


@pytest.mark.full
def test_what_moves_does_not_come_through_this_process(tmp_path: Path, start_sshd: Callable[..., Sshd], ask: Ask) -> None:
    near, far = start_sshd(), start_sshd()
    with Wire(near.port, both=True) as line:
        World(tmp_path, near, far, line)
        before = line.came

        added = ask("cluster", "add", "n3")

        assert added["state"] == "done" and added["moved_bytes"] > 3 * SIZE
        assert line.came - before < added["moved_bytes"] / 2
    expected = [{"from": name, "to": "n3", "road": "direct"} for name in ("n1", "n2")]
    assert added["roads"] == expected
    assert ask("cluster", "show")["roads"] == expected


@pytest.mark.full
def test_where_a_node_reaches_no_other_its_files_are_relayed_and_that_is_told(
    tmp_path: Path, start_sshd: Callable[..., Sshd], ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    near, far = start_sshd(FarEnd.SHELL, {"AllowAgentForwarding": "no"}), start_sshd()
    with Wire(near.port, both=True) as line:
        World(tmp_path, near, far, line)

        added = ask("cluster", "add", "n3")
        assert added["state"] == "done" and added["moved_bytes"] > 3 * SIZE
        assert ask("cluster", "check")["problems"] == []
        main(["cluster", "show", "--config", str(tmp_path / "tidemark.toml")])
        shown = " ".join(capsys.readouterr().out.split())
    assert [(road["from"], road["to"]) for road in added["roads"]] == [("n1", "n3"), ("n2", "n3")]
    assert all("its sshd forwards no agent" in road["road"] for road in added["roads"]), json.dumps(added)
    assert "n1 to n3: relayed:" in shown
