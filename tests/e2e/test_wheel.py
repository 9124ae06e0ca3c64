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
from tests.services.installed_wheel import ROOT, Installed, build_wheel, run_uv
from tests.services.processes import PartMissing

DATA = ROOT / "tests" / "data" / "iotdb"
SITES = {"north": "2.0.1-beta/data", "south": "0.12.0-renamed/data"}

pytestmark = [pytest.mark.full, pytest.mark.real("uv"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return build_wheel(tmp_path_factory.mktemp("wheel"))
    except PartMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(wheel, tmp_path_factory.mktemp("bare"))


def test_it_has_the_same_bytes_whenever_it_is_built(wheel: Path, tmp_path: Path) -> None:
    assert build_wheel(tmp_path).read_bytes() == wheel.read_bytes()


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


def test_a_bare_install_without_a_compiler_syncs_two_sites_and_proves_it(bare: Installed) -> None:
    print(f"installed: {bare.size() / 1e6:.0f} MB")
    code, out, _ = bare.run("--help")
    assert (code, out.split()[:2]) == (0, ["usage:", "tidemark"])
    for name, source in SITES.items():
        shutil.copytree(DATA / source, bare.home / name)
    sites = [word for name in SITES for word in ("--site", f"{name}={bare.home / name}")]
    assert bare.run("init", *sites, "--json")[0] == 0
    for words in (["doctor"], ["sync", "--all"], ["load"], ["merge"], ["verify"], ["verify", "--deep"], ["status"]):
        code, out, err = bare.run(*words, "--json")
        assert code == 0, (words, out, err)
    assert json.loads(bare.run("coverage", "--json")[1].splitlines()[-1])["complete"] is True
    assert list(bare.home.rglob("*.so")) == [], "no compiler is on its PATH"


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


def test_the_offline_set_installs_without_an_index(tmp_path: Path) -> None:
    collected, venv = tmp_path / "set", tmp_path / "venv"
    subprocess.run([ROOT / "docker" / "offline_set", collected], check=True, capture_output=True)
    assert (collected / "docs" / "production.md").exists()
    run_uv("venv", "--quiet", "--seed", venv)
    words = ["install", "--quiet", "--no-index", "--require-hashes", "--find-links", collected / "wheels"]
    environment = {"PATH": str(venv / "bin"), "HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    command = [venv / "bin" / "pip", *words, "-r", collected / "requirements.txt"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert subprocess.run([venv / "bin" / "tidemark", "version"], env=environment, check=False).returncode == 0
