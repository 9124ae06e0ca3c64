"""What each kind of value may be, how it is read and how it is written.

A reader takes what the file says. It returns the value, or raises a ValueError that says what is allowed. Pure: `doctor`
asks whether a folder or a server exists. `settings.model` names the readers, and every process imports it: so patterns
are compiled, and `uuid` and `zoneinfo` are imported, at their first use.
"""

from __future__ import annotations

import json
import os.path
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import SplitResult, urlsplit

Reader = Callable[[Any], Any]

_BANDWIDTH = r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[A-Za-z]+)(/s|ps)"
_SIZE = r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[KMG]i?B|kB|B)"
_UNITS = {"B": 1.0, "kbit": 125.0, "Mbit": 125e3, "Gbit": 125e6}
_UNITS |= {"kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
_NODE = r"[0-9A-Za-z_\u2e80-\u9fff]+|`(?:[^`]|``)+`"
_BARE = r"(?!\d+(?:[eE]\d+)?[dDfFlL]?$|0[xX][0-9a-fA-F]+$)[0-9A-Za-z_\u2e80-\u9fff]+"
_WINDOW = r"([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d"
_HOST_KEY = r"SHA256:[A-Za-z0-9+/]{43}"
_CRON_FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day of month", 1, 31), ("month", 1, 12), ("day of week", 0, 7))
_CRON_NAMES = {
    "month": ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
    "day of week": ["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
}
_CRON_PRESETS = ("@hourly", "@daily", "@weekly", "@monthly", "@yearly")


class FromEnvironment(str):
    """The text of an environment variable. It writes numbers and lists without TOML's signs."""


def parse_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a text in quotes")
    return value


def one_of(*allowed: str) -> Reader:
    """Make a reader of the words `allowed`."""

    def read(value: Any) -> str:
        if value not in allowed:
            raise ValueError("must be one of " + ", ".join(f'"{choice}"' for choice in allowed))
        return str(value)

    return read


def parse_flag(value: Any) -> bool:
    if isinstance(value, FromEnvironment) and value in ("true", "false"):
        return value == "true"
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def whole_number(minimum: int, maximum: int | None = None) -> Reader:
    """Make a reader of whole numbers from `minimum` to `maximum`, both included. The environment gives digits."""
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
    return _number_up_to(1.0, value, "must be a share from 0.0 to 1.0")


def parse_hours(value: Any) -> float:
    return _number_up_to(87_600.0, value, "must be hours from 0 to 87600")


def _number_up_to(maximum: float, value: Any, allowed: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if isinstance(value, bool) or not 0.0 <= number <= maximum:
        raise ValueError(allowed)
    return number


def parse_bandwidth(value: Any) -> float:
    """Return the bytes a second of "20 MB/s", "160 Mbit/s" or "1.5 MiB/s". Return 0.0 (no limit) of ""."""
    if value == "":
        return 0.0
    match = re.fullmatch(_BANDWIDTH, value.strip()) if isinstance(value, str) else None
    if match and match["unit"] in _UNITS and float(match["number"]) > 0:
        return float(match["number"]) * _UNITS[match["unit"]]
    raise ValueError('must be like "20 MB/s" (bytes), "20 MiB/s" or "160 Mbit/s" (bits); "" for no limit')


def parse_size(value: Any) -> int:
    """Return the bytes of "20 GB" or "512 MiB". Return 0 (no limit) of ""."""
    if value == "":
        return 0
    match = re.fullmatch(_SIZE, value.strip()) if isinstance(value, str) else None
    if match and match["unit"] in _UNITS and float(match["number"]) > 0:
        return int(float(match["number"]) * _UNITS[match["unit"]])
    raise ValueError('must be like "20 GB" or "512 MiB"; "" for no limit')


def parse_cron(value: Any) -> str:
    """Read five cron fields or a preset. "" means by hand only."""
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
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(parse_text(value)).key
    except (ValueError, LookupError, OSError):
        raise ValueError('must be a time zone like "UTC" or "Europe/Berlin"') from None


def parse_window(value: Any) -> str:
    """Read "22:00-06:00", whose end may lie on the next day. "" means always."""
    if value == "":
        return ""
    if not isinstance(value, str) or not re.fullmatch(_WINDOW, value.replace(" ", "")):
        raise ValueError('must be like "22:00-06:00", or "" for always')
    start, end = value.replace(" ", "").split("-")
    if start == end:
        raise ValueError('is empty: both ends are the same; "" means always')
    return f"{start}-{end}"


def parse_prefix(value: Any) -> str:
    """Read a path of the tree model, "root.ship7", as IoTDB's SQL writes it. "" means none.

    A node that needs back-quotes must have them, and no other may: a path has one spelling.
    """
    path = parse_text(value)
    if not path:
        return ""
    if len(path) > 200 or not path.isprintable() or not re.fullmatch(rf"root(\.({_NODE}))+", path):
        raise ValueError(
            'must be a path like "root.ship7", or "" for none; a node like ship-7 in back-quotes: "root.`ship-7`"'
        )
    for node in re.findall(_NODE, path.removeprefix("root.")):
        bare = node[1:-1].replace("``", "`") if node.startswith("`") else node
        if node.startswith("`") == bool(re.fullmatch(_BARE, bare)):
            how = f"{bare} without back-quotes" if node.startswith("`") else f"`{node}` in back-quotes: it is a number"
            raise ValueError(f"write {how}")
    return path


def parse_uuid(value: Any) -> str:
    import uuid

    try:
        return str(uuid.UUID(parse_text(value)))
    except ValueError:
        raise ValueError(f'must be a UUID; here is a fresh one: "{uuid.uuid4()}"') from None


def parse_texts(value: Any) -> tuple[str, ...]:
    """Read a list of texts. The environment separates them by commas."""
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


_TASK_ARGUMENTS: dict[str, Reader] = {
    **dict.fromkeys(("retries", "retry_delay", "max_retry_delay"), whole_number(0)),
    **dict.fromkeys(("execution_timeout", "priority_weight", "max_active_tis_per_dag"), whole_number(1)),
    **dict.fromkeys(("weight_rule", "executor", "run_as_user"), parse_text),
}

Table = tuple[tuple[str, Any], ...]
"""A table of the file, frozen: its keys and their values."""


def parse_task_arguments(value: Any) -> Table:
    """Read arguments that every task gets. Delays and the timeout are seconds."""
    if not isinstance(value, dict) or not set(value) <= set(_TASK_ARGUMENTS):
        raise ValueError(f"must be a table with some of {', '.join(_TASK_ARGUMENTS)} (delays in seconds)")
    return tuple((name, _read_named(name, given, _TASK_ARGUMENTS[name])) for name, given in value.items())


def parse_notifiers(value: Any) -> tuple[Table, ...]:
    """Read whom to call: each table has `call`, perhaps `on`, and arguments of the notifier."""
    if not isinstance(value, list) or not all(isinstance(table, dict) for table in value):
        raise ValueError('must be a list of tables like {call = "package.module.Name"}')
    return tuple(_read_notifier(table) for table in value)


def _read_notifier(table: dict[str, Any]) -> Table:
    call, on = table.get("call", ""), table.get("on", "failure")
    if not (isinstance(call, str) and re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", call)):
        raise ValueError('needs call = "package.module.Name" in each table: a notifier of Airflow, or a function')
    _read_named("on", on, one_of("failure", "retry"))
    return tuple({**table, "on": on}.items())


def _read_named(name: str, value: Any, read: Reader) -> Any:
    try:
        return read(value)
    except ValueError as wrong:
        raise ValueError(f"{name} {wrong}") from None


def parse_folder(value: Any) -> str:
    """Read a folder, relative to the store, or absolute where it lies on another disk. `..` cannot lead out of it."""
    if not isinstance(value, str) or not value or ".." in PurePosixPath(value).parts or "\0" in value:
        raise ValueError("must be a folder relative to the store or absolute, without ..")
    folder = value if value == "/" else str(PurePosixPath(value))
    if folder == ".":
        raise ValueError('must be a folder below the store, for example "sequence", not the store itself')
    return folder


def parse_optional_folder(value: Any) -> str:
    return parse_folder(value) if value != "" else ""


def parse_folders(value: Any) -> tuple[str, ...]:
    """Read data folders. None is named twice or lies inside another: its files would be seen twice."""
    found = tuple(parse_folder(item) for item in parse_nonempty_texts(value))
    for one, other in permutations(found, 2):
        if PurePosixPath(one).is_relative_to(other):
            raise ValueError(f'"{one}" lies inside "{other}": name each folder once')
    return found


def parse_snapshot_folder(value: Any) -> str:
    if not isinstance(value, str) or value.startswith("/"):
        raise ValueError('must be relative: the folder is made on each data disk; "" reads in place, without hard links')
    return parse_optional_folder(value)


def scan_command(store: str) -> str:
    """The command that shows the host keys of an sftp store's server."""
    server = urlsplit(store)
    port = f"-p {server.port} " if server.port else ""
    return f"ssh-keyscan {port}{server.hostname} | ssh-keygen -lf -"


def parse_host_key(value: Any) -> str:
    if value != "" and not (isinstance(value, str) and re.fullmatch(_HOST_KEY, value)):
        raise ValueError(
            'must be the server\'s fingerprint "SHA256:…" of 43 characters; '
            "ssh-keyscan -p PORT HOST | ssh-keygen -lf - shows it"
        )
    return str(value)


def parse_path(value: Any, root: Path = Path()) -> str:
    """Read a path of this machine. `~` is the home, a relative path is below `root`, "" is none."""
    written = parse_text(value)
    return os.path.normpath(root / Path(written).expanduser()) if written else ""


def parse_store(value: Any, root: Path = Path()) -> str:
    """Read a store's address. `sftp://…` stays as it is; `file:///…` or a plain folder becomes absolute, below `root`."""
    unfinished = isinstance(value, str) and "://" not in value and value.startswith(("file:", "sftp:"))
    if not isinstance(value, str) or not value or unfinished:
        raise ValueError('must be "file:///folder" or "sftp://user@host:port/folder"')
    if "://" not in value:
        return f"file://{parse_path(value, root)}"
    if value.startswith("file://"):
        return f"file://{_file_path(value, root)}"
    address = _split_address(value, "sftp")
    if not address.path.startswith("/") or ".." in PurePosixPath(address.path).parts:
        raise ValueError('needs an absolute folder without ..: "sftp://user@host:port/folder"')
    return value.rstrip("/") if address.path != "/" else value


def parse_local_store(value: Any, root: Path = Path()) -> str:
    """Read the address of a store of this machine."""
    if isinstance(value, str) and "://" in value and not value.startswith("file://"):
        raise ValueError('must be a folder of this machine: "file:///folder"')
    return parse_store(value, root)


def reader_below(root: Path, read: Reader) -> Reader:
    """Tell a reader of paths the folder that relative paths are below. Other readers stay as they are."""
    return partial(read, root=root) if read in (parse_path, parse_store, parse_local_store) else read


_SERVERS = 'must be "mysql://user@host:port" or "mariadb://user@host:port", more servers of the cluster behind commas'


def parse_server_url(value: Any) -> str:
    """Read the servers of a source of changes. "" means that there is none, only files."""
    if value == "":
        return ""
    match = re.fullmatch(r"(mysql|mariadb)://(?P<user>[^@/]+)@(?P<hosts>[^@/]+)/?", parse_text(value))
    if not match:
        raise ValueError(_SERVERS)
    if ":" in match["user"]:
        raise ValueError('must not hold a password: log in with `password_file = "FILE"`')
    split_server_url(value)
    return str(value)


def parse_listen(value: Any) -> str:
    """Read where a server listens: a host and a port."""
    split_listen(parse_text(value))
    return str(value)


def split_listen(text: str) -> tuple[str, int]:
    """Split an address as `parse_listen` reads it into host and port."""
    try:
        address = urlsplit(f"//{text}")
        host, port = address.hostname, address.port
    except ValueError:
        host, port = None, None
    if not host or port is None or address.path or address.username is not None:
        raise ValueError('must be "HOST:PORT", such as "127.0.0.1:28332" or "[::1]:28332"')
    return host, port


def split_server_url(url: str) -> tuple[str, tuple[tuple[str, int], ...]]:
    """Split servers as `parse_server_url` reads them into the user and the addresses."""
    user, _, hosts = url.rstrip("/").partition("://")[2].partition("@")
    addresses = []
    for host in hosts.split(","):
        try:
            address = urlsplit(f"//{host}")
            port = 3306 if address.port is None else address.port
        except ValueError:
            raise ValueError(_SERVERS) from None
        if not address.hostname or not port:
            raise ValueError(_SERVERS)
        addresses.append((address.hostname, port))
    return user, tuple(addresses)


def parse_table_patterns(value: Any) -> tuple[str, ...]:
    """Read patterns of `database.table`. `**` is every table."""
    found = parse_texts(value)
    for pattern in found:
        if pattern != "**" and "." not in pattern:
            raise ValueError(f'"{pattern}" is no pattern of database.table: write "{pattern}.*" or "**"')
    return found


@dataclass(frozen=True)
class TableColumns:
    """What a sink's settings say of the columns of a table. `shard`: none are its primary key. `time` and `tags` are of a
    catalog sink: "" and None are what its primary key tells."""

    shard: tuple[str, ...] = ()
    time: str = ""
    tags: tuple[str, ...] | None = None


_COLUMNS = 'must be tables: [sinks.NAME.columns."shop.orders"] with shard = ["customer_id"], time = "seen", tags = ["site"]'


def parse_columns(value: Any) -> tuple[tuple[str, TableColumns], ...]:
    """Read `{"database.table" = {shard = ["column"], time = "column", tags = ["column"]}}` as (table, columns) pairs in the
    order of names. Each key may be absent."""
    if not isinstance(value, dict):
        raise ValueError(_COLUMNS)
    found = []
    for table, keys in sorted(value.items()):
        if "." not in table or not isinstance(keys, dict) or not keys or not keys.keys() <= {"shard", "time", "tags"}:
            raise ValueError(_COLUMNS)
        shard = parse_nonempty_texts(keys["shard"]) if "shard" in keys else ()
        tags = parse_texts(keys["tags"]) if "tags" in keys else None
        found.append((table, TableColumns(shard, parse_text(keys.get("time", "")), tags)))
    return tuple(found)


def _file_path(written: str, root: Path) -> str:
    path = written.removeprefix("file://")
    if not path.startswith(("/", "~", ".")):
        raise ValueError("needs an absolute folder: file:/// with three slashes (or a plain folder without file://)")
    return parse_path(path, root)


def parse_iotdb_address(value: Any) -> str:
    return str(_split_address(value, "iotdb") and value) if value != "" else ""


def parse_ledger_url(value: Any) -> str:
    if isinstance(value, str) and value.startswith(("sqlite:///", "postgresql+psycopg://", "postgresql://")):
        return re.sub(r"^postgresql://", "postgresql+psycopg://", value)
    raise ValueError('must be "sqlite:///file" or "postgresql+psycopg://user@host/database"')


def parse_remote_files(value: Any) -> str:
    """Read where Spark's executors find the root of this machine's files. "" means that they see the same paths."""
    if value == "":
        return ""
    if not isinstance(value, str) or not value.startswith("sftp://"):
        raise ValueError('must be "sftp://user@host:port/", or "" where executors see the same paths')
    return parse_store(value)


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


def format_value(value: Any) -> str:
    """Write a value as the file would. A password in an address is left out."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(format_value(item) for item in value) + "]"
    return '"' + re.sub(r"(://[^/@:]*:)[^/@]*@", r"\1…@", value) + '"' if isinstance(value, str) else str(value)


def format_toml(value: str | int | tuple[str, ...]) -> str:
    """Write a value so that TOML reads the same: JSON escapes as TOML does."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


def format_read(value: Any, read: Reader) -> str:
    """Write a value that `read` returned as the file would."""
    if read is parse_task_arguments:
        return "{" + ", ".join(f"{key} = {format_value(one)}" for key, one in value) + "}"
    if read is parse_columns:
        return "{" + ", ".join(f'"{table}" = {{{_format_columns(columns)}}}' for table, columns in value) + "}"
    if read in (parse_bandwidth, parse_size):
        return format_value(_format_amount(value, "/s" if read is parse_bandwidth else ""))
    return f"{value:g}" if isinstance(value, float) else format_value(value)


def _format_columns(columns: TableColumns) -> str:
    told = {name: value for name, value in vars(columns).items() if value or (name == "tags" and value is not None)}
    return ", ".join(f"{name} = {format_value(value)}" for name, value in told.items())


def _format_amount(amount: float, per: str) -> str:
    """Write 20_000_000_000 as "20 GB", and 0 (no limit) as ""."""
    unit = next(unit for unit in ("GB", "MB", "KB", "B") if amount % _UNITS[unit] == 0 or unit == "B")
    return f"{amount / _UNITS[unit]:g} {unit}{per}" if amount else ""
