"""Logins that Airflow keeps: what a Connection says, found by its id.

Where Airflow is installed it is asked, so its own rules say where a connection comes from: a secrets backend, the
environment, its database. Where it is not, `AIRFLOW_CONN_<ID>` is read here, as URI or as JSON.

The settings hold the id alone. What was read stays in memory: no text and no error shows it, nothing is written.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tidemark.errors import NotFoundError, UsageError

ASK_AIRFLOW = (
    "tidemark.orchestration.connections:ask_airflow"  # by name: Airflow is orchestration's alone, and may be missing
)
config: str | None = None  # the command's --config: an Airflow of `./tidemark up` may lie beside these settings
TYPES = ("sftp", "ssh", "generic")  # of a login at a store
UNPINNED = ("no_host_key_check", "allow_host_key_change")  # extras of Airflow's SSH provider that take any server's key
_OFF = ("", "0", "false", "no", "none")


@dataclass(frozen=True)
class Connection:
    """A connection that can log in somewhere. What is secret is not in its `repr`."""

    id: str
    login: str = ""
    port: int = 0  # 0: it says none
    host_key: str = ""  # "SHA256:…"; "": it says none
    key_file: str = ""
    password: str = field(default="", repr=False)
    private_key: str = field(default="", repr=False)  # the text
    passphrase: str = field(default="", repr=False)  # of either key

    @property
    def name(self) -> str:
        return f"connection {self.id!r}"

    @property
    def next_step(self) -> str:
        return f"mend it (Airflow: Admin, Connections; or {variable_of(self.id)}), then ./tidemark doctor"


class HeldConnection:
    """A connection that is read once, and again when a server refuses it: its key may have been changed in mid-run."""

    def __init__(self, connection_id: str) -> None:
        self.now = read_connection(connection_id)
        self._lock = threading.Lock()

    def renew(self, refused: Connection) -> bool:
        """Read the connection again, unless another thread did. Returns whether it differs from the refused one."""
        with self._lock:
            if self.now == refused:
                self.now = read_connection(refused.id)
            return self.now != refused


def read_connection(connection_id: str, types: Collection[str] = TYPES) -> Connection:
    """Find a connection. NotFoundError if there is none, UsageError if it can be no login, and errors of asking Airflow.

    `types`: others are refused, so that no password goes to a server of another kind.
    """
    if _has_airflow():
        from pkgutil import resolve_name

        found = resolve_name(ASK_AIRFLOW)(connection_id)
        where = "; a secrets backend that fails counts as empty: `airflow connections get` shows what Airflow finds"
    else:
        found = _read_environment(connection_id)
        where = " (without Airflow here, the environment alone is asked)"
    if found is None:
        raise NotFoundError(
            f"there is no Airflow connection {connection_id!r}",
            hint=f"add it in Airflow, or set {variable_of(connection_id)}{where}; then ./tidemark doctor",
            subject=connection_id,
        )
    return make_connection(connection_id, found, types)


def variable_of(connection_id: str) -> str:
    return f"AIRFLOW_CONN_{connection_id.upper()}"


def make_connection(connection_id: str, found: Mapping[str, Any], types: Collection[str] = TYPES) -> Connection:
    """Make a connection of Airflow's fields: conn_type, login, password, port, extra. Pure. Raises UsageError."""
    kind, extra = str(found.get("conn_type") or ""), found.get("extra") or {}
    if kind not in types:
        raise _refuse(connection_id, f"is of type {kind!r}; a login needs one of {', '.join(types)}")
    if isinstance(extra, str):
        extra = _parse_json(connection_id, extra)
    for name in UNPINNED:
        if str(extra.get(name) or "").strip().lower() not in _OFF:
            raise _refuse(connection_id, f"has {name}, which Tidemark refuses: take it out, and give the extra host_key")
    try:
        port = int(found.get("port") or 0)
    except (TypeError, ValueError):
        raise _refuse(connection_id, "has a port that is no number") from None

    def text(key: str) -> str:
        return str(extra.get(key) or "")

    return Connection(
        connection_id,
        login=str(found.get("login") or ""),
        port=port,
        host_key=_fingerprint(connection_id, text("host_key")),
        key_file=text("key_file"),
        password=str(found.get("password") or ""),
        private_key=text("private_key"),
        passphrase=text("private_key_passphrase"),
    )


def _fingerprint(connection_id: str, told: str) -> str:
    """Return a host key as "SHA256:…". Airflow's SSH provider wants the public key itself, with or without its kind."""
    words = told.split()
    if not words or told.startswith("SHA256:"):
        return told.strip()
    blob = words[1] if len(words) > 1 else words[0]
    with suppress(binascii.Error, ValueError):
        return "SHA256:" + base64.b64encode(hashlib.sha256(base64.b64decode(blob, validate=True)).digest()).decode().rstrip(
            "="
        )
    raise _refuse(connection_id, 'has a host_key that is neither "SHA256:…" nor a public key ("ssh-ed25519 AAAA…")')


def _has_airflow() -> bool:
    from importlib import metadata  # here and below, because every command imports this module and few ask

    with suppress(metadata.PackageNotFoundError):
        return bool(metadata.version("apache-airflow-core"))
    return False


def _read_environment(connection_id: str) -> Mapping[str, Any] | None:
    written = os.environ.get(variable_of(connection_id), "").strip()
    if not written:
        return None
    return _parse_json(connection_id, written) if written.startswith("{") else _parse_uri(connection_id, written)


def _parse_uri(connection_id: str, written: str) -> Mapping[str, Any]:
    """Read Airflow's URI form: type://login:password@host:port/?extra=… with each part percent-encoded."""
    try:
        parts = urlsplit(written)
        port = parts.port
    except ValueError:  # its text may hold a part of a password
        raise _refuse(connection_id, "is no URI: percent-encode its password, or write it as JSON") from None
    extra: Any = dict(parse_qsl(parts.query, keep_blank_values=True))
    return {
        "conn_type": parts.scheme.replace("-", "_"),
        "login": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "port": port,
        "extra": extra.get("__extra__", extra),
    }


def _parse_json(connection_id: str, written: str) -> Mapping[str, Any]:
    with suppress(ValueError):
        found = json.loads(written)
        if isinstance(found, dict):
            return found
    raise _refuse(connection_id, "is no JSON object")


def _refuse(connection_id: str, what: str) -> UsageError:
    made = Connection(connection_id)
    return UsageError(f"Airflow {made.name} {what}", hint=made.next_step, subject=connection_id)
