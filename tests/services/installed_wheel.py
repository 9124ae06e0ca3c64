"""The wheel of this checkout in a fresh environment of uv's: nothing of the checkout is found from there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.services.processes import PartMissing

ROOT = Path(__file__).resolve().parents[2]
UV = shutil.which("uv") or str(ROOT / ".venv" / ".uv" / "bin" / "uv")


def run_uv(*words: object) -> None:
    """Run uv, which must end well. PartMissing where it is not."""
    if not Path(UV).exists():
        raise PartMissing("no uv on this machine: ./tidemark --ensure run fetches it")
    done = subprocess.run([UV, *map(str, words)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def build_wheel(folder: Path) -> Path:
    run_uv("build", "--wheel", "--quiet", "--out-dir", folder)
    [wheel] = folder.glob("*.whl")
    return wheel


class Installed:
    """An environment in `folder`/venv with the wheel and its `extras`, and an empty home for whoever runs it."""

    def __init__(self, wheel: Path, folder: Path, *first: str) -> None:
        self.wheel, self.folder, self.home = wheel, folder / "venv", folder / "home"
        self.home.mkdir()
        run_uv("venv", "--quiet", "--seed", self.folder)
        self.add(*first or [str(wheel)])

    def add(self, *what: str) -> None:
        run_uv("pip", "install", "--quiet", "--python", self.folder / "bin" / "python", *what)

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": f"{self.folder / 'bin'}:/usr/bin:/bin", "HOME": str(self.home), "LC_ALL": "C.UTF-8"}

    def run(self, *words: str) -> tuple[int, str, str]:
        """Run `tidemark`. Without a compiler on PATH Python does the work of the C sources, as where there is none."""
        environment = self.environment | {"PATH": str(self.folder / "bin")}
        command = [str(self.folder / "bin" / "tidemark"), *words]
        done = subprocess.run(command, cwd=self.home, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    def size(self) -> int:
        """Bytes of the environment."""
        return sum(path.lstat().st_size for path in self.folder.rglob("*") if not path.is_dir())
