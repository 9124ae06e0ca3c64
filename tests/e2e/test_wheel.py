"""The wheel: the same bytes whenever it is built, and all that a site or a centre needs without a checkout beside it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.commanded import run_here

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "iotdb"
SITES = {"north": "2.0.1-beta/data", "south": "0.12.0-renamed/data"}
UV = shutil.which("uv") or str(ROOT / ".venv" / ".uv" / "bin" / "uv")

pytestmark = [pytest.mark.full, pytest.mark.real("uv"), pytest.mark.timeout(600)]


def uv(*words: object) -> None:
    if not Path(UV).exists():
        pytest.skip("no uv on this machine: ./tidemark --ensure run fetches it")
    done = subprocess.run([UV, *map(str, words)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def built(folder: Path) -> Path:
    uv("build", "--wheel", "--quiet", "--out-dir", folder)
    [wheel] = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("wheel"))


class Installed:
    """The wheel in a fresh environment: nothing of this checkout is found from there."""

    def __init__(self, wheel: Path, folder: Path) -> None:
        self.wheel, self.folder, self.home = wheel, folder / "venv", folder / "home"
        self.home.mkdir()
        uv("venv", "--quiet", self.folder)
        self.add(str(wheel))

    def add(self, what: str) -> None:
        uv("pip", "install", "--quiet", "--python", self.folder / "bin" / "python", what)

    def run(self, *words: str) -> tuple[int, str, str]:
        # Without a compiler on PATH the functions in Python do all the work, as on a machine that has none.
        env = {"PATH": str(self.folder / "bin"), "HOME": str(self.home), "LC_ALL": "C.UTF-8"}
        command = [str(self.folder / "bin" / "tidemark"), *words]
        done = subprocess.run(command, cwd=self.home, env=env, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    def size(self) -> int:
        return sum(path.lstat().st_size for path in self.folder.rglob("*") if not path.is_dir())


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(wheel, tmp_path_factory.mktemp("bare"))


def test_it_has_the_same_bytes_whenever_it_is_built(wheel: Path, tmp_path: Path) -> None:
    assert built(tmp_path).read_bytes() == wheel.read_bytes()


def test_it_holds_whatever_the_package_reads(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    package = {
        str(path.relative_to(ROOT / "plugins")) for path in (ROOT / "plugins").rglob("*") if path.suffix in (".py", ".c")
    }
    beside = {
        str(path.relative_to(ROOT)) for name in ("sql", "dags", "spark_jobs") for path in (ROOT / name).rglob("*.[ps][yq]*")
    }
    beside = {f"tidemark/shipped/{path}" for path in beside if not path.endswith(".pyc")}
    papers = {path for path in inside if ".dist-info/" in path}
    assert len(package) > 300
    assert len(beside) > 60
    assert inside - papers == package | beside


def test_a_bare_install_syncs_two_sites_and_proves_it(bare: Installed) -> None:
    print(f"installed: {bare.size() / 1e6:.0f} MB")
    code, out, _ = bare.run("--help")
    assert (code, out.startswith("usage:")) == (0, True)
    for name, source in SITES.items():
        shutil.copytree(DATA / source, bare.home / name)
    sites = [word for name in SITES for word in ("--site", f"{name}={bare.home / name}")]
    assert bare.run("init", *sites, "--json")[0] == 0
    for words in (["doctor"], ["sync", "--all"], ["load"], ["merge"], ["verify"], ["verify", "--deep"], ["status"]):
        code, out, err = bare.run(*words, "--json")
        assert code == 0, (words, out, err)
    assert json.loads(bare.run("coverage", "--json")[1].splitlines()[-1])["complete"] is True


def test_what_needs_an_extra_says_which(bare: Installed) -> None:
    code, out, _ = bare.run("read", "--tall", "--out", "all.csv", "--json")
    assert (code, json.loads(out)["hint"]) == (6, "pip install 'tidemark-sync[read]'")
    code, out, _ = bare.run("demo", "--json")
    assert (code, "checkout" in json.loads(out)["error"]) == (2, True)
    bare.add(f"tidemark-sync[read] @ {bare.wheel.as_uri()}")
    print(f"with [read]: {bare.size() / 1e6:.0f} MB")
    assert bare.run("read", "--tall", "--out", "all.csv")[0] == 0
    here = bare.home / "here.csv"
    assert run_here(bare.home / "tidemark.toml", "read", "--tall", "--out", str(here)).code == 0
    assert here.read_bytes() == (bare.home / "all.csv").read_bytes()


def test_compiled_code_goes_to_the_users_cache_and_without_one_python_does_the_work(bare: Installed) -> None:
    program = "from tidemark.tsfiles.points.kernels import kernels; print(kernels() is not None)"
    before = sorted(path for path in bare.folder.rglob("*") if path.suffix == ".so")
    for home, compiled in ((bare.home, shutil.which("cc") is not None), (Path("/proc/none"), False)):
        env = {"PATH": os.environ["PATH"], "HOME": str(home)}
        command = [str(bare.folder / "bin" / "python"), "-c", program]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout.strip()) == (0, str(compiled)), done.stderr
    assert sorted(path for path in bare.folder.rglob("*") if path.suffix == ".so") == before
