"""The commented `tidemark.toml` that `./tidemark init` writes. It loads as it is."""

from __future__ import annotations

import uuid

TEMPLATE = """\
# Tidemark's settings. Every key can also be given as TIDEMARK__SECTION__KEY, e.g. TIDEMARK__SITES__PLANT1__STORE.
# Relative paths are below the folder of this file. Check what you wrote with:  ./tidemark doctor

[ledger]
url = "sqlite:///var/ledger.db"            # or postgresql+psycopg://user@host/tidemark

# ── where files land ─────────────────────────────────────────────────────────────────────────────────────────────
[receivers.centre]
store = "var/centre"                       # a folder of this machine, file:///srv/tidemark, or sftp://user@host:22/folder
# host_key = "SHA256:…"                    # required for sftp; ssh-keyscan HOST | ssh-keygen -lf - shows it
# key = "~/.ssh/id_ed25519"                # log in with this key file, or:  connection = "an Airflow connection id"
# tier = "auto"                            # of an sftp store: "python", "posix", "sftp" let nothing better be used there
# iotdb = "iotdb://root@127.0.0.1:6667"    # also LOAD into this IoTDB server, which sees the store under the same path
# iotdb_password_file = "iotdb.password"   # a file with its password; without: "root"
settle_days = 14                           # after this many days merged files stand alone and their sources are reclaimed
partition_interval_ms = 604800000          # time partitions of the catalog: a week
max_unloaded_landings = 8                  # a sync waits while more landings than this are not loaded
verify_days = 7                            # read digests files that were not compared for so long; 0: whatever it reads
bandwidth = ""                             # "100 MB/s": shared by all its links and by slots that move; "" : no limit

# ── where files come from: one table per site ────────────────────────────────────────────────────────────────────
[sites.plant1]
id = "{site_id}"   # this site for ever: never change it, never use it twice
store = "/data/iotdb"                      # IoTDB's folder here, or sftp://edge@10.0.0.5:22/data/iotdb
# host_key = "SHA256:…"                    # required for sftp
# key = "~/.ssh/id_ed25519"                # or:  connection = "an Airflow connection id"
# tier = "auto"                            # see the receiver's
data = ["data/sequence", "data/unsequence"]   # relative to the store, or absolute: several disks
schema = ""                                # the folder of schema logs, e.g. "system/schema"; "" : none
time_unit = "ms"                           # "us", "ns": as the site's IoTDB is set; TsFiles do not say
partition_interval_ms = 604800000          # as the site's IoTDB is set
snapshot = ".tidemark"                     # folder for hard links on each data disk; "" : read in place
nice = 0                                   # 1 to 19: what we run at a remote site steps back for others, at its disk too
far_memory = "256 MB"                       # what python3 there may take for us; "" : no limit
snapshot_bytes = ""                        # "20 GB": a run links no more, so that no more than that can stay on a full disk

# ── which site goes where, when and how fast ─────────────────────────────────────────────────────────────────────
[links.plant1]
site = "plant1"
receiver = "centre"
schedule = "*/15 * * * *"                  # cron; "" : by hand only
timezone = "UTC"                           # of schedule and window
connections = 16                           # SSH connections at most
block_bytes = 4194304                      # large files go in blocks; a cut line costs a connection one of them at most
retries = 5                                # how often a file is tried again within a run
digest = "both"                            # SHA-256 at both ends; "target": there alone, proved later by ./tidemark verify
bandwidth = ""                             # "20 MB/s"; "" : no limit
slowest = "1 KB/s"                         # a file that needs longer, and ten minutes, is left to the next run; "" : never
window = ""                                # "22:00-06:00": outside it a run stops and goes on next time; "" : always
include = ["**"]                           # device patterns, e.g. ["root.factory.**"]
exclude = []
deletes = "keep"                           # files that vanished at the site stay in the catalog; "apply" removes them
delete_limit_files = 100                   # with "apply": more drops than this in a run wait for ./tidemark approve
delete_limit_share = 0.2                   # as does a larger share of the known files
coverage_stale_hours = 0                   # a site last listed whole longer ago is stale; 0: 24, or two intervals

[spark]
master = "local[*]"                        # or spark://host:7077, yarn, k8s://…
engine = "auto"                            # Spark in Airflow's DAGs, a process pool on the command line; "spark", "pool"
min_points = 5000000                       # with "auto": below this many points a process pool, Spark above
files = ""                                 # "sftp://user@host:22/" (with host_key, key) where executors see no shared path

# ── several nodes for the catalog: take away the # of these, then ./tidemark cluster init ────────────────────────
# [cluster]
# receiver = "centre"                      # whose data they hold; may be left out where there is one receiver
# replicas = 3                             # nodes that hold each file; for the cluster's life
# quorum = 2                               # of them that must have a file before readers see it
# slots = 10000                            # (database, time partition) is hashed to one of so many; for the cluster's life
# hash = "full"                            # "compat": the hash of the original; for the cluster's life
# balance = "slots"                        # what add and remove keep even: "slots", "bytes", "writes"; "compat"
# cache_bytes = "20 GB"                    # of what the nodes hold the receiver keeps so much itself; "" : all of it
# bandwidth = ""                           # "50 MB/s": of what moves between nodes, inside the receiver's; "" : no limit
# grace_hours = 24                         # files that moved away stay at their old nodes for so long, for readers at work

# [nodes.n1]                               # one table per node, as many as there are replicas at least
# store = "sftp://tidemark@10.0.1.1:22/srv/node"   # or a folder of this machine; of its own, and empty
# host_key = "SHA256:…"                    # required for sftp
# key = "~/.ssh/id_ed25519"                # or:  connection = "an Airflow connection id"
# tier = "auto"                            # see the receiver's
"""


def render_template() -> str:
    """The text with a new UUID for its site."""
    return TEMPLATE.format(site_id=uuid.uuid4())
