"""The original Sync Tool of IoTDB 0.12.0: its server, which receives and loads, and its client, which sends.

Both come in one jar of Maven Central; its digest is pinned. Configured as the tool's own manual has it: sync enabled, any
address allowed, week-long partitions, no compaction, since nothing else shall run. The client keeps the memory settings
that its start script has: none.
"""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.services import maven
from tests.services.iotdb import LOGBACK, OTHER_LOGS, START_SECONDS, java
from tests.services.maven import Jars
from tests.services.processes import PartMissing, die_with_parent, free_port, stop, wait_until

VERSION = "0.12.0"
DIGEST = "eb938a38b9472c50533e4971a8d78945fadf8074000e88d6c28ff4e3cc0ea81a"
_NOT_ON_CENTRAL = (
    "io.moquette:moquette-broker",
    "com.sun.istack:istack-commons-runtime",
    "org.glassfish.jaxb:jaxb-runtime",
)
_ARTIFACTS = (f"org.apache.iotdb:iotdb-server:{VERSION}", "io.moquette:moquette-broker:0.16")
_SERVER = "org.apache.iotdb.db.service.IoTDB"
_CLIENT = "org.apache.iotdb.db.sync.sender.transfer.SyncClient"
_AGAIN_SECONDS = 600  # between two rounds of the client: the first is what is measured
HEAP = "1500m"


@dataclass
class Server:
    """A running server. `data`: its data folders and its schema; `port` takes sessions, `sync_port` the tool's files."""

    folder: Path
    port: int
    sync_port: int
    process: subprocess.Popen[bytes]

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def close(self, kindly: bool = False) -> None:
        """`kindly`: it seals its files first."""
        stop(self.process, signal.SIGTERM if kindly else signal.SIGKILL, seconds=60)


def jars() -> Path:
    """The folder of the jars. Raises PartMissing where they cannot be had."""
    try:
        found = maven.fetch(Jars(VERSION, _ARTIFACTS, (*OTHER_LOGS, *_NOT_ON_CENTRAL)))
    except PartMissing as missing:
        raise PartMissing(f"{missing}; or name a cache that has {VERSION}/lib by TIDEMARK_TEST_IOTDB_CACHE") from missing
    tool = found / f"iotdb-server-{VERSION}.jar"
    digest = hashlib.sha256(tool.read_bytes()).hexdigest()
    if digest != DIGEST:
        raise PartMissing(f"{tool} is not the published one: its SHA-256 is {digest}; remove its folder and start again")
    return found


def start(folder: Path, port: int = 0, settings: Mapping[str, str] | None = None) -> Server:
    """A server on `folder`/data, empty or as a server left it. `port`: for sessions; 0: any free one."""
    lib = jars()
    port = port or free_port()
    sync_port, mqtt, metrics, rest = (free_port() for _ in range(4))
    _configure(
        folder,
        {"rpc_port": port, "sync_server_port": sync_port, "mqtt_port": mqtt, "metrics_port": metrics, "rest_port": rest},
        settings or {},
    )
    with (folder / "server.out").open("wb") as out:
        process = subprocess.Popen(
            [*_words(folder, lib, "server", HEAP), _SERVER],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            preexec_fn=die_with_parent(signal.SIGKILL),
        )
    server = Server(folder, port, sync_port, process)
    try:
        for each in (port, sync_port):
            wait_until(partial(_listens, each), process, START_SECONDS, f"IoTDB {VERSION} (log: {folder})")
    except BaseException:
        server.close()
        raise
    return server


def client(folder: Path, sync_port: int) -> list[str]:
    """The command line of the sending client, for what lies in `folder`/data. It goes on until it is killed."""
    _configure(folder, {}, {})
    (folder / "conf" / "iotdb-sync-client.properties").write_text(
        f"server_ip=127.0.0.1\nserver_port={sync_port}\nsync_period_in_second={_AGAIN_SECONDS}\nmax_number_of_sync_file_retry=5\n"
    )
    return [*_words(folder, jars(), "sync", ""), _CLIENT]


def _configure(folder: Path, ports: Mapping[str, int], more: Mapping[str, str]) -> None:
    settings = {
        "rpc_address": "127.0.0.1",
        "is_sync_enable": "true",
        "ip_white_list": "0.0.0.0/0",
        "base_dir": folder / "data",
        "data_dirs": folder / "data" / "data",
        "system_dir": folder / "data" / "system",
        "wal_dir": folder / "data" / "wal",
        "enable_partition": "true",
        "partition_interval": 604_800,
        "virtual_storage_group_num": 1,
        "compaction_strategy": "NO_COMPACTION",
        "enable_unseq_compaction": "false",
        "enable_metric_service": "false",
        "wal_buffer_size": 16_777_216,
        "query_timeout_threshold": 600_000,
        **ports,
        **more,
    }
    (folder / "conf").mkdir(parents=True, exist_ok=True)
    text = "".join(f"{key}={value}\n" for key, value in settings.items())
    (folder / "conf" / "iotdb-engine.properties").write_text(text)
    for role in ("server", "sync"):
        (folder / "conf" / f"logback-{role}.xml").write_text(LOGBACK.format(log=folder / f"{role}.log"))


def _words(folder: Path, lib: Path, role: str, heap: str) -> list[str]:
    places = {"IOTDB_HOME": folder, "IOTDB_DATA_HOME": folder, "IOTDB_CONF": folder / "conf", "TSFILE_HOME": folder}
    defines = {
        **places,
        "TSFILE_CONF": folder / "conf",
        "logback.configurationFile": folder / "conf" / f"logback-{role}.xml",
    }
    return [
        *java(heap),
        *(f"-D{key}={value}" for key, value in defines.items()),
        "-cp",
        f"{folder / 'conf'}{os.pathsep}{lib}/*",
    ]


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False
