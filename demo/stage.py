"""Set up the demo's folder: two sites with TsFiles of real servers, an sshd if the machine has one, and a centre.

The sites' files come from `tests/data/iotdb` (its README says where from). They are copied in portions, as a server
would seal them: the TsFile first, its `.resource` last.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
REAL_DATA = REPOSITORY / "tests" / "data" / "iotdb"
MARK = ".tidemark-demo"  # only a folder with this file may be emptied


@dataclass(frozen=True)
class DemoSite:
    """A site of the demo: `version` is the folder below `tests/data/iotdb`, `home` its path below that `data/` folder."""

    name: str
    site_id: str
    version: str
    home: str
    schema: str
    receiver: str

    @property
    def source(self) -> Path:
        return REAL_DATA / self.version / "data"

    @property
    def data(self) -> tuple[str, str]:
        return f"{self.home}/sequence", f"{self.home}/unsequence"

    def tsfiles(self) -> list[Path]:
        """Relative paths of the site's TsFiles, sequence first, in the order of their names."""
        found = (p.relative_to(self.source) for p in self.source.rglob("*.tsfile"))
        return sorted(found, key=lambda p: ("unsequence" in p.parts, p.as_posix()))


# Two receivers: both servers have devices of the same names, and a device has one owner at each receiver.
SITES = (
    DemoSite(
        "windfarm", "5d0f6a1e-7c5b-4f0e-9a57-2f6f3a1c7e01", "2.0.1-beta", "datanode/data", "datanode/system/schema", "centre"
    ),
    DemoSite("factory", "b1f0c3de-2f64-4a0b-8d0b-6c2f9f0f7a02", "0.12.0", "data", "system/schema", "archive"),
)


def empty_stage(folder: Path) -> None:
    """Empty the demo's folder, or make it. Raises SystemExit for a folder with files that no demo made."""
    if folder.exists() and any(folder.iterdir()) and not (folder / MARK).exists():
        raise SystemExit(f"{folder} is not empty and was not made by a demo; choose another with --dir")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / MARK).write_text("made by ./tidemark demo; emptied by the next one\n")


def reveal(site: DemoSite, stage: Path, tsfiles: Iterable[Path], deletions: bool) -> int:
    """Copy TsFiles to a site as if its server sealed them; `deletions`: their mods files too. Returns how many are new."""
    count = 0
    for relative in tsfiles:
        mods = [m for m in (".mods", ".mods2") if deletions and (site.source / f"{relative}{m}").exists()]
        for companion in ("", *mods, ".resource"):
            target = stage / site.name / f"{relative}{companion}"
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(site.source / f"{relative}{companion}", target)
                count += companion == ""
    return count


def reveal_schema(site: DemoSite, stage: Path) -> None:
    shutil.copytree(site.source / site.schema, stage / site.name / site.schema, dirs_exist_ok=True)


@dataclass
class SiteDoor:
    """How the centre reaches the sites: by an sshd on loopback, or as plain folders if the machine has none."""

    stage: Path
    process: subprocess.Popen[str] | None = None
    root: str = ""
    host_key: str = ""
    key: str = ""
    why_not: str = ""

    def open(self) -> None:
        """Start an sshd. If that fails, `why_not` says why and the sites are folders."""
        environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
        command = [sys.executable, "-m", "tests.services.sshd", "shell"]
        log = self.stage / "sshd.log"
        with log.open("w") as trouble:
            server = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=trouble,
                text=True,
            )
        assert server.stdout is not None
        said = server.stdout.readline().split()
        if len(said) != 4:
            server.wait(timeout=15)
            self.why_not = (log.read_text().strip().splitlines() or ["sshd did not start"])[-1].rpartition("PartMissing: ")[
                2
            ]
            return
        url, self.host_key, self.key, _pid = said
        self.root = url[: url.index("/", len("sftp://"))]
        self.process = server

    @property
    def is_ssh(self) -> bool:
        return self.process is not None

    def lines(self, home: Path) -> str:
        """The settings of a store for tidemark.toml: a site's or a node's folder."""
        if not self.is_ssh:
            return f'store = "file://{home}"'
        return f'store = "{self.root}{home}"\nhost_key = "{self.host_key}"\nkey = "{self.key}"'

    def close(self) -> None:
        if self.process is not None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            self.process.wait(timeout=15)


def write_settings(stage: Path, door: SiteDoor) -> Path:
    """Write the demo's tidemark.toml: two sites with a receiver and a link each, without a clock. Returns its path."""
    blocks = ['[ledger]\nurl = "sqlite:///ledger.db"\n\n[airflow]\nload_schedule = ""\n']
    for site in SITES:
        data = ", ".join(f'"{d}"' for d in site.data)
        blocks.append(
            f'[receivers.{site.receiver}]\nstore = "file://{stage / site.receiver}"\n\n'
            f'[sites.{site.name}]\nid = "{site.site_id}"\n{door.lines(stage / site.name)}\n'
            f'data = [{data}]\nschema = "{site.schema}"\n\n'
            f'[links.{site.name}]\nsite = "{site.name}"\nreceiver = "{site.receiver}"\n'
        )
    path = stage / "tidemark.toml"
    path.write_text("\n".join(blocks))
    return path
