"""A real OpenSSH server on 127.0.0.1, with its own host key, one user key and one kind of far end.

    SHELL    a login shell with python3: the fastest tier
    POSIX    a shell whose PATH has the POSIX tools but no python
    SFTP     the SFTP subsystem only (`ForceCommand internal-sftp`)
    CHROOT   the same, in a chroot (root only)

Everything lives in one temporary folder that goes away with the server. It logs in as the user who runs the tests.
"""

from __future__ import annotations

import base64
import contextlib
import enum
import getpass
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.services.processes import IS_ROOT, PartMissing, descendants, die_with_parent, free_port, stop, wait_until

START_SECONDS = 60.0
START_TRIES = 5
SFTP_SERVERS = ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server", "/usr/lib/ssh/sftp-server")
CHROOT_PARENT = "/var/lib"  # every folder above a chroot must belong to root and be closed to others; /tmp is open
POSIX_TOOLS = (
    "sh cat find sha256sum tar stat mv cp ln rm mkdir rmdir ls test [ printf echo sort head tail cut tr wc xargs dd df "
    "sync touch chmod env date sleep true false expr dirname basename readlink uname id grep sed awk od truncate mktemp "
    "renice ionice flock"
)


class FarEnd(enum.StrEnum):
    SHELL = "shell"
    POSIX = "posix"
    SFTP = "sftp"
    CHROOT = "chroot"


