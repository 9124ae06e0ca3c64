"""Loads and merges on a standalone cluster as production has one: a master and two workers, each a process of its own.

A worker is killed in the middle of a merge, the driver is killed, the whole merge is killed and asked for again: every end
is the same content, and nothing is there twice.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.centre import Centre, Row
from tests.expected import SITES
from tests.exploding_files import DEVICE, SERIES, many_chunks, many_pages
from tests.landing_maker import companions, tsfiles_below
from tests.services import spark as spark_service
from tests.services.processes import descendants, descendants_named, die_with_parent, free_port
from tests.services.spark import Cluster
from tests.services.sshd import Sshd
from tests.small_files import sealed, source
from tidemark.engines import spark as spark_session
from tidemark.engines.java import java_home
from tidemark.engines.spark import SparkEngine, close_sessions, session_at
from tidemark.engines.task import Limits
from tidemark.errors import RetryableError, TaskLimitError, UnreachableError, UsageError
from tidemark.operations.doctor.spark import check_spark
from tidemark.receiver.merge.merge import merge
from tidemark.settings.model import SparkSettings

pytestmark = [pytest.mark.full, pytest.mark.real("spark"), pytest.mark.timeout(400)]
ROOT = Path(__file__).parents[2]
SITE = SITES["2.0.1-beta"]
GROUPS, PAGES = 8, 20_000


@pytest.fixture(scope="module")
def java() -> Path:
    try:
        return java_home()
    except UsageError as missing:
        pytest.skip(missing.message)


@pytest.fixture
def cluster(java: Path, tmp_path: Path) -> Iterator[Cluster]:
    with spark_service.cluster(java, tmp_path) as running:
        yield running


def centre_at(folder: Path, master: str) -> Centre:
    """A receiver all of whose loads and merges are Spark's."""
    centre = Centre(folder, engine="auto")
    centre.app.settings = dataclasses.replace(centre.app.settings, spark=SparkSettings(master=master, engine="spark"))
    return centre


def slow_groups(centre: Centre) -> list[Row]:
    """Groups whose merge takes a second each; what readers see of the points that two files of a group have."""
    files: dict[str, dict[str, bytes]] = {}
    for number in range(GROUPS):
        device = f"root.sg.b{number:02}"
        assert len(device) == len(DEVICE)
        files[source(2 * number + 1)] = {"": many_pages(PAGES).replace(DEVICE.encode(), device.encode())}
        files[source(2 * number + 2)] = sealed({device: {SERIES: [(time, 7) for time in range(0, PAGES, 1000)]}})
    centre.sender().land(files)
    assert centre.load().troubles == ()
    return [
        (f"root.sg.b{number:02}", SERIES, time, "INT64", "1" if time % 1000 else "7")
        for number in range(GROUPS)
        for time in range(PAGES)
    ]


