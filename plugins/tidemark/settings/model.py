"""Frozen settings: `tidemark.toml` plus `TIDEMARK__SECTION__KEY`, read once (CONTRACT §2, DESIGN §2).

Every group is a frozen dataclass; every key carries its meaning, unit and default in its comment. `load`
reads the file and says which line is wrong; nothing else in Tidemark reads the environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class LedgerSettings:
    """`[ledger]`: the metadata database."""

    url: str = "sqlite:///var/ledger.db"  # SQLAlchemy address of the metadata database


@dataclass(frozen=True)
class ReceiverSettings:
    """`[receivers.NAME]`: a folder of landings and catalog, here or over SSH."""

    name: str
    store: str  # file:///… or sftp://user@host:port/path
    host_key: str = ""  # required for sftp
    key: str = ""  # private key file for sftp
    connection: str = ""  # or an Airflow connection id
    tier: str = "auto"  # auto: what a probe of the far end finds; python | posix | sftp: that and no other
    iotdb: str = ""  # also LOAD into this server, iotdb://user@host:port; it must see the store under the same path
    iotdb_password_file: str = ""  # a file with its password; "" : "root", as a server has it that nobody changed
    settle_days: int = 14  # merged files stand alone after this many days
    partition_interval_ms: int = 604_800_000  # of catalog and slots
    max_unloaded_landings: int = 8  # a sync waits (5) while more than this are not loaded
    verify_days: int = 7  # a read digests what was not compared with its digest for so long; 0: whatever it reads
    bandwidth: float = 0.0  # bytes a second that its links and the moves of its slots share; 0: no limit. "100 MB/s"


@dataclass(frozen=True)
class SparkSettings:
    """`[spark]`: what merges, and from which size on."""

    master: str = "local[*]"
    engine: str = "auto"  # spark | pool | auto
    min_points: int = 5_000_000  # below this many points the process pool merges
    files: str = ""  # sftp://user@host:port/ under which executors reach this machine's paths; "": they see the same paths
    host_key: str = ""
    key: str = ""  # on every executor


@dataclass(frozen=True)
class SiteSettings:
    """`[sites.NAME]`: an edge server's folders and how they are reached."""

    name: str
    id: str  # UUID
    store: str
    host_key: str = ""
    key: str = ""
    connection: str = ""
    tier: str = "auto"
    data: tuple[str, ...] = ("data/sequence", "data/unsequence")  # relative to the store, or absolute
    schema: str = ""  # one folder of schema logs for all data folders; "" : none
    time_unit: str = "ms"  # ms | us | ns
    partition_interval_ms: int = 604_800_000
    snapshot: str = ".tidemark"  # hard-link folder on each data disk; "" : read in place
    nice: int = 0  # of what runs at a site with a shell, 0 … 19; above 0 its disk serves others first, too
    far_memory: int = 256_000_000  # bytes that python3 at a remote site may take for us; 0: no limit. Written as "256 MB"
    snapshot_bytes: int = 0  # a run links so many bytes at most, the rest is read in place; 0: no limit. Written as "20 GB"


@dataclass(frozen=True)
class LinkSettings:
    """`[links.NAME]`: one site to one receiver, when, how fast and what of it."""

    name: str
    site: str
    receiver: str
    schedule: str = ""
    timezone: str = "UTC"
    connections: int = 16
    block_bytes: int = 4_194_304
    retries: int = 5
    digest: str = "both"  # SHA-256 at both ends | "target": there alone, "not verified at the source" until `verify` did
    bandwidth: float = 0.0  # bytes a second; 0: no limit. Written as "20 MB/s"
    slowest: float = 1000.0  # bytes a second; a file slower than this over ten minutes waits for the next run. 0: never
    window: str = ""  # "22:00-06:00" in `timezone`
    include: tuple[str, ...] = ("**",)
    exclude: tuple[str, ...] = ()
    deletes: str = "keep"  # keep | apply
    delete_limit_files: int = 100
    delete_limit_share: float = 0.2
    coverage_stale_hours: float = 0.0  # a last whole listing older than this is stale; 0: 24, or two intervals of `schedule`


@dataclass(frozen=True)
class ClusterSettings:
    """`[cluster]`: how a receiver's data is spread over nodes."""

    receiver: str = ""
    replicas: int = 3
    quorum: int = 2
    slots: int = 10_000
    hash: str = "full"  # full | compat: the original's, bit for bit
    balance: str = "slots"  # slots | bytes | writes | compat
    cache_bytes: int = 20_000_000_000  # of files that the nodes hold the receiver keeps so many; 0: all. Written as "20 GB"
    bandwidth: float = 0.0  # bytes a second between nodes while slots move; 0: no limit. Written as "200 MB/s"
    grace_hours: int = 24  # files of a slot that moved away stay at its old nodes for so long: readers may be at them


@dataclass(frozen=True)
class NodeSettings:
    """`[nodes.NAME]`: one data node."""

    name: str
    store: str
    host_key: str = ""
    key: str = ""
    connection: str = ""
    tier: str = "auto"


@dataclass(frozen=True)
class Settings:
    """The whole file."""

    path: Path  # the file they were read from; relative paths in it are relative to its folder
    ledger: LedgerSettings = LedgerSettings()
    spark: SparkSettings = SparkSettings()
    receivers: Mapping[str, ReceiverSettings] = field(default_factory=dict)
    sites: Mapping[str, SiteSettings] = field(default_factory=dict)
    links: Mapping[str, LinkSettings] = field(default_factory=dict)
    cluster: ClusterSettings | None = None  # None: there is one node, the receiver itself
    nodes: Mapping[str, NodeSettings] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """The folder the file stands in; `var/` and relative paths live below it."""
        return self.path.parent
