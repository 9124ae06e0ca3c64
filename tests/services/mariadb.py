"""A real MariaDB on 127.0.0.1 with binary logs, in a temporary folder that goes away with it."""

from __future__ import annotations

import atexit
import functools
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tests.services.processes import IS_ROOT, PartMissing, die_with_parent, free_port, stop, wait_until

START_SECONDS = 120.0
START_TRIES = 5
USER, PASSWORD = "tide", 'it\'s "tide" ü'
BASE = "mysql-bin"
_QUOTED = PASSWORD.replace("'", "''")
ACCOUNTS = (
    f"CREATE USER '{USER}'@'127.0.0.1' IDENTIFIED BY '{_QUOTED}';\n"
    f"GRANT ALL ON *.* TO '{USER}'@'127.0.0.1' WITH GRANT OPTION;\n"
)
_OPTIONS = {
    "server_id": "1",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "binlog_row_metadata": "FULL",
    "binlog_checksum": "CRC32",
    "sync_binlog": "0",
    "innodb_flush_log_at_trx_commit": "0",
    "innodb_buffer_pool_size": "32M",
    "innodb_log_file_size": "64M",
    "max_allowed_packet": "256M",
    "performance_schema": "OFF",
}


@dataclass
class MariaDb:
    """A running server. `USER` with `PASSWORD` may do everything from 127.0.0.1."""

    folder: Path
    port: int
    options: dict[str, str]
    process: subprocess.Popen[bytes]
    _admin: list[Any] = field(default_factory=list)

    @property
    def logs(self) -> list[Path]:
        """The binary logs, the oldest first. Newer servers have indexes beside them."""
        return sorted(self.folder.glob(f"binlog/{BASE}.*[0-9]"))

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements as the administrator, each in its own transaction. Returns the rows of the last."""
        import pymysql

        if not self._admin:
            self._admin.append(
                pymysql.connect(
                    host="127.0.0.1",
                    port=self.port,
                    user=USER,
                    password=PASSWORD.encode(),
                    autocommit=True,
                    charset="utf8mb4",
                )
            )
        with self._admin[0].cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    @property
    def gtids(self) -> str:
        """The GTIDs of all that it has committed."""
        return str(self.run("SELECT @@gtid_binlog_pos")[0][0])

    def name_gtid(self, gtid: str) -> str:
        """A GTID of MariaDB as this server writes it."""
        return gtid

    def commit(self, gtid: str, statement: str) -> None:
        """Commit a transaction as a replica does that has it from another server."""
        domain, server_id, number = gtid.split("-")
        self.run(
            f"SET gtid_domain_id = {domain}, server_id = {server_id}, gtid_seq_no = {number}",
            statement,
            "SET gtid_domain_id = DEFAULT, server_id = DEFAULT",
        )

    def reset(self, last: int = 0) -> None:
        """Make its logs anew. `last`: of its own transactions it is told to have had so many."""
        self.run("RESET MASTER", *([f"SET GLOBAL gtid_binlog_state = '0-1-{last}'"] if last else []))

    def numbers(self, last: int) -> str:
        """What to select `seq` from, for 1 to `last`."""
        return f"seq_1_to_{last}"

    def kill(self) -> None:
        """As a machine that dies."""
        self._forget()
        stop(self.process, signal.SIGKILL)

    def stop(self) -> None:
        self._forget()
        stop(self.process, seconds=60)

    def restart(self) -> None:
        """Start again on the same port (after `stop` or `kill`)."""
        self.process = launch(_server(), self.folder, self.port, self.options)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _forget(self) -> None:
        for connection in self._admin:
            connection._force_close()
        self._admin = []


Server = TypeVar("Server", bound=MariaDb)


def start(options: dict[str, str] | None = None) -> MariaDb:
    """Start a server; `options` are further options of mariadbd. Raises PartMissing where this machine has no MariaDB."""
    return start_from(_make_template(), MariaDb, _server(), options)


def start_from(template: Path, kind: type[Server], program: Sequence[str], options: dict[str, str] | None) -> Server:
    """Start a server of a copy of a data folder."""
    folder = Path(tempfile.mkdtemp(prefix="tidemark-mariadb-"))
    shutil.copytree(template, folder / "data")
    make_folders(folder)
    every = _OPTIONS | (options or {})
    for left in reversed(range(START_TRIES)):
        port = free_port()
        try:
            return kind(folder, port, every, launch(program, folder, port, every))
        except RuntimeError:  # the port was taken meanwhile
            if not left:
                raise
    raise AssertionError("unreachable")


def make_folders(folder: Path) -> None:
    """Where a server has its logs, and its temporary tables: one that starts deletes all `#sql*` of its temporary folder,
    those of another server, too, whose questions fail then or who dies of it (seen)."""
    for name in ("binlog", "tmp"):
        (folder / name).mkdir()


def _find(name: str) -> str:
    found = shutil.which(name, path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    if found is None:
        raise PartMissing(f"no {name}: apt-get install mariadb-server")
    return found


def _server() -> list[str]:
    return [_find("mariadbd"), "--no-defaults"]


@functools.cache
def _make_template() -> Path:
    """An empty data folder with the administrator, made once and copied for each server."""
    folder = Path(tempfile.mkdtemp(prefix="tidemark-mariadb-empty-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    data = f"--datadir={folder}"
    own = ["--user=root"] if IS_ROOT else []
    install = [
        _find("mariadb-install-db"),
        "--no-defaults",
        data,
        f"--tmpdir={folder}",
        "--skip-test-db",
        "--auth-root-authentication-method=normal",
    ]
    for left in reversed(range(START_TRIES)):  # beside another, on a busy machine, it failed sometimes
        if not subprocess.run([*install, *own], capture_output=True, timeout=START_SECONDS, check=not left).returncode:
            break
        shutil.rmtree(folder)
        folder.mkdir()
    bootstrap(_server(), folder, "USE mysql;\nFLUSH PRIVILEGES;\n" + ACCOUNTS)
    return folder


def bootstrap(program: Sequence[str], data: Path, statements: str) -> None:
    """Run statements in a data folder that no server has."""
    words = [*program, f"--datadir={data}", f"--tmpdir={data}", "--bootstrap", "--skip-log-bin"]
    words += ["--character-set-server=utf8mb4", *(["--user=root"] if IS_ROOT else [])]
    subprocess.run(words, input=statements.encode(), check=True, capture_output=True, timeout=START_SECONDS)


def launch(program: Sequence[str], folder: Path, port: int, options: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start the server of a folder, and wait until it is ready."""
    words = [*program, f"--datadir={folder}/data", f"--tmpdir={folder}/tmp", f"--socket={folder}/s", f"--port={port}"]
    words += ["--bind-address=127.0.0.1", "--skip-name-resolve", f"--log-bin={folder}/binlog/{BASE}"]
    words += [f"--pid-file={folder}/pid", "--user=root"] if IS_ROOT else [f"--pid-file={folder}/pid"]
    words += [f"--{name}={value}" for name, value in options.items()]
    with (folder / "log").open("ab") as log:
        before = log.tell()
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent())
    ready = b"ready for connections"
    wait_until(lambda: ready in (folder / "log").read_bytes()[before:], process, START_SECONDS, "MariaDB")
    return process