@dataclass
class Sshd:
    """A running server. `files` is the folder that tests put things in; `url(path)` is how a store reaches it."""

    far_end: FarEnd
    folder: Path
    files: Path
    port: int
    process: subprocess.Popen[bytes]
    user: str = field(default_factory=getpass.getuser)
    host: str = "127.0.0.1"

    @property
    def key(self) -> Path:
        """The private key that may log in."""
        return self.folder / "user_key"

    @property
    def host_key(self) -> str:
        """The server's fingerprint as settings take it: `SHA256:…`."""
        return fingerprint(self.folder / "host_key.pub")

    @property
    def pid(self) -> int:
        return self.process.pid

    def url(self, path: Path | str | None = None) -> str:
        """`sftp://user@127.0.0.1:port/path` of a folder of this machine (default: `files`)."""
        local = Path(path) if path is not None else self.files
        if self.far_end is FarEnd.CHROOT:
            local = Path("/") / local.relative_to(self.folder / "jail")
        return f"sftp://{self.user}@{self.host}:{self.port}{local}"

    def new_folder(self, name: str = "store") -> Path:
        """A fresh empty folder that the server can reach."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.files))

    def ssh_options(self) -> list[str]:
        """Options for the `ssh`, `sftp` and `rsync -e` commands."""
        known = self.folder / "known_hosts"
        return [
            "-i",
            str(self.key),
            "-p",
            str(self.port),
            "-F",
            "none",
            "-o",
            "BatchMode=yes",
            "-o",
            f"UserKnownHostsFile={known}",
        ]

    def log(self) -> str:
        return (self.folder / "sshd.log").read_text(errors="replace")

    def drop_connections(self) -> int:
        """Kill every session, as a network that breaks does; the server goes on. Returns how many processes died."""
        victims = descendants(self.process.pid)
        for victim in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.kill()
        return len(victims)

    def stall(self) -> None:
        """Freeze the sessions that are open now: connections stay, nothing answers."""
        self._signal_sessions(signal.SIGSTOP)

    def unstall(self) -> None:
        self._signal_sessions(signal.SIGCONT)

    def _signal_sessions(self, number: int) -> None:
        for session in descendants(self.process.pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                session.send_signal(number)

    def stop(self) -> None:
        """End the server and its sessions; the files stay until `close`."""
        self.unstall()
        stop(self.process)

    def restart(self) -> None:
        """Start again on the same port with the same keys (after `stop`)."""
        self.process = _launch(self.folder, self.port)

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def start(far_end: FarEnd = FarEnd.SHELL, options: dict[str, str] | None = None) -> Sshd:
    """Start a server; `options` are more lines of sshd_config, e.g. {"MaxSessions": "1", "MaxStartups": "1"}.

    Raises PartMissing where this machine has no sshd (or, for CHROOT, where we are not root).
    """
    _require(far_end)
    folder = Path(tempfile.mkdtemp(prefix="tidemark-sshd-", dir=CHROOT_PARENT if far_end is FarEnd.CHROOT else None))
    folder.chmod(0o755)
    try:
        _make_keys(folder)
        files = _make_files(folder, far_end)
        return _start_on_free_port(folder, files, far_end, options or {})
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def fingerprint(public_key: Path) -> str:
    """OpenSSH's SHA256 fingerprint of a public key file."""
    blob = base64.b64decode(public_key.read_text().split()[1])
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def make_key(path: Path) -> Path:
    """A new ed25519 key pair at `path` and `path.pub`."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "tidemark-test", "-f", str(path)], check=True)
    return path


def _start_on_free_port(folder: Path, files: Path, far_end: FarEnd, options: dict[str, str]) -> Sshd:
    for attempt in range(START_TRIES):
        port = free_port()
        (folder / "sshd_config").write_text(_config(folder, far_end, port, options))
        host = (folder / "host_key.pub").read_text().rsplit(" ", 1)[0]
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {host}\n")
        try:
            return Sshd(far_end, folder, files, port, _launch(folder, port))
        except RuntimeError:
            if attempt == START_TRIES - 1:
                raise
    raise AssertionError("unreachable")


def _launch(folder: Path, port: int) -> subprocess.Popen[bytes]:
    log = (folder / "sshd.log").open("ab")
    with log:
        process = subprocess.Popen(
            [_sshd(), "-D", "-e", "-f", str(folder / "sshd_config")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=die_with_parent(),
        )
    try:
        wait_until(lambda: _greets(port), process, START_SECONDS, f"sshd (log: {folder / 'sshd.log'})")
    except BaseException:
        stop(process)
        raise
    return process


def _greets(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def _require(far_end: FarEnd) -> None:
    if not Path(_sshd()).exists():
        raise PartMissing("no sshd on this machine; apt-get install openssh-server, or ./tidemark test --install")
    if shutil.which("ssh-keygen") is None:
        raise PartMissing("no ssh-keygen on this machine; apt-get install openssh-client, or ./tidemark test --install")
    if far_end is FarEnd.CHROOT and not IS_ROOT:
        raise PartMissing("a chroot for sshd needs root")
    if IS_ROOT:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd's empty folder for privilege separation


def _sshd() -> str:
    return shutil.which("sshd") or "/usr/sbin/sshd"


def _make_keys(folder: Path) -> None:
    make_key(folder / "host_key")
    make_key(folder / "user_key")
    shutil.copy(folder / "user_key.pub", folder / "authorized_keys")


def _make_files(folder: Path, far_end: FarEnd) -> Path:
    inside = "jail/files" if far_end is FarEnd.CHROOT else "files"
    files = folder / inside
    files.mkdir(parents=True)
    if far_end is FarEnd.CHROOT:
        (folder / "jail").chmod(0o755)
    if far_end is FarEnd.POSIX:
        _make_posix_shell(folder)
    return files


def _make_posix_shell(folder: Path) -> None:
    tools = folder / "tools"
    tools.mkdir()
    for tool in POSIX_TOOLS.split():
        found = shutil.which(tool, path="/usr/bin:/bin:/usr/sbin:/sbin")
        if found:
            (tools / tool).symlink_to(found)
    shell = folder / "posix_shell"
    shell.write_text(f'#!/bin/sh\nexec env -i HOME="$HOME" PATH={tools} sh -c "${{SSH_ORIGINAL_COMMAND:-sh}}"\n')
    shell.chmod(0o755)


def _config(folder: Path, far_end: FarEnd, port: int, options: dict[str, str]) -> str:
    sftp_server = next((path for path in SFTP_SERVERS if Path(path).exists()), "internal-sftp")
    lines: dict[str, Any] = {
        "Port": port,
        "ListenAddress": "127.0.0.1",
        "HostKey": folder / "host_key",
        "PidFile": "none",
        "AuthorizedKeysFile": folder / "authorized_keys",
        "StrictModes": "no",
        "UsePAM": "no",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "PermitRootLogin": "prohibit-password",
        "AllowUsers": getpass.getuser(),
        "PrintMotd": "no",
        "PrintLastLog": "no",
        "UseDNS": "no",
        "Subsystem": "sftp internal-sftp",
    }
    # Debian's bash reads the user's .bashrc for an sshd's first shell: what stands there (tools' start-up, with locks that
    # a session killed by a test leaves behind) is not part of any test.
    lines["SetEnv"] = "SHLVL=2"
    if far_end is FarEnd.SHELL and shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") is None:
        lines["SetEnv"] += f" PATH={Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    if far_end is FarEnd.POSIX:
        lines["Subsystem"] = f"sftp {sftp_server}"
        lines["ForceCommand"] = folder / "posix_shell"
    if far_end in (FarEnd.SFTP, FarEnd.CHROOT):
        lines["ForceCommand"] = "internal-sftp"
    if far_end is FarEnd.CHROOT:
        lines["ChrootDirectory"] = folder / "jail"
    lines.update(options)
    return textwrap.dedent("\n".join(f"{key} {value}" for key, value in lines.items())) + "\n"


def main() -> None:
    """Run one server until stdin closes, printing where it is: `python -m tests.services.sshd [shell|posix|sftp|chroot]`."""
    server = start(FarEnd(sys.argv[1]) if len(sys.argv) > 1 else FarEnd.SHELL)
    print(server.url(), server.host_key, server.key, os.getpid(), flush=True)
    try:
        sys.stdin.read()
    finally:
        server.close()


if __name__ == "__main__":
    main()
