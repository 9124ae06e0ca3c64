"""A real single-node IoTDB 2.0.1-beta on 127.0.0.1: two JVMs (ConfigNode, DataNode) from Maven Central's jars.

Of the 2.x line this is the version whose jars are all there (research: newer ones cannot be put together). The jars are
fetched once into a cache outside the project. SQL goes through the server's own command line.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.services import maven
from tests.services.maven import Jars
from tests.services.processes import die_with_parent, free_port, stop, stop_java, wait_until

VERSION = "2.0.1-beta"
START_SECONDS, STOP_SECONDS = 120.0, 60.0
PORTS = ("rpc", "internal", "exchange", "schema", "data", "config", "consensus")
_ROWS_END, _MESSAGE = "It costs ", "Msg: "
OPEN_PACKAGES = (
    "java.lang",
    "java.lang.reflect",
    "java.util",
    "java.util.concurrent",
    "java.nio",
    "java.io",
    "java.net",
    "sun.nio.ch",
)
OTHER_LOGS = ("org.slf4j:slf4j-reload4j", "org.slf4j:slf4j-log4j12")  # they would win over logback: nothing logged
LOGBACK = (
    '<configuration><appender name="F" class="ch.qos.logback.core.FileAppender"><file>{log}</file><encoder>'
    '<pattern>%d %-5p %c{{1}} - %m%n</pattern></encoder></appender><root level="INFO"><appender-ref ref="F"/></root>'
    "</configuration>"
)


@dataclass
class IoTDB:
    """A running node. `incoming` is a folder it can read files from."""

    folder: Path
    jars: Path
    ports: Mapping[str, int]
    heap: str = "768m"
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _lines: dict[bool, subprocess.Popen[bytes]] = field(default_factory=dict)  # by "the table model's dialect"

    @property
    def incoming(self) -> Path:
        place = self.folder / "incoming"
        place.mkdir(exist_ok=True)
        return place

    def query(self, sql: str, table: bool = False) -> list[list[str]]:
        """The rows of a query as the command line prints them, times as integers. RuntimeError with the server's message.

        Fewer than a thousand: after so many the command line stops and waits for Enter.
        """
        *lines, last = self._say(sql, table)
        if not last.startswith(_ROWS_END):
            raise RuntimeError(f"{sql}: {last}")
        printed = [line for line in lines if line.startswith("|")]
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in printed[1:]]

    def run(self, sql: str, table: bool = False) -> None:
        """A statement without rows. RuntimeError with the server's message."""
        last = self._say(sql, table)[-1]
        if "executed successfully" not in last:
            raise RuntimeError(f"{sql}: {last}")

    def kill(self) -> None:
        """The DataNode, as a power cut would: nothing is flushed.

        The ConfigNode lives on. Killed, 2.0.1-beta's forgets databases and regions that it acknowledged minutes before, and
        the DataNode, which still has them, refuses what is then made under the same numbers ("SchemaRegion[17] is
        duplicated", 906).
        """
        config_node, *others = self.processes
        for process in reversed(others):
            stop(process, signal.SIGKILL)
        self.processes[:] = [config_node]
        self._lines.clear()

    def stop(self) -> None:
        """The DataNode, in order: it seals what it has. RuntimeError where it does not end by itself."""
        _, data_node, *_ = self.processes
        stop_java(data_node, STOP_SECONDS)
        self.kill()  # the command lines

    def again(self) -> None:
        """Start what was killed or stopped on what it left."""
        _launch_data_node(self)

    def close(self) -> None:
        for process in reversed(self.processes):
            stop(process, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _say(self, sql: str, table: bool) -> list[str]:
        """What the command line of that dialect prints for one statement, to its end or its message."""
        if table not in self._lines:
            self._lines[table] = self._start_line(table)
        line = self._lines[table]
        assert line.stdin is not None and line.stdout is not None
        line.stdin.write(f"{sql};\n".encode())
        line.stdin.flush()
        printed: list[str] = []
        for raw in line.stdout:
            printed.append(raw.decode().rstrip("\r\n"))
            if printed[-1].startswith((_ROWS_END, _MESSAGE)):
                return printed
        raise RuntimeError(f"IoTDB's command line ended: {printed[-20:]}")

    def _start_line(self, table: bool) -> subprocess.Popen[bytes]:
        """One JVM a dialect: it takes two seconds to start."""
        dialect = ["-sql_dialect", "table"] if table else []
        words = ["-h", "127.0.0.1", "-p", str(self.ports["rpc"]), "-u", "root", "-pw", "root", "-disableISO8601", *dialect]
        quick = "-XX:TieredStopAtLevel=1"
        process = subprocess.Popen(
            [*java("256m"), quick, "-Dfile.encoding=UTF-8", "-cp", f"{self.jars}/*", "org.apache.iotdb.cli.Cli", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            preexec_fn=die_with_parent(signal.SIGKILL),
        )
        self.processes.append(process)
        return process


def start(settings: Mapping[str, str] | None = None, heap: str = "768m") -> IoTDB:
    """A node with an empty folder of its own. `heap`: of the DataNode, '' as its JVM takes it by itself. PartMissing
    without Java, Maven or the jars."""
    jars = fetch()
    folder = Path(tempfile.mkdtemp(prefix="tidemark-iotdb-"))
    node = IoTDB(folder, jars, {name: free_port() for name in PORTS}, heap)
    try:
        _configure(node, settings or {})
        _launch_both(node)
    except BaseException:
        node.close()
        raise
    return node


def _launch_both(node: IoTDB) -> None:
    _launch(node, "confignode", "org.apache.iotdb.confignode.service.ConfigNode", "256m")
    _launch_data_node(node)


def _launch_data_node(node: IoTDB) -> None:
    _launch(node, "datanode", "org.apache.iotdb.db.service.DataNode", node.heap)
    _wait_for_both(node)


def fetch() -> Path:
    """The folder of the jars, by Maven on the first call. PartMissing where that cannot be."""
    artifacts = [f"org.apache.iotdb:{name}:{VERSION}" for name in ("iotdb-server", "iotdb-confignode", "iotdb-cli")]
    return maven.fetch(Jars(VERSION, artifacts, OTHER_LOGS))


def _configure(node: IoTDB, settings: Mapping[str, str]) -> None:
    for name in ("conf", "logs", "data"):
        (node.folder / name).mkdir()
    port = node.ports
    seed = f"127.0.0.1:{port['config']}"
    alone = "org.apache.iotdb.consensus.simple.SimpleConsensus"
    values = {
        "cluster_name": "tidemark_test",
        "cn_seed_config_node": seed,
        "dn_seed_config_node": seed,
        "cn_internal_address": "127.0.0.1",
        "cn_internal_port": port["config"],
        "cn_consensus_port": port["consensus"],
        "dn_rpc_address": "127.0.0.1",
        "dn_rpc_port": port["rpc"],
        "dn_internal_address": "127.0.0.1",
        "dn_internal_port": port["internal"],
        "dn_mpp_data_exchange_port": port["exchange"],
        "dn_schema_region_consensus_port": port["schema"],
        "dn_data_region_consensus_port": port["data"],
        "config_node_consensus_protocol_class": alone,
        "schema_region_consensus_protocol_class": alone,
        "data_region_consensus_protocol_class": alone,
        "dn_metric_level": "OFF",
        "cn_metric_level": "OFF",
        "enable_audit_log": "false",
        "wal_buffer_size_in_byte": 1 << 20,
        "compaction_schedule_interval_in_ms": 3_600_000_000,  # compaction only when asked for
        "dn_data_dirs": node.folder / "data" / "datanode" / "data",
        **settings,
    }
    text = "".join(f"{key}={value}\n" for key, value in values.items())
    (node.folder / "conf" / "iotdb-system.properties").write_text(text)


def _launch(node: IoTDB, role: str, main: str, heap: str) -> None:
    folder = node.folder
    logback = folder / "conf" / f"logback-{role}.xml"
    logback.write_text(LOGBACK.format(log=folder / "logs" / f"{role}.log"))
    base = "CONFIGNODE" if role == "confignode" else "IOTDB"
    places = {"HOME": folder, "DATA_HOME": folder, "CONF": folder / "conf", "LOGS": folder / "logs"}
    defines = {f"{base}_{name}": place for name, place in places.items()} | {
        "IOTDB_LOG_DIR": folder / "logs",
        "TSFILE_HOME": folder,
        "TSFILE_CONF": folder / "conf",
        "logback.configurationFile": logback,
        "OFF_HEAP_MEMORY": "256m",
        "iotdb-foreground": "yes",
    }
    words = [f"-D{key}={value}" for key, value in defines.items()]
    log = folder / "logs" / f"{role}.log"
    log.unlink(missing_ok=True)  # of a node that was killed: its sign is of that life
    out = (folder / "logs" / f"{role}.out").open("wb")
    with out:
        process = subprocess.Popen(
            [*java(heap), *words, "-cp", f"{folder / 'conf'}:{node.jars}/*", main, "-s"],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            preexec_fn=die_with_parent(signal.SIGKILL),
        )
    node.processes.append(process)
    if role == "confignode":
        sign = "start successfully"
        wait_until(lambda: log.exists() and sign in log.read_text(errors="replace"), process, START_SECONDS, role)


def _wait_for_both(node: IoTDB) -> None:
    """The port opens before the node is registered, so the command line is asked until both roles run."""
    deadline = time.monotonic() + START_SECONDS
    said = ""
    while True:
        if _listens(node.ports["rpc"]):
            try:
                if sum("Running" in row for row in node.query("show cluster")) >= 2:
                    return
            except (RuntimeError, OSError) as not_yet:
                said = str(not_yet)
                node.processes.remove(line := node._lines.pop(False))
                stop(line, signal.SIGKILL)
        if time.monotonic() > deadline or any(process.poll() is not None for process in node.processes):
            logs = "".join(p.read_text(errors="replace")[-1500:] for p in sorted((node.folder / "logs").iterdir()))
            raise RuntimeError(f"IoTDB did not start: {said[-500:]}\n{logs}")
        time.sleep(0.2)


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


def java(heap: str = "") -> list[str]:
    """The start of a command line; without `heap` with the memory that a JVM takes by itself."""
    opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPEN_PACKAGES]
    sizes = ["-Xms64m", f"-Xmx{heap}", "-XX:MaxDirectMemorySize=256m", "-XX:+UseSerialGC"] if heap else []
    return ["java", *sizes, *opens]
