"""Where Tidemark's files lie that are not modules of the package: migrations, DAGs, Spark jobs, the launcher.

A checkout has them at its top, an installed wheel in `tidemark/shipped` (pyproject.toml puts them there). A wheel has no
launcher, tests, benchmarks and demo. An absent optional package is told with the extra that brings it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tidemark.errors import PermanentError, UsageError

DISTRIBUTION = "tidemark-sync"  # *tidemark* on the package index is somebody else's
CODE = Path(__file__).resolve().parents[1]
"""The folder to put on PYTHONPATH for a process that imports `tidemark`."""
SHIPPED = Path(__file__).resolve().parent / "shipped"
IS_INSTALLED = SHIPPED.is_dir()
ROOT = SHIPPED if IS_INSTALLED else CODE.parent

EXTRAS: Mapping[str, str] = {
    "airflow": "airflow",
    "deltalake": "lake",
    "google": "changes",
    "psycopg": "postgres",
    "pyarrow": "read",
    "pymysql": "changes",
    "pyspark": "spark",
    "starlette": "changes",
    "uvicorn": "changes",
}
"""Each optional package that Tidemark imports, and the extra of the distribution that brings it."""


def require_checkout(verb: str) -> None:
    """Raise UsageError if this is an installed wheel: `verb` needs what only a checkout has."""
    if IS_INSTALLED:
        raise UsageError(
            f"{verb} works in a checkout of Tidemark; this is an installed {DISTRIBUTION}",
            hint=f"clone the repository and start its launcher with the word {verb}",
            subject=verb,
        )


def describe_absent(missing: ModuleNotFoundError) -> PermanentError | None:
    """Translate the failed import of an optional package. None for any other module."""
    package = (missing.name or "").partition(".")[0]
    if package not in EXTRAS:
        return None
    return PermanentError(
        f"this needs the Python package {package}, which is not installed",
        hint=f"pip install '{DISTRIBUTION}[{EXTRAS[package]}]'",
        subject=package,
    )
