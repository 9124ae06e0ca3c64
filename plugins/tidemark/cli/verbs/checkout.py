"""Install the packages that tests and benchmarks need, and run pytest, the demo or a benchmark."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tidemark.cli.call import Answer, Call
from tidemark.cli.screen import Screen
from tidemark.errors import PermanentError
from tidemark.installation import ROOT

PACKAGES = (  # (a program, its Debian package, only with --all)
    ("sshd", "openssh-server", False),
    ("ssh", "openssh-client", False),
    ("rsync", "rsync", False),
    ("chromium", "chromium", True),
    ("java", "openjdk-17-jre-headless", True),
    ("mvn", "maven", True),
    ("mariadbd", "mariadb-server", True),
)
MEMORY_DISK = "/dev/shm"
ROOM, ROOM_WITH_ALL = 4 << 30, 12 << 30  # bytes of the memory disk, of which tests use less than half
MOST_PROCESSES = 4  # each may hold an Airflow, a PostgreSQL, a Java

PEERS = (  # programs that benchmarks compare Tidemark with, and what those need
    ("rclone", "rclone"),
    ("lftp", "lftp"),
    ("java", "openjdk-17-jre-headless"),
    ("mvn", "maven"),
    ("ip", "iproute2"),
    ("mariadbd", "mariadb-server"),
    ("mariadb-binlog", "mariadb-client"),
    ("cc", "gcc"),
    ("cc", "libc6-dev"),
)


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() == "true"


def prepare_packages(everything: bool, install: bool, screen: Screen, peers: bool = False) -> None:
    """Install the tests' locked sets. `install` adds system packages, and `peers` those of benchmarks as well.

    Raises PermanentError if the locked sets of the tests cannot be installed. Other failures are only reported.
    """
    launcher = ROOT / "tidemark"
    words = [_find_python(), str(launcher), "--ensure", "test", "docs"]
    if launcher.exists() and subprocess.call(words, stdout=subprocess.DEVNULL):
        raise PermanentError("the tests' packages could not be installed", hint="the words above say what is missing")
    if install:
        _install_packages(find_missing_packages(everything, peers), screen)
        if peers:
            _install_python_peers(screen)


def side_by_side(words: Sequence[str], everything: bool) -> list[str]:
    """pytest's options for more processes than cores, because tests wait for servers: two more, or one with `everything`,
    whose servers work themselves. Empty on a single core, or if `words` choose tests to be watched."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cores == 1 or any(not word.startswith("-") for word in words):
        return []
    # loadfile: a file's tests share a server or an Airflow. no-loadscope-reorder: the long files are not the last.
    return [
        "--numprocesses",
        str(min(cores + (1 if everything else 2), MOST_PROCESSES)),
        "--dist",
        "loadfile",
        "--no-loadscope-reorder",
    ]


def keep_files_in_memory(everything: bool) -> list[str]:
    """Have pytest put its folders on the memory disk, and return the options for it. Empty if there is too little room.

    Tests make and remove a hundred thousand folders. On a disk with a journal that takes a quarter of their time."""
    try:
        room = shutil.disk_usage(MEMORY_DISK).free
        [available] = [line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable:")]
    except (OSError, ValueError):
        return []
    if min(room, int(available.split()[1]) * 1024) < (ROOM_WITH_ALL if everything else ROOM):
        return []
    os.environ["PYTEST_DEBUG_TEMPROOT"] = MEMORY_DISK
    # What a test that passed leaves would stay in memory.
    return ["-o", "tmp_path_retention_policy=failed", "-o", "tmp_path_retention_count=1"]


def find_missing_packages(everything: bool, peers: bool = False) -> list[str]:
    """The Debian packages of the programs that this machine lacks."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    wanted = [(program, package) for program, package, full in PACKAGES if everything or not full]
    found = (package for program, package in (*wanted, *(PEERS if peers else ())) if not shutil.which(program, path=path))
    return list(dict.fromkeys(found))


def _install_packages(packages: Sequence[str], screen: Screen) -> None:
    """Install by apt-get, as root or with sudo. Failures are printed. Tests without a package skip, or fail if CI=true."""
    if not packages:
        return
    if shutil.which("apt-get") is None:
        screen.print_error(f"no apt-get here to install {' '.join(packages)}; install them your system's way")
        return
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    screen.print_remark(f"installing {' '.join(packages)}")
    for words in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *packages]):
        done = subprocess.run([*sudo, "apt-get", *words], env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            screen.print_error(f"apt-get {' '.join(words)} failed: {(done.stderr or done.stdout).strip()[-500:]}")


def _install_python_peers(screen: Screen) -> None:
    """Install the benchmarks' locked packages into a folder of their own. Failures are printed."""
    lock, target = ROOT / "requirements-bench.txt", ROOT / "var" / "bench" / "peers"
    mark = target / ".tidemark-lock"
    wanted = hashlib.sha256(lock.read_bytes()).hexdigest()
    if mark.exists() and mark.read_text() == wanted:
        return
    own = ROOT / ".venv" / ".uv" / "bin" / "uv"
    uv = shutil.which("uv") or (str(own) if own.exists() else None)
    tool = [uv, "pip", "install", "--python", sys.executable] if uv else [sys.executable, "-m", "pip", "install"]
    screen.print_remark(f"installing {lock.name} into {target}")
    words = [*tool, "--quiet", "--require-hashes", "--no-deps", "--target", str(target), "-r", str(lock)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        screen.print_error(
            f"the packages of {lock.name} could not be installed: {(done.stderr or done.stdout).strip()[-500:]}"
        )
        return
    mark.write_text(wanted)


def _find_python() -> str:
    return shutil.which("python3") or "python3"


STOP_SECONDS = 30.0
_PR_SET_PDEATHSIG = 1


def hand_over(call: Call, module: str, words: Sequence[str]) -> Answer:
    """Replace this process by `python -m module words`. With `--json` run it as a child, and return its last line parsed.

    So the last line of stdout is an object even if the program dies without one. The child ends with this process."""
    command = [sys.executable, "-m", module, *words]
    os.chdir(ROOT)
    if not call.screen.as_json:
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(command[0], command, _make_environment())
    last, code = _run_child(call, command)
    return Answer(_parse_answer(last, module, code), lambda _screen: None, code)


def _run_child(call: Call, command: Sequence[str]) -> tuple[str, int]:
    """Run a child and print its stdout except the last line. Returns that line and the exit code."""
    libc = ctypes.CDLL(None, use_errno=True)
    child = subprocess.Popen(
        command,
        env=_make_environment(),
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM)),  # noqa: PLW1509 one call, no locks
    )
    assert child.stdout is not None
    last = ""
    try:
        for line in child.stdout:
            if last:
                call.screen.print_line(last)
            last = line.rstrip("\n")
        return last, child.wait()
    except BaseException:
        child.terminate()
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
        raise


def _parse_answer(last: str, module: str, code: int) -> dict[str, Any]:
    try:
        found = json.loads(last)
    except ValueError:
        found = None
    if isinstance(found, dict):
        return found
    if not code:
        return {"said": last}
    return {"error": f"{module} ended with {code}", "hint": "its words are above", "said": last}


def _make_environment() -> dict[str, str]:
    paths = [str(ROOT / "plugins"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
