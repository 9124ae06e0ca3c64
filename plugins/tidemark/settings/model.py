"""Every setting, declared once: its default, what it may be, its meaning (CONTRACT §2, DESIGN §2).

A section of `tidemark.toml` is a frozen dataclass. Its docstring is the meaning of the section, and each field made by
`setting` is a key. What reads the file, the file that `./tidemark init` writes (`template`) and the page `docs/settings.md`
come from these declarations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from tidemark.settings.values import (
    Reader,
    TableColumns,
    one_of,
    parse_bandwidth,
    parse_columns,
    parse_cron,
    parse_flag,
    parse_folders,
    parse_host_key,
    parse_hours,
    parse_iotdb_address,
    parse_ledger_url,
    parse_listen,
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


HOST_KEY = 'the server\'s key, "SHA256:…"; sftp needs it. `ssh-keyscan -p PORT HOST | ssh-keygen -lf -` shows it'
KNOWN_HOSTS = 'a file that has the server\'s key, for example "~/.ssh/known_hosts"; instead of `host_key`'
SSH_CONFIG = (
    'a file such as "~/.ssh/config": its HostName, Port, User, IdentityFile and ProxyJump apply to the host of `store`'
)
KEY = 'a private key file for sftp, for example "~/.ssh/id_ed25519"'
CONNECTION = "the id of an Airflow connection (sftp, ssh or generic) that holds the login; instead of `key`"
LOGIN = '"agent" uses the keys of the SSH agent (SSH_AUTH_SOCK); "keys" uses `key`, or else ~/.ssh/id_*'
LOGINS = one_of("keys", "agent")
TIER = 'forces a slower way to use an sftp store: "python", "posix" or "sftp"; "auto" takes the best that works'
TIERS = one_of("auto", "python", "posix", "sftp")


@dataclass(frozen=True)
class LedgerSettings:
    """The metadata database."""

    url: str = setting(
        "sqlite:///var/ledger.db",
        parse_ledger_url,
        "the database's SQLAlchemy address; for PostgreSQL `postgresql+psycopg://user@host/tidemark`",
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
        "",
        parse_iotdb_address,
        'an IoTDB that loads the files too, "iotdb://root@host:6667"; it must see the store at the same path',
    )
    iotdb_password_file: str = setting(
        "", parse_path, 'a file that holds the password for `iotdb`; "" means the password "root"'
    )
    iotdb_connection: str = setting(
        "", parse_text, "the id of an Airflow connection that holds login and password for `iotdb`; instead of the file"
    )
    settle_days: int = setting(
        14, whole_number(0), "a merged file stands alone after so many days, and housekeeping removes its sources"
    )
    partition_interval_ms: int = setting(
        604_800_000,
        whole_number(1),
        "the length of a time partition of the catalog and of slots; it stays for the catalog's life",
    )
    max_unloaded_landings: int = setting(8, whole_number(1), "a sync waits while more landings than this are not loaded")
    links_at_once: int = setting(
        4, whole_number(1, 64), "`sync --all` runs so many links at the same time; each has its own connections"
    )
    verify_days: int = setting(
        7, whole_number(0), "`read` checks the digest of a file that was not checked for so many days; 0 checks every file"
    )
    bandwidth: float = setting(
        0.0, parse_bandwidth, '"100 MB/s" limits all its links and moving slots together; "" means no limit'
    )


@dataclass(frozen=True)
class SiteSettings:
    """An IoTDB at the edge: its folders, and how they are reached. One table for each site."""

    name: str
    id: str = setting(
        REQUIRED,
        parse_uuid,
        "a UUID that names this site for ever; never change it, and never use it for another site",
        start=FRESH_UUID,
    )
    store: str = setting(
        REQUIRED,
        parse_store,
        "the folder of IoTDB: a folder of this machine, or sftp://user@host:port/folder",
        start="/data/iotdb",
    )
    host_key: str = setting("", parse_host_key, HOST_KEY)
    known_hosts: str = setting("", parse_path, KNOWN_HOSTS)
    ssh_config: str = setting("", parse_path, SSH_CONFIG)
    key: str = setting("", parse_path, KEY)
    connection: str = setting("", parse_text, CONNECTION)
    login: str = setting("keys", LOGINS, LOGIN)
    tier: str = setting("auto", TIERS, TIER)
    data: tuple[str, ...] = setting(
        ("data/sequence", "data/unsequence"),
        parse_folders,
        "the data folders; relative to the store, or absolute for other disks",
    )
    schema: str = setting(
        "", parse_optional_folder, 'the folder of schema logs, for example "system/schema"; "" sends no schema'
    )
    time_unit: str = setting(
        "ms", one_of("ms", "us", "ns"), 'the unit of times in the site\'s IoTDB: "ms", "us" or "ns"; TsFiles do not say it'
    )
    partition_interval_ms: int = setting(604_800_000, whole_number(1), "the length of a time partition in the site's IoTDB")
    prefix: str = setting(
        "",
        parse_prefix,
        "\"root.ship7\" replaces `root` in the catalog's names of its devices; it stays for the site's life",
    )
    snapshot: str = setting(
        ".tidemark", parse_snapshot_folder, 'the folder for hard links on each data disk; "" reads the files in place'
    )
    nice: int = setting(
        0, whole_number(0, 19), "1 to 19 lowers the priority of our processes at a remote site, for CPU and disk"
    )
    far_memory: int = setting(256_000_000, parse_size, 'the memory that python3 may use at a remote site; "" means no limit')
    snapshot_bytes: int = setting(
        0,
        parse_size,
        '"20 GB" limits what a run holds by hard links, so that no more can stay on a full disk; "" means no limit',
    )


@dataclass(frozen=True)
class LinkSettings:
    """Which site goes to which receiver, when and how fast. One table for each link."""

    name: str
    site: str = setting(REQUIRED, parse_text, "the name of a `[sites.NAME]`", start="plant1")
    receiver: str = setting(
        "", parse_text, "the name of a `[receivers.NAME]`; may be left out where there is only one", start="centre"
    )
    schedule: str = setting(
        "", parse_cron, 'the cron line of the DAG; "" means that only people start it', start="*/15 * * * *"
    )
    timezone: str = setting("UTC", parse_timezone, "the time zone of `schedule` and `window`")
    connections: int = setting(16, whole_number(1, 64), "the largest number of SSH connections")
    block_bytes: int = setting(
        4_194_304,
        whole_number(1024, 1 << 30),
        "the size of a block of a large file; a cut line costs each connection one block at most",
    )
    retries: int = setting(5, whole_number(0, 100), "a run tries a file again so many times")
    digest: str = setting(
        "both",
        one_of("both", "target"),
        '"both" makes a SHA-256 at both ends; "target" makes it at the target, and `./tidemark verify` proves it later',
    )
    bandwidth: float = setting(
        0.0, parse_bandwidth, '"20 MB/s" limits this link, within the receiver\'s bandwidth; "" means no limit'
    )
    slowest: float = setting(
        1000.0,
        parse_bandwidth,
        'a file that is slower than this for ten minutes waits for the next run; "" never stops a file',
    )
    window: str = setting(
        "",
        parse_window,
        '"22:00-06:00" lets runs work only then; outside it a run stops and continues next time; "" means always',
    )
    include: tuple[str, ...] = setting(
        ("**",), parse_nonempty_texts, 'patterns of the devices to send, for example ["root.factory.**"]'
    )
    exclude: tuple[str, ...] = setting((), parse_texts, "patterns of devices to leave out")
    deletes: str = setting(
        "keep",
        one_of("keep", "apply"),
        '"keep" keeps files in the catalog that vanished at the site, and marks them; "apply" removes them',
    )
    delete_limit_files: int = setting(
        100, whole_number(0), 'with "apply", more removals than this in a run wait for `./tidemark approve`'
    )
    delete_limit_share: float = setting(
        0.2, parse_share, 'with "apply", removals of a larger share of the known files wait for `./tidemark approve`'
    )
    coverage_stale_hours: float = setting(
        0.0, parse_hours, "a site is stale if its last whole listing is older; 0 means 24, or two intervals of `schedule`"
    )
    owner: str = setting("", parse_text, 'the owner of the DAG in Airflow; "" takes that of `[airflow]`')
    pool: str = setting("", parse_text, 'the pool of the DAG\'s tasks; "" takes that of `[airflow]`')
    queue: str = setting("", parse_text, 'the queue of the DAG\'s tasks; "" takes that of `[airflow]`')


@dataclass(frozen=True)
class AirflowSettings:
    """The DAGs in Airflow: when they run, who owns them, whom they notify."""

    load_schedule: str = setting(
        "*/10 * * * *",
        parse_cron,
        'the cron line of `tidemark_load`, which also follows every sync that landed something; "" means no clock',
    )
    verify_schedule: str = setting(
        "30 3 * * *", parse_cron, 'the cron line of `tidemark_verify`; "" means that only people start it'
    )
    housekeep_schedule: str = setting(
        "15 4 * * *", parse_cron, 'the cron line of `tidemark_housekeep`; "" means that only people start it'
    )
    watch_schedule: str = setting(
        "* * * * *",
        parse_cron,
        'the cron line of `tidemark_replica_watch`, where there is a cluster; "" means that only people start it',
    )
    recover_schedule: str = setting(
        "*/5 * * * *",
        parse_cron,
        'the cron line of `tidemark_replica_recover`, where there is a cluster; "" means that only people start it',
    )
    timezone: str = setting("UTC", parse_timezone, "the time zone of these schedules; a link has its own")
    at_creation: str = setting(
        "airflow",
        one_of("airflow", "paused", "running"),
        '"paused" makes new DAGs wait for their switch; "running" does not; "airflow" leaves it to Airflow\'s setting',
    )
    owner: str = setting("tidemark", parse_text, "the owner of all DAGs")
    pool: str = setting("default_pool", parse_text, "the pool of all tasks; it must exist in Airflow")
    queue: str = setting("", parse_text, 'the queue of all tasks, for executors with queues; "" means Airflow\'s default')
    default_args: tuple[tuple[str, Any], ...] = setting(
        (), parse_task_arguments, "arguments of all tasks, for example {execution_timeout = 7200, retries = 9}"
    )
    notify: tuple[tuple[tuple[str, Any], ...], ...] = setting(
        (),
        parse_notifiers,
        'what a failing task calls, for example [{call = "package.Notifier", text = "{{ tidemark.message }}"}]',
    )


@dataclass(frozen=True)
class SparkSettings:
    """What checks and merges files. Sinks may use it, too."""

    master: str = setting(
        "local[*]", parse_spark_master, "where Spark runs: on this machine, or spark://host:7077, yarn, k8s://…"
    )
    engine: str = setting(
        "auto",
        one_of("auto", "spark", "pool"),
        '"spark" or "pool" (child processes); "auto" takes Spark in Airflow\'s DAGs if it is installed, and else a pool',
    )
    min_points: int = setting(
        5_000_000, whole_number(0), '"auto" takes a process pool for fewer points than this, and Spark for more'
    )
    files: str = setting(
        "",
        parse_remote_files,
        '"sftp://user@host:22/", by which executors reach the files if they share no path; with `host_key` and `key`',
    )
    host_key: str = setting("", parse_host_key, 'the key of the server in `files`, "SHA256:…"')
    key: str = setting("", parse_path, "a private key file for `files`; every executor has it at this path")


@dataclass(frozen=True)
class ClusterSettings:
    """How the data of a receiver is spread over nodes. Leave it out for one machine."""

    receiver: str = setting(
        "", parse_text, "the receiver whose data the nodes hold; leave it out if there is one receiver", start="centre"
    )
    replicas: int = setting(3, whole_number(1), "the number of nodes that hold each file; it stays for the cluster's life")
    quorum: int = setting(2, whole_number(1), "readers see a file when so many nodes have it")
    slots: int = setting(
        10_000,
        whole_number(1, 1_000_000),
        "each database and time partition falls into one of so many slots; it stays for the cluster's life",
    )
    hash: str = setting(
        "full",
        one_of("full", "compat"),
        '"compat" is the hash of the original, bit for bit; it stays for the cluster\'s life',
    )
    balance: str = setting(
        "slots",
        one_of("slots", "bytes", "writes", "compat"),
        'what `cluster add` and `remove` keep even: "slots", "bytes" or "writes"; "compat" does as the original',
    )
    cache_bytes: int = setting(
        20_000_000_000, parse_size, 'the receiver keeps so much of the nodes\' data itself; "" keeps all of it'
    )
    bandwidth: float = setting(
        0.0,
        parse_bandwidth,
        '"50 MB/s" limits what moves between nodes, within the receiver\'s bandwidth; "" means no limit',
    )
    grace_hours: int = setting(
        24, whole_number(0), "files that moved away stay at their old nodes for so long, because readers may use them"
    )
    misses: int = setting(
        3, whole_number(1), "when a node misses so many rounds of the watch, others become masters of its groups"
    )
    replace_hours: int = setting(
        0, whole_number(0), "a node that the watch misses for so long leaves, and others take its places; 0: never"
    )


@dataclass(frozen=True)
class NodeSettings:
    """A data node. One table for each node, as many as there are replicas at least."""

    name: str
    store: str = setting(
        REQUIRED,
        parse_store,
        "a folder of this machine, or sftp://user@host:port/folder; it belongs to this node alone, and is empty",
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
        REQUIRED, parse_local_store, "a folder of this machine that belongs to this source alone", start="var/changes/orders"
    )
    url: str = setting(
        "",
        parse_server_url,
        'the servers, "mysql://reader@db2:3306,db1:3306" or mariadb://…, tried in this order; "" reads log files',
    )
    password_file: str = setting("", parse_path, "a file that holds the password of that user")
    connection: str = setting(
        "",
        parse_text,
        "id of an Airflow connection (mysql, generic) that holds login and password, instead of `password_file`",
    )
    tls: str = setting(
        "required",
        one_of("required", "verify", "off"),
        '"required" encrypts; "verify" checks the certificate by `ca`, too; "off" sends in the clear',
    )
    ca: str = setting("", parse_path, 'a file of certificates for `tls = "verify"`; "" takes those of this machine')
    server_id: int = setting(
        0, whole_number(0, (1 << 32) - 1), "our number as a replica of the server; 0 takes one that nobody there uses"
    )
    heartbeat_seconds: int = setting(
        10, whole_number(1, 3600), "the server sends a sign of life so often; after three missing ones we connect again"
    )
    tables: tuple[str, ...] = setting(
        ("**",), parse_table_patterns, 'patterns of the tables to capture, database.table, for example ["shop.*"]'
    )
    exclude: tuple[str, ...] = setting((), parse_table_patterns, "patterns of tables to leave out")
    start: str = setting(
        "bootstrap",
        parse_text,
        'where a new store begins: "bootstrap" takes the rows that tables have; a POINT is, for example, "earliest"',
    )
    schedule: str = setting(
        "*/5 * * * *",
        parse_cron,
        'the cron line (UTC) of the DAG `tidemark_changes__NAME`; "" means by hand, or by --follow',
    )
    metadata: str = setting(
        "full", one_of("full", "catalog"), '"catalog": names from the server, where binlog_row_metadata is not FULL'
    )
    unsafe: str = setting(
        "stop",
        one_of("stop", "mark"),
        '"stop" ends at changes that the log does not hold as rows; "mark" goes on and reports them',
    )
    bootstrap_rows: int = setting(0, whole_number(0), "a bootstrap reads at most so many rows per second; 0 means no limit")
    retain_hours: int = setting(24, whole_number(1), "`changes retain` removes changes that are older")
    retain_bytes: int = setting(
        0, parse_size, '"200 GB" limits the store: `changes retain` removes the oldest first; "" means no limit'
    )
    compress_hours: int = setting(2, whole_number(0), "`changes retain` compresses older buckets harder; 0 means never")
    memory: int = setting(
        128_000_000, parse_size, "`changes serve` keeps so many bytes of divided blocks for its next clients"
    )
    mirror: bool = setting(False, parse_flag, "true keeps the binary logs of the server beside the store, byte for byte")


@dataclass(frozen=True)
class SinkSettings:
    """Tables that follow a source's changes. A sink is a task of its name. One table for each sink."""

    name: str
    source: str = setting(REQUIRED, parse_text, "the name of a [sources.NAME]", start="orders")
    kind: str = setting(
        REQUIRED,
        one_of("delta", "history", "catalog"),
        '"delta": Delta tables as they are at the source; "history": every change, in Parquet; "catalog": TsFiles of a site',
        start="delta",
    )
    target: str = setting(
        REQUIRED,
        parse_local_store,
        "a folder of this machine that belongs to this sink alone; of a catalog sink a receiver's name, or the `store` of a"
        " `[sites.NAME]`",
        start="var/lake/orders",
    )
    tables: tuple[str, ...] = setting(("**",), parse_table_patterns, "patterns of the tables to keep, database.table")
    engine: str = setting(
        "pool",
        one_of("pool", "spark"),
        '"pool": the process that delivers decodes, folds and encodes; "spark": tasks at `master` of `[spark]` do, unless'
        ' its `engine` is "pool"',
    )
    shards: int = setting(8, whole_number(1, 4096), "of its task: into how many shards rows are divided")
    hash: str = setting("mixed", one_of("mixed", "ptubes"), 'of its task: "ptubes" is the hash of the original')
    key_change: str = setting(
        "split", one_of("split", "after", "refuse"), "of its task: what becomes of a row whose key changes"
    )
    schedule: str = setting(
        "",
        parse_cron,
        'the cron line (UTC) of the DAG `tidemark_sink__NAME`; "" means whenever the source was captured',
    )
    columns: tuple[tuple[str, TableColumns], ...] = setting(
        (),
        parse_columns,
        'of tables, for example {"shop.orders" = {shard = ["customer_id"], time = "seen", tags = ["site"]}}: what its task'
        " divides rows by; of a catalog sink the time and the tags; else the primary key",
    )


