"""What a server says of itself that a capture needs to know, read once, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidemark.changes.binlog.gtid_sets import MariaGtidPosition, MysqlGtidSet
from tidemark.changes.connection.login import Server
from tidemark.changes.connection.model import FilePosition
from tidemark.errors import CorruptionError, UsageError


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica that is connected to the server. `uuid` is empty at MariaDB."""

    server_id: int
    host: str
    uuid: str


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """A server, as it is at one time. What the server has no variable for is "" or 0; what we may not ask is None."""

    is_maria: bool
    version: str
    version_numbers: tuple[int, ...]
    server_id: int
    server_uuid: str
    """Empty at MariaDB."""
    hostname: str
    time: float
    """The server's clock, seconds since 1970."""
    log_bin: bool
    end: FilePosition | None
    """Where the newest log ends. A transaction before it is not yet seen by every SELECT."""
    gtids: MysqlGtidSet | MariaGtidPosition
    """`gtid_executed`; at MariaDB `gtid_binlog_pos`."""
    purged: MysqlGtidSet
    """`gtid_purged`; empty at MariaDB."""
    has_gtids: bool
    """MariaDB, or MySQL with `gtid_mode` ON."""
    logs: tuple[tuple[str, int], ...]
    """(name, bytes) of each binary log that is there, the oldest first. One that somebody removed without telling the server
    is in its list with 0 bytes: it is left out."""
    binlog_format: str
    row_image: str
    row_metadata: str
    row_value_options: str
    checksum: str
    is_compressed: bool
    is_encrypted: bool
    is_replica: bool | None
    log_replica_updates: bool
    do_db: str
    ignore_db: str
    expire_seconds: int
    """0: logs are not purged by age."""
    space_limit: int
    """Bytes of all logs above which the oldest is purged; 0: none."""
    lower_case_table_names: int
    grants: tuple[str, ...]
    """As SHOW GRANTS prints them, without what a password could be found by."""
    replicas: tuple[Replica, ...] | None


_VARIABLES = (
    *("server_id", "server_uuid", "hostname", "log_bin", "gtid_mode", "gtid_executed", "gtid_purged", "gtid_binlog_pos"),
    *("binlog_format", "binlog_row_image", "binlog_row_metadata", "binlog_row_value_options", "binlog_checksum"),
    *("log_bin_compress", "binlog_transaction_compression", "encrypt_binlog", "binlog_encryption"),
    *("log_slave_updates", "log_replica_updates", "lower_case_table_names", "max_binlog_total_size", "binlog_space_limit"),
    *("expire_logs_days", "binlog_expire_logs_seconds", "binlog_expire_logs_auto_purge"),
)


def read_facts(server: Server) -> ServerFacts:
    """Ask for all of it: some ten short questions, one after the other. Raises as `Server.ask`."""
    variables = server.read_variables(*_VARIABLES)
    log_bin = variables.get("log_bin") == "ON"
    logs = read_logs(server) if log_bin else ()
    status = server.ask_if_allowed(status_question(server)) or [] if log_bin else []
    clock = server.ask("SELECT UNIX_TIMESTAMP() AS clock")
    grants = server.ask("SHOW GRANTS")
    is_replica = server.is_replica()
    replicas = read_replicas(server)
    try:
        return ServerFacts(
            **_read_variables(variables, is_maria=server.is_maria),
            version=server.version,
            version_numbers=server.version_numbers,
            time=float(clock[0]["clock"]),
            end=FilePosition(str(status[0]["File"]), int(status[0]["Position"])) if status else None,
            do_db=str(status[0].get("Binlog_Do_DB") or "") if status else "",
            ignore_db=str(status[0].get("Binlog_Ignore_DB") or "") if status else "",
            logs=logs,
            grants=tuple(str(next(iter(row.values()))).partition(" IDENTIFIED ")[0] for row in grants),
            is_replica=is_replica,
            replicas=replicas,
        )
    except (LookupError, ValueError, TypeError, StopIteration, UsageError) as error:
        raise CorruptionError(f"{server.name} answers what no server does: {error!r}", subject=server.name) from error


def read_logs(server: Server) -> tuple[tuple[str, int], ...]:
    """(name, bytes) of each binary log that is there, the oldest first; none if the login may not ask."""
    rows = server.ask_if_allowed("SHOW BINARY LOGS") or []
    try:
        logs = [(str(row["Log_name"]), int(row["File_size"])) for row in rows]
    except (LookupError, ValueError, TypeError) as error:
        raise CorruptionError(f"{server.name} answers what no server does: {error!r}", subject=server.name) from error
    return tuple((name, size) for name, size in logs if size)


def read_replicas(server: Server) -> tuple[Replica, ...] | None:
    """Who replicates from the server now; None if the login may not ask."""
    is_new = not server.is_maria and server.version_numbers >= (8, 0, 22)
    rows = server.ask_if_allowed("SHOW REPLICAS" if is_new else "SHOW SLAVE HOSTS")
    if rows is None:
        return None
    try:
        return tuple(
            Replica(
                int(row.get("Server_Id") or row["Server_id"]),
                str(row.get("Host") or ""),
                str(row.get("Replica_UUID") or row.get("Slave_UUID") or ""),
            )
            for row in rows
        )
    except (LookupError, ValueError, TypeError) as error:
        raise CorruptionError(f"{server.name} answers what no server does: {error!r}", subject=server.name) from error


def status_question(server: Server) -> str:
    """What to ask for the end of the newest log."""
    is_new = not server.is_maria and server.version_numbers >= (8, 2, 0)
    return "SHOW BINARY LOG STATUS" if is_new else "SHOW MASTER STATUS"


def _read_variables(found: dict[str, str], *, is_maria: bool) -> dict[str, Any]:
    """The facts that global variables tell."""

    def is_on(*names: str) -> bool:
        return any(found.get(name) in ("ON", "1") for name in names)

    gtids: MysqlGtidSet | MariaGtidPosition
    if is_maria:
        gtids = MariaGtidPosition.parse(found.get("gtid_binlog_pos", ""))
    else:
        gtids = MysqlGtidSet.parse(found.get("gtid_executed", ""))
    age = int(found.get("binlog_expire_logs_seconds", "0")) or int(float(found.get("expire_logs_days", "0")) * 86400)
    return {
        "is_maria": is_maria,
        "server_id": int(found["server_id"]),
        "server_uuid": found.get("server_uuid", ""),
        "hostname": found.get("hostname", ""),
        "log_bin": is_on("log_bin"),
        "gtids": gtids,
        "purged": MysqlGtidSet.parse("" if is_maria else found.get("gtid_purged", "")),
        "has_gtids": is_maria or found.get("gtid_mode") == "ON",
        "binlog_format": found.get("binlog_format", ""),
        "row_image": found.get("binlog_row_image", ""),
        "row_metadata": found.get("binlog_row_metadata", ""),
        "row_value_options": found.get("binlog_row_value_options", ""),
        "checksum": found.get("binlog_checksum", ""),
        "is_compressed": is_on("log_bin_compress", "binlog_transaction_compression"),
        "is_encrypted": is_on("encrypt_binlog", "binlog_encryption"),
        "log_replica_updates": is_on("log_slave_updates", "log_replica_updates"),
        "expire_seconds": 0 if found.get("binlog_expire_logs_auto_purge") == "OFF" else age,
        "space_limit": int(found.get("max_binlog_total_size") or found.get("binlog_space_limit") or 0),
        "lower_case_table_names": int(found.get("lower_case_table_names", "0")),
    }
