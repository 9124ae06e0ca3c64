"""What all tests share: which tests run, real parts as fixtures, Hypothesis profiles, the count of skips.

    (default)   everything but `full` and `soak`        --all   adds `full`        --soak   adds `soak`

Of a test marked `full_after(n)` the first n cases are in the default suite. The others are `full`.

A test marked `real(part)` skips where its part is missing. With CI=true such a skip is a failure: nothing real may
quietly go untested there.
"""

from __future__ import annotations

import functools
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import hypothesis
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from tests.crash import explorer
from tests.services import postgres as postgres_service
from tests.services import sshd as sshd_service
from tests.services.processes import PartMissing
from tests.services.sshd import FarEnd, Sshd
from tidemark.ledger import migrations
from tidemark.ledger.database import Ledger
from tidemark.ledger.migrations import migrate_ledger
from tidemark.stores import retrying

ROOT = Path(__file__).parent.parent
PARTS = {  # a test that takes one of these fixtures is a test of a real part
    **dict.fromkeys(("sshd", "sshd_posix", "sshd_sftp_only", "sshd_chroot", "start_sshd"), "sshd"),
    **dict.fromkeys(("postgres", "postgres_url", "postgres_ledger_url"), "postgresql"),
}
IN_CI = os.environ.get("CI", "").lower() == "true"

for _name in [name for name in os.environ if name.startswith("TIDEMARK_")]:
    if not _name.startswith("TIDEMARK_TEST_"):
        del os.environ[_name]  # the settings of whoever runs the tests must not leak into them
os.environ.setdefault("AIRFLOW_HOME", str(ROOT / "var" / "tests" / "airflow"))

hypothesis.settings.register_profile("dev", max_examples=50, deadline=None)
hypothesis.settings.register_profile("ci", max_examples=150, deadline=None, print_blob=True)
hypothesis.settings.register_profile("soak", max_examples=2000, stateful_step_count=100, deadline=None, print_blob=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tidemark")
    group.addoption(
        "--all", action="store_true", help="also tests marked `full`: real servers, a running Airflow, a browser"
    )
    group.addoption("--soak", action="store_true", help="also tests marked `soak`: long sweeps")


def pytest_configure(config: pytest.Config) -> None:
    everything = config.getoption("--all") or config.getoption("--soak")
    explorer.DEATHS = sys.maxsize if config.getoption("--soak") else 100 if everything else explorer.DEATHS
    profile = "soak" if config.getoption("--soak") else "ci" if everything else "dev"
    hypothesis.settings.load_profile(os.environ.get("TIDEMARK_TEST_HYPOTHESIS", profile))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for part in {part for name, part in PARTS.items() if name in getattr(item, "fixturenames", ())}:
            item.add_marker(pytest.mark.real(part))
    _mark_later_cases(items)
    unwanted = {marker for marker, option in (("full", "--all"), ("soak", "--soak")) if not config.getoption(option)}
    dropped = [item for item in items if any(item.get_closest_marker(marker) for marker in unwanted)]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        gone = set(dropped)
        items[:] = [item for item in items if item not in gone]


def _mark_later_cases(items: list[pytest.Item]) -> None:
    seen: Counter[str] = Counter()
    for item in items:
        limit = item.get_closest_marker("full_after")
        if limit is None or item.get_closest_marker("full") or item.get_closest_marker("soak"):
            continue
        test = item.nodeid.partition("[")[0]
        seen[test] += 1
        if seen[test] > limit.args[0]:
            item.add_marker(pytest.mark.full)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if IN_CI and report.skipped and not hasattr(report, "wasxfail") and item.get_closest_marker("real"):
        report.outcome = "failed"
        report.longrepr = f"with CI=true no real part may be missing, but this test was skipped: {_reason(report)}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count what was skipped and why, above pytest's own closing line."""
    reasons = Counter(_reason(report) for report in terminalreporter.stats.get("skipped", ()))
    if reasons:
        terminalreporter.write_sep("-", "skipped, by reason")
        for reason, count in reasons.most_common():
            terminalreporter.write_line(f"{count:5d}  {reason}")


def _reason(report: pytest.TestReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


@pytest.fixture(scope="session", autouse=True)
def _wait_for_no_disk() -> Iterator[None]:
    """Processes die in tests, machines do not: what was written stays without waiting for the disk.

    `memory_store.py` models a power loss. A test that counts calls of fsync, or lets one fail, puts its own in place. Child
    processes wait as ever."""

    def no_wait(link: sa.engine.Connection) -> None:
        if link.dialect.name == "sqlite":
            link.connection.dbapi_connection.execute("PRAGMA synchronous=OFF")

    sa.event.listen(sa.engine.Engine, "engine_connect", no_wait)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _handle: None)
        yield
    sa.event.remove(sa.engine.Engine, "engine_connect", no_wait)


@pytest.fixture(scope="session", autouse=True)
def _compile_statements_once() -> Iterator[None]:
    """A user's process opens one ledger, a test process a thousand: they share what SQLAlchemy compiles. That is a sixth of
    the suite's time."""
    compiled: dict[object, object] = {}

    def share(link: sa.engine.Connection) -> None:
        if link.dialect.name == "sqlite":
            link.execution_options(compiled_cache=compiled)

    sa.event.listen(sa.engine.Engine, "engine_connect", share)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sa, "text", functools.lru_cache(10_000)(sa.text))
        patch.setattr(SQLiteDialect_pysqlite, "__eq__", lambda one, other: type(one) is type(other))
        patch.setattr(SQLiteDialect_pysqlite, "__hash__", lambda one: hash(type(one)))
        yield
    sa.event.remove(sa.engine.Engine, "engine_connect", share)


