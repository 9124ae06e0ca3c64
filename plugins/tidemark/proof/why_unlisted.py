"""A file at a site that no run has listed yet: what the next run will make of it."""

from __future__ import annotations

from tidemark.proof.explanation import Explanation
from tidemark.settings.model import SiteSettings
from tidemark.stores.listing import classify_files
from tidemark.stores.protocol import Store


def explain_unlisted(store: Store, site: SiteSettings, path: str) -> Explanation | None:
    """None where the site has no such file below its data folders."""
    if store.stat(path) is None:
        return None
    folder = path.rpartition("/")[0]
    result = classify_files(store, store.list_files([folder]).entries, site.data)
    evidence = (f"it lies at site {site.name}; no run has listed it yet",)
    sync = f"./tidemark sync {site.name}"
    if any(f.entry.path == path for f in result.sealed):
        cause = "it was sealed after the newest run listed the site"
        return Explanation(path, "file", "not seen yet", cause, evidence, sync, "the next run of its link sends it")
    reason = dict(result.skipped).get(path)
    if reason is None:
        return None
    return Explanation(path, "file", "not sealed", reason, evidence, "", "the first run after it is sealed sends it")
