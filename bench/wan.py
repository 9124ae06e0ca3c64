"""A site behind a long line on this machine: two network namespaces, `wan_line` between them, an sshd in one of them.

The congestion control is set by the route, in both namespaces: a namespace may not have a default of its own choice.
Needs root, /dev/net/tun, `ip` and a C compiler; `missing()` says what is not there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.services.sshd import Sshd

SITE, CENTRE = "10.99.7.1", "10.99.7.2"
HERE = Path(__file__).parent
_ASK_SOCKET = """
import socket, sys, time
for _ in range(100):
    try:
        line = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)
        break
    except OSError:
        time.sleep(0.1)
line.recv(4)
print(line.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(bytes(1)).decode(), flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Conditions:
    """One way: half the round trip. The queue holds what 50 ms of the rate are."""

    congestion: str = "cubic"
    round_trip_ms: float = 50.0
    mbit: float = 200.0
    loss_percent: float = 0.0
    seed: int = 1

    @property
    def queue_bytes(self) -> int:
        return int(self.mbit * 1e6 / 8 * 0.05)


@dataclass(frozen=True)
class Wan:
    """`prefix` goes before a command of the centre; `host` is the site, on the port of its sshd, which is process `pid`.

    `congestion`: what connections over it use, as their sockets say, at the site and at the centre.
    """

    prefix: tuple[str, ...]
    host: str
    known_hosts: Path
    pid: int
    congestion: dict[str, str]


def missing() -> str:
    """Why no long line can be made here; "" where it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not Path("/dev/net/tun").exists():
        return "there is no /dev/net/tun"
    absent = [tool for tool in ("ip", "ss", "cc") if shutil.which(tool) is None]
    return f"there is no {' and no '.join(absent)}" if absent else ""


@contextlib.contextmanager
def wan(server: Sshd, conditions: Conditions) -> Iterator[Wan]:
    """`server`'s configuration once more, behind the line, for as long as the block runs."""
    name = f"tdb{os.getpid() % 10_000}"
    folder = Path(tempfile.mkdtemp(prefix="tidemark-wan-"))
    line = daemon = None
    spaces = {"site": f"{name}s", "centre": f"{name}c"}
    try:
        _run("cc", "-O2", "-o", str(folder / "wan_line"), str(HERE / "wan_line.c"))
        for space in spaces.values():
            _run("ip", "netns", "add", space)
        words = [f"{name}0", f"{name}1", conditions.round_trip_ms / 2, conditions.mbit, conditions.loss_percent]
        line = subprocess.Popen(
            [str(folder / "wan_line"), *map(str, (*words, conditions.queue_bytes, conditions.seed))],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert line.stdout is not None and line.stdout.readline() == "ready\n"
        _connect(f"{name}0", spaces["site"], SITE, conditions.congestion)
        _connect(f"{name}1", spaces["centre"], CENTRE, conditions.congestion)
        host_key = (server.folder / "host_key.pub").read_text().rsplit(" ", 1)[0]
        (folder / "known_hosts").write_text(f"[{SITE}]:{server.port} {host_key}\n")
        config = ["-f", str(server.folder / "sshd_config"), "-o", f"ListenAddress={SITE}", "-o", "PidFile=none"]
        daemon = subprocess.Popen(
            ["ip", "netns", "exec", spaces["site"], "/usr/sbin/sshd", "-D", "-e", *config], stderr=subprocess.DEVNULL
        )
        used = _used_congestion(spaces, server.port)
        if set(used.values()) != {conditions.congestion}:
            raise RuntimeError(f"connections over the line use {used}, not {conditions.congestion}")
        yield Wan(("ip", "netns", "exec", spaces["centre"]), SITE, folder / "known_hosts", daemon.pid, used)
    finally:
        for process in (daemon, line):
            if process is not None:
                process.send_signal(signal.SIGTERM)
                process.wait()
        for space in spaces.values():
            subprocess.run(["ip", "netns", "del", space], check=False, stderr=subprocess.DEVNULL)
        shutil.rmtree(folder)


def lacks_congestion(name: str) -> str:
    """Why connections cannot use that congestion control here; "" where they can."""
    known = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    return "" if name in known else f"this kernel has no {name}: it has {', '.join(known)}"


def _used_congestion(spaces: Mapping[str, str], port: int) -> dict[str, str]:
    """The congestion control of a connection to the site's sshd, at both its ends, once the sshd answers."""
    centre = subprocess.Popen(
        ["ip", "netns", "exec", spaces["centre"], sys.executable, "-I", "-S", "-c", _ASK_SOCKET, SITE, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert centre.stdin is not None and centre.stdout is not None
    with centre:
        at_centre = centre.stdout.readline().strip()
        shown = ["ip", "netns", "exec", spaces["site"], "ss", "-tinH", "state", "established"]
        at_site = subprocess.run(shown, capture_output=True, text=True, check=True).stdout
        centre.stdin.close()
    named = [word for word in ("cubic", "bbr", "reno") if word in at_site.split()]
    return {"centre": at_centre, "site": named[0] if named else f"unknown: {at_site.strip()}"}


def _connect(device: str, space: str, address: str, congestion: str) -> None:
    network = f"{address.rpartition('.')[0]}.0/24"
    _run("ip", "link", "set", device, "netns", space)
    _run("ip", "-n", space, "addr", "add", f"{address}/24", "dev", device)
    for link, more in (("lo", ()), (device, ("txqueuelen", "5000"))):
        _run("ip", "-n", space, "link", "set", link, *more, "up")
    _run("ip", "-n", space, "route", "change", network, "dev", device, "src", address, "congctl", congestion)


def _run(*command: str) -> None:
    subprocess.run(list(command), check=True)
