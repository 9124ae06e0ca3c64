"""A running Airflow for a module (it takes ten seconds to start), and limits of time that tests can wait for."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.centre import Centre
from tests.services import bad_disk, iotdb
from tests.services.iotdb import IoTDB
from tests.services.processes import PartMissing
from tidemark.stores import open_sftp as sftp
from tidemark.stores.ssh.login import Limits


@pytest.fixture(scope="module")
def node() -> Iterator[IoTDB]:
    """A real IoTDB 2.0.1-beta, one a module."""
    try:
        server = iotdb.start()
    except PartMissing as missing:
        pytest.skip(str(missing))
    yield server
    server.close()


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A folder where 200,000 files are made and gone in seconds; on disk where no memory is to be had for it."""
    memory = Path("/dev/shm")
    room = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2 << 30
    folder = Path(tempfile.mkdtemp(prefix="tidemark-test-", dir=memory if room else tmp_path))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def compiler() -> None:
    """For what `bad_disk` is made of."""
    try:
        bad_disk.library()
    except PartMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def short_limits(monkeypatch: pytest.MonkeyPatch, short_pauses: None) -> None:
    monkeypatch.setattr(sftp, "Limits", functools.partial(Limits, 10, 20, 10))


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=[pytest.mark.real("postgresql"), pytest.mark.full])])
def centre(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Centre]:
    """A receiver with its ledger on either database."""
    facts = {"ledger_url": request.getfixturevalue("postgres_ledger_url")} if request.param == "postgresql" else {}
    made = Centre(tmp_path, **facts)
    yield made
    made.app.ledger.close()
