"""A small deployment on which each verb is run, and what it printed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "iotdb"
OLD, NEW = DATA / "0.12.0" / "data", DATA / "2.0.1-beta" / "data" / "datanode"
PLACE = "/srv/tidemark"  # what stands in the pages instead of the folder in which the story is played
SITE = """
[sites.{name}]
id = "{id}"
store = "{name}"
data = ["data/sequence", "data/unsequence"]
schema = "system/schema"

[links.{name}]
site = "{name}"
receiver = "centre"
{more}
"""
RECEIVER = '[receivers.centre]\nstore = "centre"\n'
PLANT1, PLANT2 = "8f14e45f-ceea-467f-9f3b-0d7ee8d2c1a4", "c9f0f895-fb98-4b91-9f5c-2b0d2c1a7e11"
NODES = """
[cluster]
replicas = 2
slots = 100
grace_hours = 0

[nodes.n1]
store = "nodes/n1"

[nodes.n2]
store = "nodes/n2"

[nodes.n3]
store = "nodes/n3"
"""


class Stage:
    """The folder of one deployment; `say` runs a command as a user would and keeps what it printed."""

    def __init__(self, folder: Path, shown: dict[str, str]) -> None:
        self.folder, self.shown = folder, shown
        command = folder / "tidemark"
        python = f'exec env PYTHONPATH="{ROOT / "plugins"}" "{sys.executable}" -P -m tidemark.cli "$@"'
        command.write_text(f"#!/bin/sh\n{python}\n")
        command.chmod(0o755)

    def say(self, name: str, command: str, lines: int = 24) -> str:
        """Run it; with a name, what it prints goes to the place of that name: `lines` of it, the middle left out."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TIDEMARK_")} | {
            "COLUMNS": "110"
        }
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=600,
        )
        code = f"\n(exit code {done.returncode})" if done.returncode else ""
        if name:
            text = f"$ {command}\n{shorter(self.tidy(done.stdout), lines)}{code}"
            self.shown[name] = self.shown.get(name, "") + f"```console\n{text}\n```\n"
        print(f"{name or '-':<18} {command}{code}", file=sys.stderr)
        if not name and done.returncode:
            print(done.stdout, file=sys.stderr)
        return done.stdout

    def tidy(self, text: str) -> str:
        text = text.replace(str(self.folder), PLACE).replace(str(ROOT), "/opt/tidemark")
        text = re.sub(r"Linux \d+\.\d+\.\d+\S*", "Linux 6.12.48", text)
        return "\n".join(line.rstrip() for line in text.rstrip().split("\n"))


def shorter(text: str, most: int) -> str:
    lines = text.split("\n")
    if len(lines) > most:
        lines = [*lines[: most - 6], f"… {len(lines) - most + 2} lines more …", *lines[-4:]]
    return "\n".join(lines)


def tell(*names: str) -> dict[str, str]:
    """Play all of it, or what is named; what each place of the pages shows."""
    shown: dict[str, str] = {}
    for play in (begin, transfer, decide, take_over, spread, replicate, airflow, benchmark, checkout):
        if names and play.__name__ not in names:
            continue
        folder = Path(tempfile.mkdtemp(prefix="tidemark-pages-"))
        try:
            play(Stage(folder, shown))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return shown


def site(stage: Stage, name: str = "plant1", late: bool = True) -> None:
    place = stage.folder / name
    shutil.copytree(OLD / "data" / "sequence", place / "data" / "sequence")
    shutil.copytree(OLD / "system", place / "system")
    (place / "data" / "unsequence").mkdir()
    if late:
        late_rows(stage, name)


def late_rows(stage: Stage, name: str = "plant1") -> None:
    shutil.copytree(OLD / "data" / "unsequence", stage.folder / name / "data" / "unsequence", dirs_exist_ok=True)


def settings(stage: Stage, more: str = "", before: str = RECEIVER) -> None:
    (stage.folder / "tidemark.toml").write_text(before + SITE.format(name="plant1", id=PLANT1, more=more))


def begin(stage: Stage) -> None:
    stage.say("version", "./tidemark version")
    stage.say("init", "./tidemark init")
    stage.say("init", "head -12 tidemark.toml")


