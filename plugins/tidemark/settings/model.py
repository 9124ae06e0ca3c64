"""Every setting, declared once: its default, what it may be, its meaning (CONTRACT §2, DESIGN §2).

A section of `tidemark.toml` is a frozen dataclass. Its docstring is the meaning of the section, and each field made by
`setting` is a key. What reads the file, the file that `./tidemark init` writes (every key, with a value and its meaning; it
loads as it is) and the page `docs/settings.md` come from these declarations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from tidemark.settings.values import (
    Reader,
    format_read,
    format_toml,
    format_value,
    one_of,
    parse_bandwidth,
    parse_cron,
    parse_folders,
    parse_host_key,
    parse_hours,
    parse_iotdb_address,
    parse_ledger_url,
    parse_local_store,
    parse_nonempty_texts,
    parse_notifiers,
    parse_optional_folder,
    parse_path,
    parse_prefix,
    parse_remote_files,
    parse_server_url,
    parse_share,
    parse_size,
    parse_snapshot_folder,
    parse_spark_master,
    parse_store,
    parse_table_patterns,
    parse_task_arguments,
    parse_text,
    parse_texts,
    parse_timezone,
    parse_uuid,
    parse_window,
    whole_number,
)

REQUIRED: Any = MISSING
FRESH_UUID = "{fresh UUID}"


@dataclass(frozen=True)
class Setting:
    """The declaration of one key."""

    default: Any  # the value where the file has none; REQUIRED: the file must have one
    read: Reader  # returns the value of what the file says, or says what is allowed
    meaning: str
    start: str  # what a new file says; "": the default


def setting(default: Any, read: Reader, meaning: str, *, start: str = "") -> Any:
    """Declare a field of a section as a key of the file."""
    return field(default=default, metadata={"setting": Setting(default, read, meaning, start)})


HOST_KEY = '"SHA256:…", required for sftp; `ssh-keyscan -p PORT HOST | ssh-keygen -lf -` shows it'
KNOWN_HOSTS = 'a file that has the server\'s key, e.g. "~/.ssh/known_hosts", instead of `host_key`'
SSH_CONFIG = 'HostName, Port, User, IdentityFile and ProxyJump of this file count for `store`\'s host, e.g. "~/.ssh/config"'
KEY = 'private key file for sftp, e.g. "~/.ssh/id_ed25519"'
CONNECTION = "id of an Airflow connection (sftp, ssh, generic) to log in by, instead of `key`"
LOGIN = '"agent": by the keys of the SSH agent (SSH_AUTH_SOCK) instead; "keys": by `key`, or by ~/.ssh/id_*'
LOGINS = one_of("keys", "agent")
TIER = 'of an sftp store: "python", "posix", "sftp" let nothing better be used there'
TIERS = one_of("auto", "python", "posix", "sftp")


@dataclass(frozen=True)
class LedgerSettings:
    """The metadata database."""

    url: str = setting(
        "sqlite:///var/ledger.db",
        parse_ledger_url,
        "SQLAlchemy address; for PostgreSQL `postgresql+psycopg://user@host/tidemark`",
    )


@dataclass(frozen=True)
class ReceiverSettings:
    """Where files land and where the catalog lies. One table for each receiver."""

    name: str
    store: str = setting(
        REQUIRED,
        parse_store,
        "a folder of this machine, file:///srv/tidemark, or sftp://user@host:22/folder",
        start="var/centre",
    )
    host_key: str = setting("", parse_host_key, HOST_KEY)
    known_hosts: str = setting("", parse_path, KNOWN_HOSTS)
    ssh_config: str = setting("", parse_path, SSH_CONFIG)
    key: str = setting("", parse_path, KEY)
    connection: str = setting("", parse_text, CONNECTION)
    login: str = setting("keys", LOGINS, LOGIN)
    tier: str = setting("auto", TIERS, TIER)
    iotdb: str = setting(
        "", parse_iotdb_address, '"iotdb://root@host:6667": also LOAD there; it sees the store at the same path'
    )
    iotdb_password_file: str = setting("", parse_path, 'a file with the password for `iotdb`; "": the password is "root"')
    iotdb_connection: str = setting(
        "", parse_text, "id of an Airflow connection with login and password for `iotdb`, instead"
    )
    settle_days: int = setting(
        14, whole_number(0), "after this many days merged files stand alone and their sources are reclaimed"
    )
    partition_interval_ms: int = setting(604_800_000, whole_number(1), "time partitions of catalog and slots: a week")
    max_unloaded_landings: int = setting(8, whole_number(1), "a sync waits while more landings than this are not loaded")
    links_at_once: int = setting(
        4, whole_number(1, 64), "links that `sync --all` runs beside each other; each has connections of its own"
    )
    verify_days: int = setting(
        7, whole_number(0), "`read` checks the digest of files not checked for so many days; 0: of all"
    )
    bandwidth: float = setting(
        0.0, parse_bandwidth, '"100 MB/s": shared by all its links and by slots that move; "": no limit'
    )


@dataclass(frozen=True)
class SiteSettings:
    """An IoTDB at the edge: its folders, and how they are reached. One table for each site."""

    name: str
    id: str = setting(
        REQUIRED, parse_uuid, "a UUID: this site for ever. Never change it, never use it twice", start=FRESH_UUID
    )
    store: str = setting(
        REQUIRED, parse_store, "IoTDB's folder: of this machine, or sftp://user@host:port/folder", start="/data/iotdb"
    )
    host_key: str = setting("", parse_host_key, HOST_KEY)
    known_hosts: str = setting("", parse_path, KNOWN_HOSTS)
    ssh_config: str = setting("", parse_path, SSH_CONFIG)
    key: str = setting("", parse_path, KEY)
    connection: str = setting("", parse_text, CONNECTION)
    login: str = setting("keys", LOGINS, LOGIN)
    tier: str = setting("auto", TIERS, TIER)
    data: tuple[str, ...] = setting(
        ("data/sequence", "data/unsequence"), parse_folders, "relative to the store, or absolute: several disks"
    )
    schema: str = setting("", parse_optional_folder, 'the folder of schema logs, e.g. "system/schema"; "": none')
    time_unit: str = setting(
        "ms", one_of("ms", "us", "ns"), '"ms", "us", "ns": as the site\'s IoTDB is set; TsFiles do not say'
    )
    partition_interval_ms: int = setting(604_800_000, whole_number(1), "as the site's IoTDB is set")
    prefix: str = setting(
        "", parse_prefix, '"root.ship7": in front of its devices in the catalog, instead of `root`; for the site\'s life'
    )
    snapshot: str = setting(".tidemark", parse_snapshot_folder, 'folder for hard links on each data disk; "": read in place')
    nice: int = setting(
        0, whole_number(0, 19), "1 to 19: what we run at a remote site steps back for others, at its disk too"
    )
    far_memory: int = setting(256_000_000, parse_size, 'what python3 may take of a remote site\'s memory; "": no limit')
    snapshot_bytes: int = setting(
        0, parse_size, '"20 GB": a run links no more, so that no more than that can stay on a full disk'
    )


@dataclass(frozen=True)
class LinkSettings:
    """Which site goes to which receiver, when and how fast. One table for each link."""

    name: str
    site: str = setting(REQUIRED, parse_text, "the name of a `[sites.NAME]`", start="plant1")
    receiver: str = setting(
        "", parse_text, "the name of a `[receivers.NAME]`; may be left out where there is only one", start="centre"
    )
    schedule: str = setting("", parse_cron, 'cron line of the DAG; "": by hand only', start="*/15 * * * *")
    timezone: str = setting("UTC", parse_timezone, "of `schedule` and `window`")
    connections: int = setting(16, whole_number(1, 64), "SSH connections at most")
    block_bytes: int = setting(
        4_194_304,
        whole_number(1024, 1 << 30),
        "large files go in blocks; a cut line costs a connection one of them at most",
    )
    retries: int = setting(5, whole_number(0, 100), "how often a file is tried again within a run")
    digest: str = setting(
        "both",
        one_of("both", "target"),
        'SHA-256 at both ends; "target": there alone, `./tidemark verify` proves it later',
    )
    bandwidth: float = setting(0.0, parse_bandwidth, '"20 MB/s", inside the bandwidth of the receiver; "": no limit')
    slowest: float = setting(
        1000.0, parse_bandwidth, 'a file slower than this over ten minutes waits for the next run; "": never'
    )
    window: str = setting("", parse_window, '"22:00-06:00": outside it a run stops and goes on next time; "": always')
    include: tuple[str, ...] = setting(("**",), parse_nonempty_texts, 'device patterns, e.g. ["root.factory.**"]')
    exclude: tuple[str, ...] = setting((), parse_texts, "device patterns that are left out")
    deletes: str = setting(
        "keep",
        one_of("keep", "apply"),
        'files that vanished at the site stay, marked, in the catalog; "apply" removes them',
    )
    delete_limit_files: int = setting(
        100, whole_number(0), 'with "apply": more removals than this in a run wait for `./tidemark approve`'
    )
    delete_limit_share: float = setting(
        0.2, parse_share, 'with "apply": a larger share of the known files waits for `./tidemark approve`'
    )
    coverage_stale_hours: float = setting(
        0.0, parse_hours, "a site last listed whole longer ago is stale; 0: 24, or two intervals of `schedule`"
    )
    owner: str = setting("", parse_text, 'of the DAG in Airflow; "": as in `[airflow]`')
    pool: str = setting("", parse_text, 'of the DAG\'s tasks; "": as in `[airflow]`')
    queue: str = setting("", parse_text, 'of the DAG\'s tasks; "": as in `[airflow]`')


@dataclass(frozen=True)
class AirflowSettings:
    """The DAGs in Airflow: when they run, whose they are, who is told."""

    load_schedule: str = setting(
        "*/10 * * * *", parse_cron, 'cron line of `tidemark_load`, beside every sync that landed something; "": no clock'
    )
    verify_schedule: str = setting("30 3 * * *", parse_cron, 'cron line of `tidemark_verify`; "": by hand only')
    housekeep_schedule: str = setting("15 4 * * *", parse_cron, 'cron line of `tidemark_housekeep`; "": by hand only')
    watch_schedule: str = setting(
        "* * * * *", parse_cron, 'cron line of `tidemark_replica_watch`, where there is a cluster; "": by hand only'
    )
    recover_schedule: str = setting(
        "*/5 * * * *", parse_cron, 'cron line of `tidemark_replica_recover`, where there is a cluster; "": by hand only'
    )
    timezone: str = setting("UTC", parse_timezone, "of these schedules; a link has its own")
    at_creation: str = setting(
        "airflow",
        one_of("airflow", "paused", "running"),
        'new DAGs wait for their switch: "paused"; or not: "running"; "airflow": as Airflow is set',
    )
    owner: str = setting("tidemark", parse_text, "of all DAGs")
    pool: str = setting("default_pool", parse_text, "of all tasks; make it in Airflow first")
    queue: str = setting("", parse_text, 'of all tasks, for executors with queues; "": Airflow\'s own')
    default_args: tuple[tuple[str, Any], ...] = setting(
        (), parse_task_arguments, "of all tasks, e.g. {execution_timeout = 7200, retries = 9}"
    )
    notify: tuple[tuple[tuple[str, Any], ...], ...] = setting(
        (),
        parse_notifiers,
        'who is called when a task fails, e.g. [{call = "package.Notifier", text = "{{ tidemark.message }}"}]',
    )


@dataclass(frozen=True)
class SparkSettings:
    """What checks and merges files."""

    master: str = setting("local[*]", parse_spark_master, "where Spark runs: here, or spark://host:7077, yarn, k8s://…")
    engine: str = setting(
        "auto",
        one_of("auto", "spark", "pool"),
        'Spark in Airflow\'s DAGs if it is installed, a process pool on the command line; "spark", "pool"',
    )
    min_points: int = setting(5_000_000, whole_number(0), 'with "auto": below this many points a process pool, Spark above')
    files: str = setting(
        "", parse_remote_files, '"sftp://user@host:22/" (with host_key, key) where executors see no shared path'
    )
    host_key: str = setting("", parse_host_key, '"SHA256:…" of the server in `files`')
    key: str = setting("", parse_path, "private key file for `files`; at this path on every executor")


@dataclass(frozen=True)
class ClusterSettings:
    """How the data of a receiver is spread over nodes. Leave it out for one machine."""

    receiver: str = setting(
        "", parse_text, "whose data they hold; may be left out where there is one receiver", start="centre"
    )
    replicas: int = setting(3, whole_number(1), "nodes that hold each file; for the cluster's life")
    quorum: int = setting(2, whole_number(1), "nodes that must have a file before readers see it")
    slots: int = setting(
        10_000, whole_number(1, 1_000_000), "(database, time partition) is hashed to one of so many; for the cluster's life"
    )
    hash: str = setting(
        "full", one_of("full", "compat"), '"compat": the hash of the original, bit for bit; for the cluster\'s life'
    )
    balance: str = setting(
        "slots",
        one_of("slots", "bytes", "writes", "compat"),
        'what add and remove keep even: "slots", "bytes", "writes"; "compat"',
    )
    cache_bytes: int = setting(
        20_000_000_000, parse_size, 'of what the nodes hold the receiver keeps so much itself; "": all of it'
    )
    bandwidth: float = setting(
        0.0, parse_bandwidth, '"50 MB/s": of what moves between nodes, inside the receiver\'s; "": no limit'
    )
    grace_hours: int = setting(
        24, whole_number(0), "files that moved away stay at their old nodes for so long, for readers at work"
    )
    misses: int = setting(
        3, whole_number(1), "rounds of the watch that a node may miss before others become masters of its groups"
    )


@dataclass(frozen=True)
class NodeSettings:
    """A data node. One table for each node, as many as there are replicas at least."""

    name: str
    store: str = setting(
        REQUIRED,
        parse_store,
        "a folder of this machine, or sftp://user@host:port/folder; of its own, and empty",
        start="var/n1",
    )
    host_key: str = setting("", parse_host_key, HOST_KEY)
    known_hosts: str = setting("", parse_path, KNOWN_HOSTS)
    key: str = setting("", parse_path, KEY)
    connection: str = setting("", parse_text, CONNECTION)
    login: str = setting("keys", LOGINS, LOGIN)
    tier: str = setting("auto", TIERS, TIER)


@dataclass(frozen=True)
class SourceSettings:
    """A MySQL or MariaDB whose changes are captured into a store. One table for each source."""

    name: str
    store: str = setting(
        REQUIRED, parse_local_store, "a folder of this machine, of this source alone", start="var/changes/orders"
    )
    url: str = setting(
        "",
        parse_server_url,
        '"mysql://reader@db2:3306,db1:3306", or mariadb://: one cluster, tried in this order; "": files',
    )
    password_file: str = setting("", parse_path, "a file with the password of that user")
    tls: str = setting(
        "required", one_of("required", "verify", "off"), '"verify": the certificate, too, by `ca`; "off": in the clear'
    )
    ca: str = setting("", parse_path, 'certificates for `tls = "verify"`; "": those of this machine')
    server_id: int = setting(0, whole_number(0, (1 << 32) - 1), "as a replica of the server; 0: one that nobody there uses")
    heartbeat_seconds: int = setting(
        10, whole_number(1, 3600), "the server says so often that it lives; after three without a word we connect again"
    )
    tables: tuple[str, ...] = setting(("**",), parse_table_patterns, 'patterns of database.table, e.g. ["shop.*"]')
    exclude: tuple[str, ...] = setting((), parse_table_patterns, "patterns of tables that are left out")
    start: str = setting(
        "bootstrap", parse_text, 'where a new store begins: with the rows that tables have; or a POINT such as "earliest"'
    )
    schedule: str = setting(
        "*/5 * * * *", parse_cron, 'cron line (UTC) of the DAG `tidemark_changes__NAME`; "": by hand, or --follow'
    )
    metadata: str = setting(
        "full", one_of("full", "catalog"), '"catalog": names from the server, where binlog_row_metadata is not FULL'
    )
    unsafe: str = setting(
        "stop", one_of("stop", "mark"), 'at changes that the log does not hold as rows; "mark": go on, and tell of them'
    )
    bootstrap_rows: int = setting(0, whole_number(0), "rows a second that are read of tables, at most; 0: no limit")
    retain_hours: int = setting(24, whole_number(1), "changes older than this are removed by `changes retain`")
    retain_bytes: int = setting(0, parse_size, '"200 GB": more than this is removed, the oldest first; "": no limit')


@dataclass(frozen=True)
class Settings:
    """The whole file."""

    path: Path  # the file they were read from; relative paths in it are relative to its folder
    ledger: LedgerSettings = LedgerSettings()
    spark: SparkSettings = SparkSettings()
    airflow: AirflowSettings = AirflowSettings()
    receivers: Mapping[str, ReceiverSettings] = field(default_factory=dict)
    sites: Mapping[str, SiteSettings] = field(default_factory=dict)
    links: Mapping[str, LinkSettings] = field(default_factory=dict)
    cluster: ClusterSettings | None = None  # None: there is one node, the receiver itself
    nodes: Mapping[str, NodeSettings] = field(default_factory=dict)
    sources: Mapping[str, SourceSettings] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """The folder the file stands in; `var/` and relative paths live below it."""
        return self.path.parent

    @property
    def cluster_receiver(self) -> str:
        """The receiver whose data the nodes of the cluster hold: the first where `[cluster]` names none; "" for none."""
        named = self.cluster.receiver if self.cluster is not None else ""
        return named or next(iter(self.receivers), "")


SECTIONS: Mapping[str, type[Any]] = {
    "ledger": LedgerSettings,
    "receivers": ReceiverSettings,
    "sites": SiteSettings,
    "links": LinkSettings,
    "airflow": AirflowSettings,
    "spark": SparkSettings,
    "cluster": ClusterSettings,
    "nodes": NodeSettings,
    "sources": SourceSettings,
}
NAMED = ("receivers", "sites", "links", "nodes", "sources")  # sections with a table for each name
DEFAULTS = {"site": "sites", "link": "links"}  # what `[defaults.NAME]` is for
INCLUDE = Setting((), parse_texts, 'more files like this one, e.g. ["sites/*.toml"]', "")


@cache
def list_settings(section: str) -> Mapping[str, Setting]:
    """The keys of a section in the order of the file, each with its declaration."""
    return {one.name: one.metadata["setting"] for one in fields(SECTIONS[section]) if one.metadata}


def make_start(setting: Setting) -> str:
    """Return what a new file says for the key. A UUID is a fresh one each time."""
    if setting.start != FRESH_UUID:
        return setting.start
    from uuid import uuid4

    return str(uuid4())


HEAD = """\
# Tidemark's settings. Every key can also be given as TIDEMARK__SECTION__KEY, e.g. TIDEMARK__SITES__PLANT1__STORE.
# Relative paths are below the folder of this file. Check what you wrote with:  ./tidemark doctor
#
# Many sites: [defaults.site] and [defaults.link] hold what sites and links have unless they say otherwise.
# A [links."north-*"] is a link for each site of such a name.
"""
CLUSTER_HEAD = "# Several nodes for the catalog: take away the # of the lines below, then ./tidemark cluster init\n"
SOURCES_HEAD = "# Changes of MySQL and MariaDB: take away the # of the lines below, then ./tidemark changes capture orders\n"
HEADS = {"cluster": CLUSTER_HEAD, "sources": SOURCES_HEAD}
TABLES = {"receivers": "centre", "sites": "plant1", "links": "plant1", "nodes": "n1", "sources": "orders"}
COMMENTED = ("cluster", "nodes", "sources")  # sections that a new file does not use
MEANING_COLUMN = 43


def render_template(sites: Mapping[str, Mapping[str, Any]] | None = None) -> str:
    """Return the text of a new file. It has the sites that are given, each with a link, or one with a new UUID."""
    parts = [HEAD, f"{f'include = {format_read(INCLUDE.default, INCLUDE.read)}':{MEANING_COLUMN}}# {INCLUDE.meaning}\n"]
    for section in SECTIONS:
        if section in ("sites", "links") and sites:
            if section == "sites":
                parts.append(render_sites(sites))
            continue
        head = HEADS.get(section, "")
        prefix = "# " if section in COMMENTED else ""
        parts.append(head + "".join(f"{prefix}{line}\n" for line in _render_section(section, MEANING_COLUMN - len(prefix))))
    return "\n".join(parts)


def render_sites(sites: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the tables of sites, each with a new UUID and the values that are given, and a link for each."""
    tables = []
    for name, values in sites.items():
        identity = {"id": make_start(list_settings("sites")["id"])}
        link = {"site": name, "receiver": TABLES["receivers"], "schedule": list_settings("links")["schedule"].start}
        for section, given in (("sites", {**identity, **values}), ("links", link)):
            tables.append("".join(f"{line}\n" for line in _render_section(section, MEANING_COLUMN, name, given)))
    return "\n".join(tables)


def _render_section(section: str, column: int, name: str = "", given: Mapping[str, Any] | None = None) -> Iterator[str]:
    """Yield the lines of a table: every key with its start, or those that are given."""
    titled = f"{section}.{name or TABLES[section]}" if section in TABLES else section
    yield f"{f'[{titled}]':{column}}# {SECTIONS[section].__doc__}"
    for key, setting in list_settings(section).items():
        if given is not None and key not in given:
            continue
        if given is not None:
            value = format_toml(given[key])
        else:
            value = format_value(make_start(setting)) if setting.start else format_read(setting.default, setting.read)
        yield f"{f'{key} = {value}  ':{column}}# {setting.meaning}"
