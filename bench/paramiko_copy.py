"""paramiko's own `get` or `put` of every file below a folder: what a script without an engine does.

python -m bench.paramiko_copy HOST PORT USER KEY KNOWN_HOSTS get|put SOURCE TARGET
"""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import paramiko


def run(words: list[str]) -> int:
    host, port, user, key, known_hosts, verb, source, target = words
    client = paramiko.SSHClient()
    client.load_host_keys(known_hosts)
    client.connect(host, int(port), user, key_filename=key, look_for_keys=False, allow_agent=False)
    with client, client.open_sftp() as sftp:
        if verb == "get":
            get_below(sftp, source, Path(target))
        else:
            put_below(sftp, Path(source), target)
    return 0


def get_below(sftp: paramiko.SFTPClient, source: str, target: Path) -> None:
    target.mkdir(exist_ok=True)
    for entry in sftp.listdir_attr(source):
        below = f"{source}/{entry.filename}"
        if stat.S_ISDIR(entry.st_mode or 0):
            get_below(sftp, below, target / entry.filename)
        else:
            sftp.get(below, str(target / entry.filename))


def put_below(sftp: paramiko.SFTPClient, source: Path, target: str) -> None:
    for entry in sorted(source.iterdir()):
        if entry.is_dir():
            sftp.mkdir(f"{target}/{entry.name}")
            put_below(sftp, entry, f"{target}/{entry.name}")
        else:
            sftp.put(str(entry), f"{target}/{entry.name}")


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
