"""What a file of OpenSSH's client (`~/.ssh/config`) says of a host: where it is, who logs in by what, and through whom.

It is read only where the settings name it. Of the server's key it says nothing here: that is `host_key` or `known_hosts`.
A jump host is OpenSSH's own business: `ssh -W` logs in there by the same file, with its agent and its known hosts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tidemark.errors import UsageError
from tidemark.stores.ssh.lean_paramiko import paramiko


@dataclass(frozen=True)
class ClientConfig:
    """`jump`: hosts to go through, in their order, as ProxyJump has them; `file`: where that stands."""

    host: str
    port: int = 0  # 0: the file does not say it; so with "" below
    user: str = ""
    key: str = ""
    jump: tuple[str, ...] = ()
    file: str = ""

    def through(self, port: int) -> tuple[str, ...]:
        """Return the command whose input and output are the connection to the server; () to dial it."""
        if not self.jump:
            return ()
        *before, last = self.jump
        host = f"[{self.host}]" if ":" in self.host else self.host
        before_it = ("-J", ",".join(before)) if before else ()
        asked = ("-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", "ClearAllForwardings=yes")
        return ("ssh", "-F", self.file, *asked, *before_it, "-W", f"{host}:{port}", "--", _as_url(last))


def read_client_config(file: str, host: str) -> ClientConfig:
    """Read what the file says of `host`. Raises UsageError for a file that cannot be read, or says what is not used here."""
    try:
        found = paramiko.SSHConfig.from_path(str(Path(file).expanduser())).lookup(host)
        port = int(found.get("port") or 0)
    except (OSError, ValueError, ImportError, paramiko.SSHException) as broken:
        raise UsageError(
            f"ssh_config {file} cannot be read: {broken}", hint=f"`ssh -F {file} -G {host}` shows it", subject=file
        ) from broken
    if (command := found.get("proxycommand", "none").strip()) != "none":
        raise UsageError(
            f"ssh_config {file}: ProxyCommand {command!r} of {host} is not used here",
            hint="write ProxyJump HOST for it, or leave ssh_config out",
            subject=file,
        )
    jump = tuple(one.strip() for one in found.get("proxyjump", "none").split(",") if one.strip() not in ("", "none"))
    keys = [key for key in found.get("identityfile", ()) if Path(key).expanduser().exists()]
    return ClientConfig(str(found["hostname"]), port, found.get("user", ""), keys[0] if keys else "", jump, file)


def _as_url(jump: str) -> str:
    """Return a jump host, [user@]host[:port], as `ssh` takes it with its port."""
    return jump if jump.startswith("ssh://") else f"ssh://{jump}"