def transfer(stage: Stage) -> None:
    site(stage, late=False)
    settings(stage)
    stage.say("doctor", "./tidemark doctor")
    stage.say("plan", "./tidemark plan plant1")
    stage.say("sync", "./tidemark sync plant1")
    stage.say("sync-again", "./tidemark sync plant1 --json | cut -c -200")
    late_rows(stage)
    stage.say("load", "./tidemark sync plant1 --no-load")
    stage.say("load", "./tidemark load")
    stage.say("merge", "./tidemark merge")
    stage.say("status", "./tidemark status")
    stage.say("runs", "./tidemark runs")
    stage.say("coverage", "./tidemark coverage --html coverage.html")
    stage.say("verify", "./tidemark verify")
    stage.say("verify", "./tidemark verify --deep")
    stage.say("read", "./tidemark read --tall --device 'root.plant1.line1.*' --out points.csv")
    stage.say("read", "head -3 points.csv")
    newest = "./tidemark read --device 'root.plant1.line1.*' --measurement 'a_floa*' --tail 1 --times instant"
    stage.say("read-tail", f"{newest} --out - --format jsonl")
    path = sorted((stage.folder / "plant1/data/sequence").rglob("*.tsfile"))[0].relative_to(stage.folder / "plant1")
    stage.say("why", f"./tidemark why {path}")
    for companion in stage.folder.glob(f"plant1/{path}*"):
        companion.unlink()
    stage.say("", "./tidemark sync plant1")
    stage.say("why-dropped", f"./tidemark why {path}")
    landed = sorted((stage.folder / "centre/data").rglob("*.tsfile"))[-1]
    data = bytearray(landed.read_bytes())
    data[len(data) // 2] ^= 1
    landed.chmod(0o644)
    landed.write_bytes(data)
    stage.say("verify-damaged", "./tidemark verify")
    stage.say("verify-damaged", "./tidemark verify --repair")
    stage.say("ledger-backup", "./tidemark ledger backup")
    stage.say("ledger-upgrade", "./tidemark ledger upgrade")
    stage.say("", "rm -r var/ledger.db*")
    stage.say("ledger-rebuild", "./tidemark status")
    stage.say("ledger-rebuild", "./tidemark ledger rebuild --yes")


def decide(stage: Stage) -> None:
    site(stage)
    settings(stage, 'deletes = "apply"\ndelete_limit_files = 2')
    bad = stage.folder / "plant1/data/sequence/root.plant1/0/2820/1795252019999-9-0-0.tsfile"
    sound = sorted(bad.parent.glob("*.tsfile"))[0]
    data = bytearray(sound.read_bytes())
    data[len(data) - 200 : len(data) - 100] = bytes(100)
    bad.write_bytes(data)
    shutil.copy2(f"{sound}.resource", f"{bad}.resource")
    stage.say("quarantine", "./tidemark sync plant1")
    stage.say("quarantine", "./tidemark quarantine list")
    stage.say("quarantine", "./tidemark quarantine drop 1 --yes")
    for name in sorted((stage.folder / "plant1/data/sequence/root.plant1/1").rglob("*.tsfile*")):
        name.unlink()
    said = stage.say("approve", "./tidemark sync plant1")
    stage.say("approve-status", "./tidemark status")
    run = re.search(r"\d{8}T\d{6}Z-[0-9a-f]{6}", said)
    assert run
    stage.say("approve", f"./tidemark approve {run[0]} --yes")
    stage.say("approve", "./tidemark sync plant1")
    with (stage.folder / "tidemark.toml").open("a") as file:
        file.write(SITE.format(name="plant2", id=PLANT2, more=""))
    other = stage.folder / "plant2/data/sequence/root.plant2/1/2819"
    shutil.copytree(OLD / "data/sequence/root.plant2/1/2819", other)
    (stage.folder / "plant2/data/unsequence").mkdir()
    (stage.folder / "plant2/system/schema").mkdir(parents=True)
    stage.say("owners", "./tidemark sync plant2")
    stage.say("owners", "./tidemark owners list")
    stage.say("owners", "./tidemark owners transfer 'root.plant2.**' --to plant2 --yes")
    stage.say("owners", "./tidemark sync plant2")


def take_over(stage: Stage) -> None:
    site(stage)
    settings(stage)
    shutil.copytree(stage.folder / "plant1/data", stage.folder / "delivered/data")
    stage.say("adopt", "./tidemark adopt plant1 delivered")
    stage.say("adopt", "./tidemark status")


def spread(stage: Stage) -> None:
    site(stage)
    settings(stage, before=RECEIVER + NODES)
    stage.say("", "./tidemark sync plant1")
    stage.say("cluster-init", "./tidemark cluster init")
    stage.say("cluster-show", "./tidemark cluster show")
    stage.say("cluster-route", "./tidemark cluster route root.plant1 2024-01-05T00:00:00Z")
    stage.say("cluster-add", f"./tidemark cluster plan add n4=file://{PLACE}/nodes/n4")
    stage.say("", f"./tidemark cluster add n4=file://{stage.folder}/nodes/n4")
    stage.say("cluster-check", "./tidemark cluster check")
    stage.say("cluster-check", "./tidemark why node:n4")


def replicate(stage: Stage) -> None:
    site(stage)
    settings(stage, before=RECEIVER + NODES.replace("replicas = 2", "replicas = 3\nmisses = 1"))
    stage.say("", "./tidemark sync plant1")
    stage.say("", "./tidemark cluster init")
    stage.say("replica-verify", "./tidemark replica verify")
    stage.say("replica-show", "./tidemark replica show")
    stage.say("replica-switchover", "./tidemark replica switchover n1 --to n3")
    stage.say("replica-resync", "./tidemark replica resync n3 --yes")
    node = stage.folder / "nodes/n2"
    node.rename(stage.folder / "nodes/away")
    stage.say("replica-watch", "./tidemark replica watch")
    stage.say("replica-away", "./tidemark replica show")
    (stage.folder / "nodes/away").rename(node)
    stage.say("replica-recover", "./tidemark replica recover n2")


def airflow(stage: Stage) -> None:
    site(stage)
    settings(stage)
    stage.say("up", "./tidemark up --port 0 --detach")
    stage.say("down", "./tidemark down")


def benchmark(stage: Stage) -> None:
    stage.say("bench", "./tidemark bench source --quick 2>&1 | grep -E '^bench|^[{} ]'", lines=40)


def checkout(stage: Stage) -> None:
    stage.say("test", "./tidemark test tests/unit/test_errors.py")
    stage.say("demo", "./tidemark demo", lines=60)
