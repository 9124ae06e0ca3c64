"""The text on each DAG's page: what it does, and what to do when a task is red."""

from __future__ import annotations

import os

from tidemark.settings.model import LinkSettings, SinkSettings, SourceSettings
from tidemark.spelling import spelling_of_tasks

_RERUN = """
**Clear any task, or "clear failed only", at any time**: a step reads the ledger, does what is still missing and records
it. Nothing is sent or loaded twice, and clearing a task of a finished run changes nothing. A task that waits for its
retry (`up_for_retry`) heals by itself; its log says what it waits for. The last line of a red task's log names the next
command; `./tidemark why SUBJECT` explains any file, run, site or device. More: `docs/runbooks/`.
"""


def spell_doc(doc: str) -> str:
    """Return a page with its commands as people here would type them."""
    return spelling_of_tasks(os.environ).spell(doc)


def link_doc(link: LinkSettings) -> str:
    when = f"`{link.schedule}` ({link.timezone})" if link.schedule else "by hand only"
    return f"""### Link `{link.name}`: site `{link.site}` → receiver `{link.receiver}`

Ships the site's sealed TsFiles, verified and once. Runs {when}{_describe_window(link)}; one run at a time. A run that landed
something triggers `tidemark_load`.

| task | does | when it is red |
|---|---|---|
| `recover` | ends an unfinished run, opens this one | *lease held*: it is retried; or that run stops again: its log |
| `select_files` | lists, plans, pins by hard links | site unreachable or its host key changed: `./tidemark doctor` |
| `sync_schema` | ships the schema logs' new bytes | the named log is not readable at the site |
| `transfer_deletes` | tells of vanished files | the ledger or the receiver cannot be reached: it is retried, then clear it |
| `transfer_files` | sends in batches, resumes within a file | disk full, permission: mend it there, then clear the task |
| `finish` | closes the landing by its manifest | receiver unreachable: it is retried, then clear it |
| `cleanup` | removes pins, ends the run | drops wait for the DAG `tidemark_approve`, or files were left out: see its log |

A run without news has `transfer_files` *skipped* (pink): nothing was to be sent. Outside the link's window tasks are
*skipped*, not red; the next run goes on. With "Dry run" only the plan is logged.
{_describe_unverified(link)}{_RERUN}"""


def _describe_unverified(link: LinkSettings) -> str:
    why = "this link makes digests at the target only" if link.digest == "target" else "its site may offer SFTP alone"
    return (
        f"Files that are *not verified at the source* ({why}) are counted in the log of `cleanup` and"
        f" in `./tidemark status`; `./tidemark verify --site {link.site}` proves them.\n"
    )


def _describe_window(link: LinkSettings) -> str:
    return f", inside {link.window}" if link.window else ""


LOAD_DOC = f"""### Load and merge

Checks every landing in sequence (digest, structure, owner of each device), places its files, changes the catalog in one
transaction, answers with `receipt.json`; then merges what overlaps. Runs when a sync landed something, and by the clock
from the ledger, so a missed event costs minutes and no data. One map index a receiver that is on this machine.

| task | when it is red |
|---|---|
| `load` | it loaded all it could, and the last line of its log names what it could not and the next command |
| `merge` | some were not merged; the catalog is right without, only slower to read: mend, then clear |
| `announce` | Airflow or the ledger cannot be reached: it is retried. it tells your DAGs, see below |
| `load_iotdb` | only where a receiver names an `iotdb`: it is down, or was not given all (the log names files and reasons) |
| `done` | never by itself: it is `upstream_failed` when one of the others is red |

What a load may leave: landings behind one that is missing in the sequence, files in quarantine (`./tidemark quarantine
list`), files refused because another site owns their devices (`./tidemark owners list`), everything behind a full disk.
`merge` and `announce` run whether or not `load` left something. `announce` emits the asset `catalog of RECEIVER` when
readers see other points than before; a DAG of yours with that schedule then runs. A cleared `load` finds only what is
still open.
{_RERUN}"""

VERIFY_DOC = f"""### Verify

Compares source, landing and catalog by digest, with "Deep" by points. Red means *differences were found*, a site did not
answer, files are held back (in quarantine, refused, given up), or "Deep" compared no point of a site: what is not verified
is never green. The log lists them.
`./tidemark why PATH` explains one, `./tidemark verify --repair` sends or derives again what differs. Where the receiver lies
on several nodes `cluster_check` proves every copy against the ledger: `./tidemark cluster check --repair`. `replica_verify`
reads the logs of all members whole and compares the members of each group by them: its last line names what mends it.
{_RERUN}"""

HOUSEKEEP_DOC = f"""### Housekeep

Lets merged files stand alone after `settle_days`, reclaims retired files after their grace, removes answered landings,
trims old events. It removes nothing that is not proved elsewhere. Red: a disk or a permission, named in the log.
{_RERUN}"""

