"""Where an IoTDB is, and who asks."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Server:
    """Where an IoTDB is and who asks. `password` is never shown."""

    host: str
    port: int
    user: str
    password: str

    @classmethod
    def of(cls, url: str, password: str) -> Server:
        """From `iotdb://user@host:port` (checked by the settings)."""
        parts = urlsplit(url)
        return cls(parts.hostname or "", parts.port or 6667, parts.username or "root", password)

    @property
    def name(self) -> str:
        """What the ledger and messages call it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __repr__(self) -> str:
        return f"Server({self.user}@{self.name})"