@pytest.fixture(scope="session", autouse=True)
def _copy_a_migrated_ledger() -> Iterator[None]:
    """`open_app` migrates a new ledger. Here an empty file of SQLite becomes a copy of a ledger that was migrated once."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        first = Ledger(f"sqlite:///{folder}/ledger.db")
        migrate_ledger(first)
        with closing(first.engine.raw_connection()) as migrated:
            source = migrated.driver_connection
            assert source is not None

            def migrate(ledger: Ledger) -> Sequence[int]:
                file = Path(ledger.engine.url.database or "")
                if ledger.is_sqlite and not (file.exists() and file.stat().st_size):
                    with ledger.read() as link:
                        source.backup(link.connection.driver_connection)
                return migrate_ledger(ledger)

            patch.setattr(migrations, "migrate_ledger", migrate)
            yield
        first.close()


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two tries of a far end that is away."""
    monkeypatch.setattr(retrying, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(retrying, "LONGEST_PAUSE", 0.1)


def _sshd(far_end: FarEnd) -> Iterator[Sshd]:
    try:
        server = sshd_service.start(far_end)
    except PartMissing as missing:
        pytest.skip(str(missing))
    yield server
    server.close()


@pytest.fixture(scope="session")
def sshd() -> Iterator[Sshd]:
    """OpenSSH with a login shell and python3. Shared: a test that disturbs its server takes `start_sshd`."""
    yield from _sshd(FarEnd.SHELL)


@pytest.fixture(scope="session")
def sshd_posix() -> Iterator[Sshd]:
    """OpenSSH whose shell has POSIX tools but no python."""
    yield from _sshd(FarEnd.POSIX)


@pytest.fixture(scope="session")
def sshd_sftp_only() -> Iterator[Sshd]:
    """OpenSSH with `ForceCommand internal-sftp`."""
    yield from _sshd(FarEnd.SFTP)


@pytest.fixture(scope="session")
def sshd_chroot() -> Iterator[Sshd]:
    """OpenSSH with `internal-sftp` in a chroot (root only)."""
    yield from _sshd(FarEnd.CHROOT)


@pytest.fixture
def start_sshd() -> Iterator[Callable[..., Sshd]]:
    """Start servers of one's own: `start_sshd(FarEnd.SHELL, {"MaxSessions": "1"})`; closed after the test."""
    started: list[Sshd] = []

    def start(far_end: FarEnd = FarEnd.SHELL, options: dict[str, str] | None = None) -> Sshd:
        try:
            started.append(sshd_service.start(far_end, options))
        except PartMissing as missing:
            pytest.skip(str(missing))
        return started[-1]

    yield start
    for server in started:
        server.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[postgres_service.Postgres]:
    """One PostgreSQL server for the session."""
    try:
        server = postgres_service.start()
    except PartMissing as missing:
        pytest.skip(str(missing))
    yield server
    server.close()


@pytest.fixture
def postgres_url(postgres: postgres_service.Postgres) -> Iterator[str]:
    """The address of a fresh, empty PostgreSQL database; dropped after the test."""
    url = postgres.new_database()
    yield url
    postgres.drop_database(url)


@pytest.fixture
def postgres_ledger_url(postgres: postgres_service.Postgres) -> Iterator[str]:
    """The address of a fresh PostgreSQL database, migrated and without rows; dropped after the test."""
    url = postgres.new_ledger()
    yield url
    postgres.drop_database(url)
