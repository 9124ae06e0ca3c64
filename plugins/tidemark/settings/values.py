"""What each kind of value may be. A reader takes what the file says and returns the value, or raises ValueError that
says what is allowed. Pure: whether a folder or a server exists is `doctor`'s business.
"""

from __future__ import annotations

import os.path
import re
import uuid
from collections.abc import Callable
from itertools import permutations
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import SplitResult, urlsplit
from zoneinfo import ZoneInfo

from tidemark.settings.document import FromEnvironment

Reader = Callable[[Any], Any]

_BANDWIDTH = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[A-Za-z]+)(/s|ps)")
_SIZE = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[KMG]i?B|kB|B)")
_UNITS = {"B": 1.0, "kbit": 125.0, "Mbit": 125e3, "Gbit": 125e6}
_UNITS |= {"kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
_WINDOW = re.compile(r"([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d")
_HOST_KEY = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
_CRON_FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day of month", 1, 31), ("month", 1, 12), ("day of week", 0, 7))
_CRON_NAMES = {
    "month": ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
    "day of week": ["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
}
_CRON_PRESETS = ("@hourly", "@daily", "@weekly", "@monthly", "@yearly")


def parse_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a text in quotes")
    return value


def one_of(*allowed: str) -> Reader:
    def read(value: Any) -> str:
        if value not in allowed:
            raise ValueError("must be one of " + ", ".join(f'"{choice}"' for choice in allowed))
        return str(value)

    return read


def whole_number(minimum: int, maximum: int | None = None) -> Reader:
    """A whole number from `minimum` to `maximum`, both included; from the environment as a text of digits."""
    limits = f"from {minimum} to {maximum}" if maximum is not None else f"of at least {minimum}"

    def read(value: Any) -> int:
        if isinstance(value, FromEnvironment) and re.fullmatch(r"-?\d+", value):
            value = int(value)
        good = isinstance(value, int) and not isinstance(value, bool)
        if not good or value < minimum or (maximum is not None and value > maximum):
            raise ValueError(f"must be a whole number {limits}")
        return int(value)

    return read


def parse_share(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if isinstance(value, bool) or not 0.0 <= number <= 1.0:
        raise ValueError("must be a share from 0.0 to 1.0")
    return number


def parse_hours(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if isinstance(value, bool) or not 0.0 <= number <= 87_600.0:
        raise ValueError("must be hours from 0 to 87600")
    return number


def parse_bandwidth(value: Any) -> float:
    """Bytes a second of "20 MB/s", "160 Mbit/s", "1.5 MiB/s"; 0.0, no limit, of ""."""
    if value == "":
        return 0.0
    match = _BANDWIDTH.fullmatch(value.strip()) if isinstance(value, str) else None
    if match and match["unit"] in _UNITS and float(match["number"]) > 0:
        return float(match["number"]) * _UNITS[match["unit"]]
    raise ValueError('must be like "20 MB/s" (bytes), "20 MiB/s" or "160 Mbit/s" (bits); "" for no limit')


def parse_size(value: Any) -> int:
    """Bytes of "20 GB", "512 MiB"; 0, no limit, of ""."""
    if value == "":
        return 0
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match and match["unit"] in _UNITS and float(match["number"]) > 0:
        return int(float(match["number"]) * _UNITS[match["unit"]])
    raise ValueError('must be like "20 GB" or "512 MiB"; "" for no limit')


def parse_cron(value: Any) -> str:
    """Five cron fields or a preset; "": by hand only."""
    if not isinstance(value, str):
        raise ValueError('must be a cron line like "*/15 * * * *", or "" for runs by hand only')
    fields = value.split()
    if not fields or value in _CRON_PRESETS:
        return value
    if len(fields) != len(_CRON_FIELDS):
        raise ValueError(
            f"must have five cron fields (minute hour day month weekday) or be one of {', '.join(_CRON_PRESETS)}"
        )
    for written, (name, low, high) in zip(fields, _CRON_FIELDS, strict=True):
        if not all(_is_cron_item(item, name, low, high) for item in written.split(",")):
            raise ValueError(f'"{written}" is no {name}: numbers {low}-{high}, lists "1,2", ranges "1-5", steps "*/5"')
    return " ".join(fields)


def _is_cron_item(item: str, name: str, low: int, high: int) -> bool:
    span, slash, step = item.partition("/")
    if slash and not (step.isdecimal() and int(step) > 0):
        return False
    if span == "*":
        return True
    names = _CRON_NAMES.get(name, [])
    first = low if name == "month" else 0
    ends = [names.index(end.lower()) + first if end.lower() in names else end for end in span.split("-")]
    numbers = [int(end) for end in ends if isinstance(end, int) or end.isdecimal()]
    return len(numbers) == len(ends) in (1, 2) and all(low <= end <= high for end in numbers) and numbers == sorted(numbers)


def parse_timezone(value: Any) -> str:
    try:
        return ZoneInfo(parse_text(value)).key
    except (ValueError, LookupError, OSError):
        raise ValueError('must be a time zone like "UTC" or "Europe/Berlin"') from None


def parse_window(value: Any) -> str:
    """ "22:00-06:00" (the end may lie on the next day); "": always."""
    if value == "":
        return ""
    if not isinstance(value, str) or not _WINDOW.fullmatch(value.replace(" ", "")):
        raise ValueError('must be like "22:00-06:00", or "" for always')
    start, end = value.replace(" ", "").split("-")
    if start == end:
        raise ValueError('is empty: both ends are the same; "" means always')
    return f"{start}-{end}"


def parse_uuid(value: Any) -> str:
    try:
        return str(uuid.UUID(parse_text(value)))
    except ValueError:
        raise ValueError(f'must be a UUID; here is a fresh one: "{uuid.uuid4()}"') from None


def parse_texts(value: Any) -> tuple[str, ...]:
    """A list of texts; from the environment separated by commas."""
    if isinstance(value, FromEnvironment):
        value = [item.strip() for item in value.split(",") if item.strip()]
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise ValueError('must be a list of texts like ["a", "b"]')
    return tuple(value)


def parse_nonempty_texts(value: Any) -> tuple[str, ...]:
    found = parse_texts(value)
    if not found:
        raise ValueError("must not be an empty list")
    return found


def parse_folder(value: Any) -> str:
    """A folder of a store: relative to it, or absolute where it lies on another disk. Never a way out by `..`."""
    written = parse_text(value)
    if not written or ".." in PurePosixPath(written).parts or "\0" in written:
        raise ValueError("must be a folder relative to the store or absolute, without ..")
    return written if written == "/" else str(PurePosixPath(written))


def parse_optional_folder(value: Any) -> str:
    return parse_folder(value) if value != "" else ""


def parse_folders(value: Any) -> tuple[str, ...]:
    """Data folders: none twice and none inside another, else files would be seen twice."""
    found = tuple(parse_folder(item) for item in parse_nonempty_texts(value))
    for one, other in permutations(found, 2):
        if PurePosixPath(one).is_relative_to(other):
            raise ValueError(f'"{one}" lies inside "{other}": name each folder once')
    return found


def parse_snapshot_folder(value: Any) -> str:
    written = parse_optional_folder(value)
    if written.startswith("/"):
        raise ValueError('must be relative: the folder is made on each data disk; "" reads in place, without hard links')
    return written


def parse_host_key(value: Any) -> str:
    if value != "" and not (isinstance(value, str) and _HOST_KEY.fullmatch(value)):
        raise ValueError(
            'must be the server\'s fingerprint "SHA256:…" of 43 characters; ssh-keyscan HOST | ssh-keygen -lf - shows it'
        )
    return str(value)


def path_below(root: Path) -> Reader:
    """A file of this machine: `~` is the home, a relative path is below the settings' folder; "": none."""

    def read(value: Any) -> str:
        written = parse_text(value)
        return os.path.normpath(root / Path(written).expanduser()) if written else ""

    return read


def store_address(root: Path) -> Reader:
    """`sftp://user@host:port/path` as it is; `file:///path`, or a plain folder, made absolute."""
    local = path_below(root)

    def read(value: Any) -> str:
        written = parse_text(value)
        if not written or "://" not in written:
            if not written or written.startswith(("file:", "sftp:")):
                raise ValueError('must be "file:///folder" or "sftp://user@host:port/folder"')
            return f"file://{local(written)}"
        if written.startswith("file://"):
            return f"file://{_file_path(written, local)}"
        address = _split_address(written, "sftp")
        if not address.path.startswith("/") or ".." in PurePosixPath(address.path).parts:
            raise ValueError('needs an absolute folder without ..: "sftp://user@host:port/folder"')
        return written.rstrip("/") if address.path != "/" else written

    return read


def _file_path(written: str, local: Reader) -> str:
    path = written.removeprefix("file://")
    if not path.startswith(("/", "~", ".")):
        raise ValueError("needs an absolute folder: file:/// with three slashes (or a plain folder without file://)")
    return str(local(path))


def parse_iotdb_address(value: Any) -> str:
    return str(_split_address(value, "iotdb") and value) if value != "" else ""


def parse_ledger_url(value: Any) -> str:
    written = parse_text(value)
    if written.startswith("sqlite:///") or written.startswith(("postgresql+psycopg://", "postgresql://")):
        return re.sub(r"^postgresql://", "postgresql+psycopg://", written)
    raise ValueError('must be "sqlite:///file" or "postgresql+psycopg://user@host/database"')


def parse_remote_files(value: Any) -> str:
    """Where Spark's executors find the root of this machine's file system; "": they see the same paths."""
    if value == "":
        return ""
    if not parse_text(value).startswith("sftp://"):
        raise ValueError('must be "sftp://user@host:port/", or "" where executors see the same paths')
    return str(store_address(Path("/"))(value))


def parse_spark_master(value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"local(\[(\*|\d+)\])?|yarn|(spark|k8s)://.+", value):
        return value
    raise ValueError('must be "local[*]", "local[4]", "spark://host:port", "yarn" or "k8s://…"')


def _split_address(value: Any, scheme: str) -> SplitResult:
    form = f'must be "{scheme}://user@host:port{"/folder" if scheme == "sftp" else ""}"'
    try:
        address = urlsplit(parse_text(value))
    except ValueError:  # a bracket without its other one
        raise ValueError(form) from None
    if address.scheme != scheme or not address.hostname:
        raise ValueError(form)
    try:
        numbered = address.port != 0
    except ValueError:
        numbered = False
    if not numbered:
        raise ValueError(f"{form}, its port a number from 1 to 65535")
    if scheme == "sftp" and ("#" in value or "?" in value):
        raise ValueError("has # or ?, which mean something in an address: write %23 and %3F for them")
    if address.password is not None:
        instead = '`iotdb_password_file = "FILE"`' if scheme == "iotdb" else '`key = "FILE"` or an Airflow `connection`'
        raise ValueError(f"must not hold a password: log in with {instead}")
    return address