def check_end(centre: Centre, expected: list[Row]) -> None:
    """Each group merged once, every point there, and no byte more than the catalog knows."""
    assert centre.rows() == expected
    assert centre.sql("SELECT role, visible, count(*) FROM catalog_file WHERE state = 'live' GROUP BY 1, 2 ORDER BY 1") == [
        ("merged", 1, GROUPS),
        ("source", 0, 2 * GROUPS),
    ]
    accounts = centre.sql("SELECT points_in, points_out, overwritten, deleted FROM merge_account")
    assert [tuple(account) for account in accounts] == [(PAGES + PAGES // 1000, PAGES, PAGES // 1000, 0)] * GROUPS
    assert centre.files("staging") == []
    places = [name.removeprefix("data/") for (name,) in centre.sql("SELECT location FROM catalog_file")]
    assert centre.files("data") == sorted(places)


def staged(centre: Centre) -> int:
    return len([name for name in centre.files("staging") if name.endswith(".tsfile")])


def when(true: Callable[[], bool], then: Callable[[], None]) -> threading.Thread:
    """Do `then` as soon as `true`, beside what goes on."""

    def watch() -> None:
        while not true():
            time.sleep(0.005)
        then()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def kill_all(processes: list[psutil.Process]) -> None:
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


def test_a_cluster_loads_and_merges_a_real_folder(cluster: Cluster, tmp_path: Path) -> None:
    """Executors see the receiver as a path, and get Tidemark itself from the driver; one session does both."""
    centre = centre_at(tmp_path, cluster.address)
    centre.sender(data=SITE.data).land({path: companions(SITE.root, path) for path in tsfiles_below(SITE.root, SITE.data)})
    assert centre.load().troubles == ()
    first = session_at("merge", cluster.address, java_home()).pid
    assert centre.rows() == SITE.rows()
    result = merge(centre.app, centre.receiver)
    assert result.exit_code == 0 and result.groups > 4
    assert centre.rows() == SITE.rows()
    assert session_at("merge", cluster.address, java_home()).pid == first


def test_the_doctor_knows_a_master_from_its_web_page(cluster: Cluster) -> None:
    (right,) = check_spark(SparkSettings(cluster.address), {})
    assert right.ok and "a master answers" in right.detail
    (wrong,) = check_spark(SparkSettings(f"spark://127.0.0.1:{cluster.page}"), {})
    assert not wrong.ok and "something else than a master" in wrong.detail


def test_executors_that_do_not_see_the_receiver_go_over_sftp(cluster: Cluster, sshd: Sshd, tmp_path: Path) -> None:
    """Every file comes and goes through the server: with the server gone, nothing is loaded and the load says why."""
    folder = sshd.new_folder()
    centre = centre_at(folder, cluster.address)
    spark = SparkSettings(cluster.address, "spark", 0, sshd.url("/"), sshd.host_key, str(sshd.key))
    centre.app.settings = dataclasses.replace(centre.app.settings, spark=spark)
    centre.sender(data=SITE.data).land({path: companions(SITE.root, path) for path in tsfiles_below(SITE.root, SITE.data)})
    logins = sshd.log().count("Accepted publickey")
    assert centre.load().troubles == ()
    assert centre.rows() == SITE.rows()
    checked = sshd.log().count("Accepted publickey") - logins
    assert checked >= len(tsfiles_below(SITE.root, SITE.data))
    result = merge(centre.app, centre.receiver)
    assert result.exit_code == 0 and result.groups > 4
    assert sshd.log().count("Accepted publickey") - logins - checked >= result.groups
    assert centre.rows() == SITE.rows()
    assert centre.files("staging") == []


def test_a_far_task_that_reaches_nobody_is_no_verdict_on_its_file(java: Path, tmp_path: Path) -> None:
    centre = centre_at(tmp_path, "local[2]")
    spark = SparkSettings("local[2]", "spark", 0, f"sftp://nobody@127.0.0.1:{free_port()}/", "SHA256:" + "A" * 43)
    centre.app.settings = dataclasses.replace(centre.app.settings, spark=spark)
    centre.sender().land({source(1): sealed({"root.sg.d1": {"s": [(1, 10)]}})})
    with pytest.raises(UnreachableError):
        centre.load()
    centre.app.settings = dataclasses.replace(centre.app.settings, spark=SparkSettings("local[2]", "spark"))
    assert centre.load().loaded == 1


def test_a_worker_that_is_killed_in_the_middle_of_a_merge(cluster: Cluster, tmp_path: Path) -> None:
    """Its executor dies with it; the other worker does its tasks again."""
    centre = centre_at(tmp_path, cluster.address)
    expected = slow_groups(centre)
    victim = cluster.workers[0]
    struck: list[int] = []

    def strike() -> None:
        kill_all([psutil.Process(victim.pid), *descendants(victim.pid)])
        struck.append(staged(centre))

    watcher = when(lambda: staged(centre) > 0, strike)
    result = merge(centre.app, centre.receiver)
    watcher.join(10)
    assert struck and struck[0] < GROUPS
    assert (result.groups, result.exit_code) == (GROUPS, 0)
    check_end(centre, expected)


def test_a_cluster_without_workers_is_told_and_not_waited_for(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task has a clock; that nobody takes it would last for ever."""
    monkeypatch.setattr(spark_session, "IDLE_SECONDS", 8.0)
    centre = centre_at(tmp_path, cluster.address)
    device = {"root.sg.d1": {"s": [(1, 10)]}}
    centre.sender().land({source(number): sealed(device) for number in (1, 2)})
    centre.app.settings = dataclasses.replace(centre.app.settings, spark=SparkSettings(engine="pool"))
    assert centre.load().troubles == ()
    for worker in cluster.workers:
        kill_all([psutil.Process(worker.pid), *descendants(worker.pid)])
    centre.app.settings = dataclasses.replace(centre.app.settings, spark=SparkSettings(cluster.address, "spark"))
    with pytest.raises(RetryableError, match="no executor for its tasks within 8 s"):
        merge(centre.app, centre.receiver)
    centre.app.settings = dataclasses.replace(centre.app.settings, spark=SparkSettings(engine="pool"))
    assert merge(centre.app, centre.receiver).groups == 1


def config_of(centre: Centre, master: str) -> Path:
    centre.app.settings.path.write_text(
        f'[receivers.centre]\nstore = "file://{centre.root}"\n\n[spark]\nengine = "spark"\nmaster = "{master}"\n'
    )
    return centre.app.settings.path


def start_merge(config: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "tidemark.cli", "--config", str(config), "merge", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "plugins")}
    return subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=die_with_parent(signal.SIGKILL),
    )


def wait_for_middle(centre: Centre, process: subprocess.Popen[bytes]) -> None:
    while not staged(centre):
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)


@pytest.mark.soak
@pytest.mark.parametrize("victim", ["whole merge", "driver"])
def test_a_merge_that_is_killed_and_asked_for_again(cluster: Cluster, tmp_path: Path, victim: str) -> None:
    """As Airflow does when it runs a task again: the same command, which cleans up and ends the work."""
    centre = centre_at(tmp_path, "local[1]")
    expected = slow_groups(centre)
    close_sessions()
    config = config_of(centre, cluster.address)
    first = start_merge(config)
    wait_for_middle(centre, first)
    if victim == "driver":
        kill_all(descendants_named(first.pid, "spark_jobs"))
    else:
        os.killpg(first.pid, signal.SIGKILL)
    out, err = first.communicate(timeout=120)
    if victim == "driver":
        assert first.returncode == RetryableError.kind, (out, err)
        assert b"the Spark job merge at spark://" in out + err
    assert centre.rows() == expected
    last = start_merge(config)
    out, err = last.communicate(timeout=200)
    assert last.returncode == 0, (out, err)
    check_end(centre, expected)


def test_a_session_stays_warm_and_one_that_died_is_replaced(java: Path, tmp_path: Path) -> None:
    centre = centre_at(tmp_path, "local[2]")
    sender = centre.sender()
    pids, expected = [], []
    for number in range(3):
        device = f"root.sg.d{number}"
        files = [sealed({device: {"s": [(1, value), (2, value)]}}) for value in (1, 2)]
        sender.land({source(2 * number + n): file for n, file in enumerate(files, 1)})
        assert centre.load().troubles == ()
        assert merge(centre.app, centre.receiver).groups == 1
        pids.append(session_at("merge", "local[2]", java).pid)
        expected += [(device, "s", time, "INT64", "2") for time in (1, 2)]
        if number == 1:
            psutil.Process(pids[-1]).kill()
            psutil.Process(pids[-1]).wait(10)
    assert pids[0] == pids[1] != pids[2]
    assert centre.rows() == expected


def test_what_explodes_on_an_executor_costs_itself_alone(java: Path, tmp_path: Path) -> None:
    centre = centre_at(tmp_path, "local[2]")
    centre.engine = SparkEngine("local[2]", java, Limits(cpu_seconds=1))
    centre.sender().land({source(1): {"": many_chunks(1_200_000)}, source(2): sealed({"root.sg.d1": {"s": [(1, 10)]}})})
    result = centre.load()
    assert (result.loaded, result.quarantined, result.exit_code) == (1, 1, TaskLimitError.kind)
    assert "used up its CPU time" in result.troubles[0].reason
    assert centre.rows() == [("root.sg.d1", "s", 1, "INT64", "10")]