APPROVE_DOC = f"""### Approve drops

Shows what waits at a link whose `cleanup` is red because more files are gone at its site than the limits allow. Triggered by
hand, with the link. It is `./tidemark approve RUN` for people who have Airflow's pages only.

| task | does | when it is red |
|---|---|---|
| `find` | looks up the run that waits, its numbers and paths; *skipped* if none waits | the ledger is away: it is retried |
| `approval` | waits for a person (Required Actions); *Reject* skips the rest, and they go on waiting | never: it waits |
| `approve` | lets the next run drop just those files | a newer run looked again: clear this DAG run, read it anew |
{_RERUN}"""

SCALE_DOC = f"""### Scale the cluster

Adds a data node, removes one, or evens out what they hold. Triggered by hand: with "Dry run" (the default) only the plan is
logged. Loading and reading go on meanwhile.

| task | does | when it is red |
|---|---|---|
| `plan` | what would move, from where to where | the change cannot be: its log says why; or another one is still going on |
| `approval` | waits for a person (Required Actions); *Reject* skips the rest | never: it waits |
| `phase_one` | every node takes the new table, then it is in force | a quorum of a group cannot be reached: mend, clear |
| `migrate` | slots by batches: schema, files by digest, acknowledgements | a node is away: it is retried, then clear it |
| `finish` | whatever is left; the node has joined, or left | as `migrate`; `./tidemark cluster show` says what is left |

Until `phase_one` is green `./tidemark cluster roll-back` gives the change up; afterwards the reverse is a change of its own.
`./tidemark why node:NAME` and `why slot:N` explain what waits, `./tidemark cluster check` proves every copy.
{_RERUN}"""

WATCH_DOC = f"""### Watch the groups

Asks each data node once how far its logs are, gives a group whose master is away another one, brings logs back into step,
and lets masters go home. A node is offline after `[cluster] misses` rounds without an answer. Several schedulers may run it.

| task | does | when it is red |
|---|---|---|
| `watch` | one round, as `./tidemark replica watch` | a group has no master and too few members answer |

`./tidemark replica show` says who is master, slave, unsynced or offline, and why.
{_RERUN}"""

RECOVER_DOC = f"""### Recover members

Brings nodes that lack files or records of their groups back into step, two at a time, while loading and reading go on. A
node that does not answer is left out until it does.

| task | does | when it is red |
|---|---|---|
| `find` | the nodes that are not in step | the ledger is away: it is retried |
| `recover` | one node: what it lacks by digest, then its logs | the node, or who has its files, is away: it is retried |
| `replace` | with `[cluster] replace_hours`: one that stays away leaves, another joins | it failed: the next run goes on |

`./tidemark replica recover NODE` and `./tidemark replica replace` do the same by hand.
{_RERUN}"""


def source_doc(source: SourceSettings) -> str:
    when = f"`{source.schedule}` (UTC)" if source.schedule else "by hand only"
    return f"""### Changes of `{source.name}`

Brings the changes of a MySQL or MariaDB from its binary log into the source's store: whole transactions in order, each
once. Runs {when}; one run at a time. While `./tidemark changes capture {source.name} --follow` works, a run is *skipped*.

| task | does | when it is red |
|---|---|---|
| `check` | as `changes doctor` | its log has the SQL that mends it; the others go on |
| `capture` | everything up to now; tells an asset | away: it is retried; *gap*: `binlog-purged.md`; else see its log |
| `bootstrap` | reads the rows that tables had before | a table cannot be read: its log says why; the others are |
| `retain` | removes what is older than `retain_hours` | a disk that is full or read-only: mend it, then clear the task |
| `verify` | once a day: every checksum of the store | a block is damaged: bring the store back from a copy |
| `done` | nothing | one of the others is red |

`capture` emits the asset `changes of {source.name}`; a DAG of yours with that schedule then runs.
A red `check` with `headroom` means that less than half of the purge time was left: capture more often, or have the server
keep its logs longer.
{_RERUN}"""


def _describe_sending(sink: SinkSettings) -> str:
    row = "| `send_…` | begins a run of the link that sends its files, also behind a red `deliver` | there is no such DAG |"
    return f"{row}\n" if sink.kind == "catalog" else ""


def sink_doc(sink: SinkSettings) -> str:
    when = f"by `{sink.schedule}` (UTC)" if sink.schedule else f"when `changes of {sink.source}` has news"
    kinds = {
        "delta": "tables as they are at the source",
        "catalog": "TsFiles of the site that has this store, which its links send",
    }
    what = kinds.get(sink.kind, "a Parquet file of every change")
    return f"""### Sink `{sink.name}`

Brings `{sink.target}` to the changes of source `{sink.source}`: {what}. Runs {when}; one run at a time. While another
process writes the sink, a run is *skipped*.

| task | does | when it is red |
|---|---|---|
| `deliver` | all that the store has | a table is *stopped*: its log says why and what to do; the others go on |
{_describe_sending(sink)}
A batch is recorded before it is written, so a run that died is made good by the next one, with the same rows.
{_RERUN}"""
