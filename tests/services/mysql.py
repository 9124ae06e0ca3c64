"""A real MySQL on 127.0.0.1 with binary logs, of the version that Debian's unstable suite has.

`unstable` fetches it. `TIDEMARK_TEST_MYSQL_CACHE` names the cache (default `~/.cache/tidemark-mysql`).
"""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.services.mariadb import ACCOUNTS, BASE, START_SECONDS, START_TRIES, MariaDb, make_folders
from tests.services.processes import IS_ROOT, die_with_parent, free_port, wait_until
from tests.services.unstable import fetch_packages, start_by_loader

_PACKAGES = ("mysql-server-core", "mysql-client-core")
_OPTIONS = {
    "server_id": "1",
    "gtid_mode": "ON",
    "enforce_gtid_consistency": "ON",
    "binlog_row_metadata": "FULL",
    "sync_binlog": "0",
    "innodb_flush_log_at_trx_commit": "0",
    "innodb_buffer_pool_size": "32M",
    "innodb_redo_log_capacity": "64M",
    "max_allowed_packet": "256M",
    "performance_schema": "OFF",
    "mysqlx": "OFF",
    "secure_file_priv": "",
    "cte_max_recursion_depth": "1000000",
}


@dataclass
class MySql(MariaDb):
    """A running server. What a test does with a `MariaDb` it does with this one."""

    @property
    def gtids(self) -> str:
        return str(self.run("SELECT @@GLOBAL.gtid_executed")[0][0]).replace("\n", "")

    def name_gtid(self, gtid: str) -> str:
        """A domain stands for a UUID: 0 for that of this server."""
        domain, _, number = gtid.split("-")
        uuid = self.run("SELECT @@server_uuid")[0][0] if domain == "0" else f"{domain * 8}-0000-0000-0000-000000000000"
        return f"{uuid}:{number}"

    def commit(self, gtid: str, statement: str) -> None:
        self.run(f"SET gtid_next = '{self.name_gtid(gtid)}'", statement, "SET gtid_next = AUTOMATIC")

    def reset(self, last: int = 0) -> None:
        self.run("RESET BINARY LOGS AND GTIDS")
        if last:
            self.run(f"SET GLOBAL gtid_purged = '{self.name_gtid('0-1-1')}-{last}'")

    def numbers(self, last: int) -> str:
        return (
            "(WITH RECURSIVE q (seq) AS (SELECT 1 UNION ALL SELECT seq + 1 FROM q"
            f" WHERE seq < {last}) SELECT seq FROM q) AS numbers"
        )

    def restart(self) -> None:
        self.process = _launch(self.folder, self.port, self.options)


def start(options: dict[str, str] | None = None) -> MySql:
    """Start a server; `options` are further options of mysqld. Raises PartMissing where this machine has no MySQL."""
    template = _make_template()
    folder = Path(tempfile.mkdtemp(prefix="tidemark-mysql-"))
    shutil.copytree(template, folder / "data")
    make_folders(folder)
    every = _OPTIONS | (options or {})
    for left in reversed(range(START_TRIES)):
        port = free_port()
        try:
            return MySql(folder, port, every, _launch(folder, port, every))
        except RuntimeError:  # the port was taken meanwhile
            if not left:
                raise
    raise AssertionError("unreachable")


def command(program: str, *words: str) -> list[str]:
    """A program of the packages, such as `usr/bin/mysqlbinlog`. Raises PartMissing."""
    return start_by_loader(_find_root(), program, *words)


def _find_root() -> Path:
    return fetch_packages("mysql", _PACKAGES)


@functools.cache
def _make_template() -> Path:
    """An empty data folder with the administrator, made once and copied for each server."""
    mysqld = _mysqld()
    folder = Path(tempfile.mkdtemp(prefix="tidemark-mysql-empty-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    accounts = folder / "accounts.sql"
    accounts.write_text(ACCOUNTS, encoding="utf-8")
    words = [*mysqld, f"--datadir={folder}/data", "--initialize-insecure", f"--init-file={accounts}"]
    subprocess.run([*words, "--secure-file-priv="], check=True, capture_output=True, timeout=START_SECONDS)
    (folder / "data" / "auto.cnf").unlink()  # each server makes an UUID of its own
    return folder / "data"


def _mysqld() -> list[str]:
    own = ["--user=root"] if IS_ROOT else []
    words = command("usr/sbin/mysqld", "--no-defaults", f"--lc-messages-dir={_find_root()}/usr/share/mysql", *own)
    return [*words, f"--plugin-dir={_find_root()}/usr/lib/mysql/plugin", "--character-set-server=utf8mb4"]


def _launch(folder: Path, port: int, options: dict[str, str]) -> subprocess.Popen[bytes]:
    words = [*_mysqld(), f"--datadir={folder}/data", f"--socket={folder}/s", f"--port={port}", f"--pid-file={folder}/pid"]
    words += [
        f"--tmpdir={folder}/tmp",
        "--bind-address=127.0.0.1",
        "--skip-name-resolve",
        f"--log-bin={folder}/binlog/{BASE}",
    ]
    words += [f"--{name}={value}" for name, value in options.items()]
    with (folder / "log").open("ab") as log:
        before = log.tell()
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent())
    ready = b"ready for connections"
    wait_until(lambda: ready in (folder / "log").read_bytes()[before:], process, START_SECONDS, "MySQL")
    return process
