"""What a real server answered, as the rows that `read --tall` must give (CONTRACT §1).

`tests/data/iotdb/<version>/expected*.json.gz` holds the answers of IoTDB itself to SELECT, after its deletions
(tests/data/README.md). A row is (device, measurement, time, type, value), all but the time as canonical text.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FOLDERS = Path(__file__).parent / "data" / "iotdb"

Row = tuple[str, str, int, str, str]


@dataclass(frozen=True)
class RealSite:
    """A data folder of a real server, as a Tidemark site would name its parts."""

    name: str
    root: Path  # the store's root
    data: tuple[str, ...]
    schema: str

    def rows(self) -> list[Row]:
        """Every point the server answers, in the order of `read --tall`: device, measurement (UTF-8 bytes), time."""
        rows = _tree_rows(_load(self.root / "expected.json.gz"))
        table = self.root / "expected_table.json.gz"
        if table.exists():
            rows += _table_rows(_load(table))
        return sorted(rows, key=lambda row: (row[0].encode(), row[1].encode(), row[2]))

    def series(self) -> dict[str, tuple[str, str, str]]:
        """Tree series → (type, encoding, compression), those without points too."""
        devices = _load(self.root / "expected.json.gz")["devices"]
        return {
            f"{device}.{column['name']}": (column["type"], column["encoding"], column["compression"])
            for device, answer in devices.items()
            for column in answer["columns"]
        }


SITES = {
    "0.12.0": RealSite("0.12.0", FOLDERS / "0.12.0", ("data/data/sequence", "data/data/unsequence"), "data/system/schema"),
    "2.0.1-beta": RealSite(
        "2.0.1-beta",
        FOLDERS / "2.0.1-beta",
        ("data/datanode/data/sequence", "data/datanode/data/unsequence"),
        "data/datanode/system/schema",
    ),
}


def canonical(type_name: str, value: Any) -> str:
    """The canonical text of a JSON value of an answer; written apart from the code under test."""
    match type_name:
        case "BOOLEAN":
            return "true" if value else "false"
        case "FLOAT":
            return str(np.float32(value))
        case "DOUBLE":
            return repr(float(value))
        case "INT32" | "INT64" | "TIMESTAMP":
            return str(int(value))
        case _:
            return str(value)  # TEXT, STRING; BLOB as hex and DATE as YYYY-MM-DD are so in the answers


def _tree_rows(answer: dict[str, Any]) -> list[Row]:
    return [
        (device, column["name"], row[0], column["type"], canonical(column["type"], row[1 + index]))
        for device, of_device in answer["devices"].items()
        for index, column in enumerate(of_device["columns"])
        for row in of_device["rows"]
        if row[1 + index] is not None
    ]


def _table_rows(answer: dict[str, Any]) -> list[Row]:
    names = [column["name"] for column in answer["columns"]]
    rows: list[Row] = []
    for row in answer["rows"]:
        cells = dict(zip(names, row, strict=True))
        tags = [cells[tag] for tag in answer["tags"]]
        device = ".".join([answer["database"], answer["table"], *("\\N" if tag is None else _escape(tag) for tag in tags)])
        rows += [
            (device, column["name"], cells["time"], column["type"], canonical(column["type"], cells[column["name"]]))
            for column in answer["columns"]
            if column.get("category") == "FIELD" and cells[column["name"]] is not None
        ]
    return rows


def _escape(tag: str) -> str:
    return tag.replace("\\", "\\\\").replace(".", "\\.")


def _load(path: Path) -> Any:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return json.load(file)
