"""A real MariaDB of the version that Debian's unstable suite has (11.8 and later). `unstable` fetches it."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.services.mariadb import ACCOUNTS, MariaDb, bootstrap, launch, start_from
from tests.services.unstable import fetch_packages, start_by_loader

_PACKAGES = ("mariadb-server-core", "mariadb-client-core")
_TABLES = (
    *("mariadb_system_tables.sql", "mariadb_performance_tables.sql", "mariadb_system_tables_data.sql"),
    *("maria_add_gis_sp_bootstrap.sql", "mariadb_sys_schema.sql"),
)


@dataclass
class NewestMariaDb(MariaDb):
    """A running server. What a test does with a `MariaDb` it does with this one."""

    def restart(self) -> None:
        self.process = launch(_server(), self.folder, self.port, self.options)


def start(options: dict[str, str] | None = None) -> NewestMariaDb:
    """Start a server; `options` are further options of mariadbd. Raises PartMissing where this machine has none."""
    return start_from(_make_template(), NewestMariaDb, _server(), options)


def _server() -> list[str]:
    root = fetch_packages("mariadb", _PACKAGES)
    words = start_by_loader(root, "usr/sbin/mariadbd", "--no-defaults", f"--lc-messages-dir={root}/usr/share/mariadb")
    return [*words, f"--character-sets-dir={root}/usr/share/mariadb/charsets", f"--plugin-dir={root}/usr/lib/mysql/plugin"]


@functools.cache
def _make_template() -> Path:
    """An empty data folder with the administrator, made once and copied for each server."""
    folder = Path(tempfile.mkdtemp(prefix="tidemark-newest-mariadb-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    scripts = fetch_packages("mariadb", _PACKAGES) / "usr/share/mariadb"
    tables = "\n".join((scripts / name).read_text(encoding="utf-8") for name in _TABLES)
    bootstrap(_server(), folder, f"CREATE DATABASE mysql;\nUSE mysql;\n{tables}\nUSE mysql;\nFLUSH PRIVILEGES;\n{ACCOUNTS}")
    return folder
