"""Real IoTDBs before 2.0 on 127.0.0.1, one JVM each: 0.12.0, as bench/sync_tool.py starts it, and 1.0.1.

Of 1.x this is the version whose server can be put together from Maven Central. Its ConfigNode is not there, of no 1.x; so
it runs in the standalone mode that it still has (`NewIoTDB`): parser, LOAD, types, storage and flush are those of 1.0, its
partitions are kept by itself. That mode cannot word its answer to an insert, though it does it; cannot name its variables;
and plans no question without a bounded time.
"""

from __future__ import annotations

import hashlib
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench import sync_tool
from tests.services import maven
from tests.services.iotdb import LOGBACK, OTHER_LOGS, START_SECONDS, STOP_SECONDS, java
from tests.services.maven import Jars
from tests.services.processes import PartMissing, die_with_parent, free_port, stop, stop_java, wait_until
from tidemark.errors import OutcomeUnknownError
from tidemark.receiver.iotdb.server import Connected
from tidemark.receiver.iotdb.session import Rows
from tidemark.receiver.iotdb.thrift import Server

ALONE = "1.0.1"
DIGEST = "58a0e300a05f718dfbd8009fd352896c764e6162222a4c848a2741449ec93096"
VERSIONS = (sync_tool.VERSION, ALONE)
_MAIN = "org.apache.iotdb.db.service.NewIoTDB"
_OTHER_PORTS = ("internal", "mpp_data_exchange", "schema_region_consensus", "data_region_consensus")


@dataclass
class OldIoTDB:
    """A running server; its data lie in `folder`/data."""

    version: str
    folder: Path
    port: int
    process: subprocess.Popen[bytes]
    settings: Mapping[str, str]  # of 0.12.0, over those of bench/sync_tool.py

    def run(self, statement: str) -> None:
        with self._connected() as server:
            server.run(statement)

    def insert(self, into: str, rows: Sequence[str]) -> None:
        """Insert rows `(time, value, …)`. The answer may be lost, as the standalone 1.0.1 loses it: the rows are there."""
        together = 1 if self.version.startswith("0.12") else 13
        with self._connected() as server:
            for at in range(0, len(rows), together):
                with suppress(OutcomeUnknownError):
                    server.run(f"insert into {into} values {', '.join(rows[at : at + together])}")

    def rows(self, question: str) -> Rows:
        with self._connected() as server:
            return server.rows(question)

    def kill(self) -> None:
        """As a power cut would: nothing is flushed."""
        stop(self.process, signal.SIGKILL)

    def stop(self) -> None:
        """In order: it seals what it has. RuntimeError where it does not end by itself."""
        stop_java(self.process, STOP_SECONDS)

    def again(self) -> None:
        """Start what was killed or stopped on what it left."""
        self.process = _launch(self.version, self.folder, self.port, self.settings)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _connected(self) -> Connected:
        return Connected(Server("127.0.0.1", self.port, "root", "root"))


def start(version: str, settings: Mapping[str, str] | None = None) -> OldIoTDB:
    """A server with an empty folder of its own. PartMissing without Java, Maven or the jars."""
    folder = Path(tempfile.mkdtemp(prefix="tidemark-iotdb-"))
    try:
        port = free_port()
        return OldIoTDB(version, folder, port, _launch(version, folder, port, settings or {}), settings or {})
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def jars() -> Path:
    """The folder of 1.0.1's jars, by Maven on the first call. PartMissing where they cannot be had."""
    found = maven.fetch(Jars(ALONE, [f"org.apache.iotdb:iotdb-server:{ALONE}"], OTHER_LOGS))
    digest = hashlib.sha256((found / f"iotdb-server-{ALONE}.jar").read_bytes()).hexdigest()
    if digest != DIGEST:
        raise PartMissing(f"{found} is not the published {ALONE}: SHA-256 {digest}; remove its folder and start again")
    return found


def _launch(version: str, folder: Path, port: int, settings: Mapping[str, str]) -> subprocess.Popen[bytes]:
    if version != ALONE:
        return sync_tool.start(folder, port, settings).process
    lib = jars()
    conf, log = folder / "conf", folder / "server.log"
    if not conf.exists():
        _configure(folder, port)
    log.unlink(missing_ok=True)  # of a server that was killed: its sign is of that life
    defines = {
        **dict.fromkeys(("IOTDB_HOME", "IOTDB_DATA_HOME", "TSFILE_HOME"), folder),
        **dict.fromkeys(("IOTDB_CONF", "TSFILE_CONF"), conf),
        "logback.configurationFile": conf / "logback.xml",
    }
    words = [f"-D{key}={value}" for key, value in defines.items()]
    with (folder / "server.out").open("wb") as out:
        process = subprocess.Popen(
            [*java("768m"), *words, "-cp", f"{conf}:{lib}/*", _MAIN],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            preexec_fn=die_with_parent(signal.SIGKILL),
        )
    try:
        wait_until(lambda: log.exists() and "has started" in log.read_text(), process, START_SECONDS, f"IoTDB {version}")
    except BaseException:
        stop(process, signal.SIGKILL)
        raise
    return process


def _configure(folder: Path, port: int) -> None:
    """What 1.0.1 reads before it starts. Its ports are those of its first start: it refuses others."""
    conf, data = folder / "conf", folder / "data"
    conf.mkdir()
    settings = {"dn_rpc_port": port, "dn_rpc_address": "127.0.0.1", "dn_internal_address": "127.0.0.1"}
    settings["dn_data_dirs"] = data / "data"
    settings |= {f"dn_{name}_port": free_port() for name in _OTHER_PORTS}
    settings |= {f"dn_{name}": data / name for name in ("system_dir", "wal_dirs", "consensus_dir")}
    settings |= {f"dn_{name}": data / name for name in ("sync_dir", "tracing_dir")}
    consensus = "org.apache.iotdb.consensus.simple.SimpleConsensus"
    common = {f"{role}_consensus_protocol_class": consensus for role in ("schema_region", "data_region", "config_node")}
    common |= {f"enable_{space}_space_compaction": "false" for space in ("seq", "unseq", "cross")}
    for name, values in (("datanode", settings), ("common", common)):
        (conf / f"iotdb-{name}.properties").write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    (conf / "logback.xml").write_text(LOGBACK.format(log=folder / "server.log"))
    known = data / "system_dir" / "schema" / "system.properties"  # a DataNode makes it when it joins; this mode looks for it
    known.parent.mkdir(parents=True)
    known.write_text(f"iotdb_version={ALONE}\n")
