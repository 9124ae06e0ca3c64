"""Files that are "not verified at the source", a state of its own: how it is said, and what proves them later."""

from __future__ import annotations

import shlex


def not_verified(count: int, site: str) -> str:
    """`count` files of a site (by its name) whose digest was made at the target only."""
    files = f"{count:,} files are" if count > 1 else "1 file is"
    return (
        f"{files} not verified at the source: the digest was made at the target only;"
        f" ./tidemark verify --site {shlex.quote(site)} reads there what was sent, and proves it"
    )
