"""The tools that people move files over SSH with today, each as a command line for one way: pull or push, near or far.

rsync, tar over ssh, scp and sftp come with most systems; rclone and lftp with a package; paramiko with Tidemark. Each is
run as it comes and with its fastest flags. `VERIFYING` check what they wrote against the source by a hash of their own.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.measure import Contender
from tests.services.sshd import Sshd

CIPHER = "aes128-gcm@openssh.com"
GCM = ("-c", CIPHER)
VERIFYING = ("rsync", "rsync gcm -W", "rclone")


@dataclass(frozen=True)
class Way:
    """From where to where: `host` is the remote end, `push` the direction. `prefix` goes before every command.

    `far`: process id of the SSH server at the remote end.
    """

    server: Sshd
    source: Path
    target: Path
    far: int
    host: str = "127.0.0.1"
    known_hosts: Path | None = None
    prefix: tuple[str, ...] = ()
    push: bool = False

    @property
    def known(self) -> Path:
        return self.known_hosts or self.server.folder / "known_hosts"

    @property
    def login(self) -> str:
        return f"{self.server.user}@{self.host}"

    @property
    def ssh(self) -> list[str]:
        """Options of ssh, scp and sftp alike."""
        return ["-F", "none", "-i", str(self.server.key), "-o", "BatchMode=yes", "-o", f"UserKnownHostsFile={self.known}"]

    def ends(self, scheme: str) -> tuple[str, str]:
        """Source and target, the remote one of them put into `scheme`."""
        source, target = f"{self.source}", f"{self.target}"
        return (source, scheme.format(target)) if self.push else (scheme.format(source), target)

    def contender(self, name: str, words: Sequence[str]) -> Contender:
        return Contender(name, [*self.prefix, *words], self.far)


def rsync(way: Way, fast: bool) -> Contender:
    shell = shlex.join(["ssh", *way.ssh, "-p", str(way.server.port), *(GCM if fast else ())])
    source, target = way.ends(f"{way.login}:{{}}")
    flags = ["-aW", "--inplace"] if fast else ["-a"]
    return way.contender("rsync gcm -W" if fast else "rsync", ["rsync", *flags, "-e", shell, f"{source}/", f"{target}/"])


def tar(way: Way, fast: bool) -> Contender:
    shell = shlex.join(["ssh", *way.ssh, "-p", str(way.server.port), *(GCM if fast else ()), way.login])
    blocks = "-b 512 " if fast else ""
    pack, unpack = f"tar {blocks}-C {way.source} -cf - .", f"tar {blocks}-C {way.target} -xf -"
    script = f"{pack} | {shell} '{unpack}'" if way.push else f"{shell} '{pack}' | {unpack}"
    return way.contender("tar gcm" if fast else "tar", ["sh", "-c", script])


def scp(way: Way, fast: bool) -> Contender:
    source, target = way.ends(f"{way.login}:{{}}")
    options = [*way.ssh, "-P", str(way.server.port), *(GCM if fast else ())]
    return way.contender("scp gcm" if fast else "scp", ["scp", "-q", "-r", *options, f"{source}/.", target])


def sftp(way: Way, fast: bool) -> Contender:
    more = [*GCM, "-B", "255000", "-R", "128"] if fast else []
    words = shlex.join(["sftp", "-q", "-b", "-", *way.ssh, "-P", str(way.server.port), *more, way.login])
    verb = "put" if way.push else "get"
    script = f"echo '{verb} -r {way.source}/. {way.target}' | {words}"
    return way.contender("sftp gcm -B 255000" if fast else "sftp", ["sh", "-c", script])


def rclone(way: Way, fast: bool) -> Contender:
    """As it comes it compares MD5 sums, one remote command a file; the fast one compares sizes alone."""
    remote = {"host": way.host, "port": way.server.port, "user": way.server.user, "key-file": way.server.key}
    login = [f"--sftp-{key}={value}" for key, value in remote.items()]
    more = ["--transfers=16", "--sftp-chunk-size=255k", "--ignore-checksum", "--sftp-disable-hashcheck"] if fast else []
    words = [
        "rclone",
        "copy",
        "--config=",
        "-q",
        *login,
        f"--sftp-known-hosts-file={way.known}",
        *more,
        *way.ends(":sftp:{}"),
    ]
    return way.contender("rclone -t16 unchecked" if fast else "rclone", words)


def lftp(way: Way, fast: bool) -> Contender:
    shell = shlex.join(["ssh", "-a", "-x", *way.ssh, *(GCM if fast else ())])
    flags = ("-R " if way.push else "") + ("-P4 " if fast else "")
    said = (
        f'set sftp:connect-program "{shell}"; set cmd:fail-exit yes; open -u {way.server.user},none '
        f"sftp://{way.host}:{way.server.port}; mirror {flags}{way.source} {way.target}"
    )
    return way.contender("lftp gcm -P4" if fast else "lftp", ["lftp", "--norc", "-c", said])


def paramiko(way: Way) -> Contender:
    """`get` and `put` as they come, a file after the other on one connection."""
    login = [way.host, str(way.server.port), way.server.user, str(way.server.key), str(way.known)]
    ends = ["put" if way.push else "get", str(way.source), str(way.target)]
    return way.contender("paramiko", [sys.executable, "-m", "bench.paramiko_copy", *login, *ends])


BOTH_CIPHERS: dict[str, Callable[[Way, bool], Contender]] = {
    "rsync": rsync,
    "tar": tar,
    "scp": scp,
    "sftp": sftp,
    "rclone": rclone,
    "lftp": lftp,
}
TOO_SLOW = "several round trips a file: minutes for 2,000 of them on a line of 50 ms"
_PACKAGES = {"scp": "openssh-client", "sftp": "openssh-client"}


def absent() -> dict[str, str]:
    """The peers that this machine lacks, each with the reason and what would bring it."""
    return {
        name: f"there is no {name} here: apt-get install {_PACKAGES.get(name, name)}, or ./tidemark bench transfer --install"
        for name in BOTH_CIPHERS
        if shutil.which(name) is None
    }


def on_a_lan(way: Way) -> list[Contender]:
    """All of them; a push has the fast ones alone, since the pull decides."""
    lacking = absent()
    kinds = [make for name, make in BOTH_CIPHERS.items() if name not in lacking]
    return [make(way, fast) for make in kinds for fast in ((True,) if way.push else (True, False))] + [paramiko(way)]


def on_a_long_line(way: Way, many: bool) -> tuple[list[Contender], dict[str, str]]:
    """rsync, tar and scp; and those of them that do not take part, each with the reason: of `many` small files scp."""
    lacking = absent()
    taking_part = {name: BOTH_CIPHERS[name](way, True) for name in ("rsync", "tar", "scp") if name not in lacking}
    left_out = {taking_part.pop(name).name: TOO_SLOW for name in ("scp",) if many and name in taking_part}
    return list(taking_part.values()), left_out
