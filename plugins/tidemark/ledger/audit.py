"""The audit table: every decision an operator makes, with who made it (CONTRACT §1)."""

from __future__ import annotations

import getpass
import json
import os
import socket
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.ledger.database import now


def record(connection: Connection, action: str, subject: str, **detail: Any) -> None:
    """Write one decision into the caller's transaction, so that it stands exactly when its effect does."""
    connection.execute(
        sa.text("INSERT INTO audit (at, who, action, subject, detail) VALUES (:at, :who, :action, :subject, :detail)"),
        {
            "at": now(connection),
            "who": who(),
            "action": action,
            "subject": subject,
            "detail": json.dumps(detail, ensure_ascii=False, sort_keys=True),
        },
    )


def decided(connection: Connection, action: str, subject: str) -> bool:
    """Whether that was decided before."""
    sql = "SELECT COUNT(*) FROM audit WHERE action = :action AND subject = :subject"
    return bool(connection.execute(sa.text(sql), {"action": action, "subject": subject}).scalar_one())


def who() -> str:
    """user@host of this command; the number of the user where the system has no name for it (containers)."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