@dataclass(frozen=True)
class ChangesSettings:
    """`./tidemark changes serve`: changes of the sources, to other machines."""

    listen: str = setting("127.0.0.1:28332", parse_listen, "address and port; 0: a port that is free")
    tokens: str = setting(
        "changes.tokens",
        parse_path,
        "a file with a line `TOKEN TASK…` for each client; `openssl rand -hex 24` makes a token",
    )
    certificate: str = setting("", parse_path, "a file in PEM, and `key`: then it is HTTPS")
    key: str = setting("", parse_path, "the certificate's key")


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
    sinks: Mapping[str, SinkSettings] = field(default_factory=dict)
    changes: ChangesSettings = ChangesSettings()

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
    "sinks": SinkSettings,
    "changes": ChangesSettings,
}
NAMED = ("receivers", "sites", "links", "nodes", "sources", "sinks")  # sections with a table for each name
DEFAULTS = {"site": "sites", "link": "links"}  # what `[defaults.NAME]` is for
INCLUDE = Setting((), parse_texts, 'more files like this one, for example ["sites/*.toml"]', "")


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


def find_site_of_sink(settings: Settings, sink: SinkSettings) -> SiteSettings | None:
    """The site whose files a catalog sink writes: its store is the sink's target. None: the sink is another one, or there is
    no such site."""
    if sink.kind != "catalog":
        return None
    folder = sink.target.rstrip("/")
    return next((site for site in settings.sites.values() if site.store.rstrip("/") == folder), None)


def list_links_of_sink(settings: Settings, sink: SinkSettings) -> list[str]:
    """The links that send what a catalog sink writes; of other sinks there are none."""
    site = find_site_of_sink(settings, sink)
    return sorted(link.name for link in settings.links.values() if site and link.site == site.name)
