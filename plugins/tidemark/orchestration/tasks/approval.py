"""Tasks of `tidemark_approve`: what waits at a link, for a person to read, and the approval of just that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemark.orchestration.tasks.perform import perform_step, report_counts
from tidemark.progress import format_count
from tidemark.visible import escape_invisible
from tidemark.visible_log import VisibleLog

if TYPE_CHECKING:
    from tidemark.app import App


log = VisibleLog(__name__)
PATHS = 100  # that a person is shown; the log has all


def find(params: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the run whose drops wait at the link, and the text for the approval. Skipped if none wait."""
    from airflow.sdk.exceptions import AirflowSkipException

    link = str((params or {}).get("link") or "")
    found = perform_step(lambda app: _find_drops(app, link))
    if found is None:
        raise AirflowSkipException(f"no drops of link {link} wait for an approval")
    run, guard, paths, deletes = found
    for path in paths:
        log.info("gone at the site: %s", path)
    return {"run": run, "link": link, "files": len(paths), "said": describe_drops(guard, paths, deletes)}


def _find_drops(app: App, link: str) -> tuple[str, str, list[str], str] | None:
    from tidemark.ledger.sender.links import get_link
    from tidemark.ledger.sender.runs import DROP, HELD, read_items

    settings = app.link_settings(link)
    with app.ledger.read() as connection:
        row = get_link(connection, link)
        if row is None or row.guard_run is None or row.approved_run == row.guard_run:
            return None
        paths = [item.path for item in read_items(connection, row.guard_run, HELD) if item.action == DROP]
    return row.guard_run, row.guard or "", sorted(paths), settings.deletes


def describe_drops(guard: str, paths: list[str], deletes: str) -> str:
    """Return the text that a person decides by: why they wait, how many, what becomes of them, which. Pure."""
    fate = "leave the catalog" if deletes == "apply" else "stay in the catalog, marked as dropped"
    shown = "".join(f"\n- {_quote(path)}" for path in paths[:PATHS])
    more = f"\n\n… and {len(paths) - PATHS:,} more: see the log of find." if len(paths) > PATHS else ""
    return (
        f"{escape_invisible(guard)}.\n\n{format_count(len(paths), 'file is', 'files are')} gone at the site."
        f" Approved, they {fate} with the next run. Is the site's disk there?\n{shown}{more}"
    )


def _quote(path: str) -> str:
    return "`" + escape_invisible(path).replace("`", "'") + "`"


def approve(found: dict[str, Any]) -> dict[str, Any]:
    """Approve the drops of that run. Red if a newer run looked again since: clear this DAG run to read what waits now."""
    from tidemark.operations.decisions import approve_run

    result = perform_step(lambda app: approve_run(app, found["run"]))
    return report_counts(f"Approved the drops of run {found['run']}", result.as_json())
