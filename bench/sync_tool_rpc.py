"""A session at an IoTDB 0.12 for benchmarks: Tidemark's own client, and the tablet that it has no use for."""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.receiver.iotdb import session as iotdb_session
from tidemark.receiver.iotdb.thrift import I32, I64, LIST, STRING, Field, Server

DOUBLE = 4


class Session(iotdb_session.Session):
    """A session of user root. TidemarkError where the server refuses or is gone."""

    def __init__(self, port: int) -> None:
        super().__init__(Server("127.0.0.1", port, "root", "root"))

    def count(self, pattern: str) -> int:
        """The points of all series below `pattern`; 0 where there is no series."""
        return sum(int(cell.values[0]) for cell in self.rows(f"select count(*) from {pattern}").cells if len(cell.values))

    def insert(self, device: str, measurements: Sequence[str], times: bytes, values: bytes) -> None:
        """A tablet of doubles. `times` and `values` are big-endian, the values column after column."""
        tablet = [
            Field(1, I64, self.session_id),
            Field(2, STRING, device.encode()),
            Field(3, LIST, (STRING, [name.encode() for name in measurements])),
            Field(4, STRING, values),
            Field(5, STRING, times),
            Field(6, LIST, (I32, [DOUBLE] * len(measurements))),
            Field(7, I32, len(times) // 8),
        ]
        self.send_request("insertTablet", tablet, "insertTablet")
