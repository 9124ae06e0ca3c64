"""A link's cap holds over any ten seconds, over all its connections, both ways, on every tier: counted on the wire."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol

import pytest

from tests.e2e.engine_world import every_line_is_long
from tests.e2e.store_ends import QUICK, address
from tests.services.sshd import Sshd
from tests.services.wire import Wire
from tidemark.stores.local import LocalStore
from tidemark.stores.open_sftp import open_sftp
from tidemark.stores.protocol import Tier
from tidemark.transfer.engine import SendItem, SendOptions, Sent, send_files

pytestmark = pytest.mark.real("sshd")

CAP = 2e6  # bytes a second: any machine and any line can do more
SLOW = 350e3  # a file of a megabyte is almost three seconds of it, and ten seconds hold no whole number of them
WINDOW = 10.0  # seconds


class Counting(Protocol):
    @property
    def came(self) -> int: ...


@contextmanager
def counted(wire: Counting) -> Iterator[list[tuple[float, int]]]:
    """(seconds, bytes that passed until then): before the first, about every 20 ms, and after the last."""
    over = threading.Event()
    seen = [(time.monotonic(), wire.came)]

    def look() -> None:
        while not over.wait(0.02):
            seen.append((time.monotonic(), wire.came))
        seen.append((time.monotonic(), wire.came))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield seen
    finally:
        over.set()
        looking.join()


def in_windows(seen: list[tuple[float, int]], cap: float = CAP) -> list[float]:
    """Bytes a second in every window, from a second after the first file's bytes to the last ones."""
    first = next(at for at, count in seen if count > seen[0][1] + cap / 4) + 1.0
    total = seen[-1][1]
    rates = []
    for at, count in seen:
        later = next(((then, passed) for then, passed in seen if then >= at + WINDOW), None)
        if at >= first and later is not None and later[1] < total - cap / 2:
            rates.append((later[1] - count) / (later[0] - at))
    return rates


@pytest.mark.parametrize(
    ("tier", "way", "connections"),
    [
        (Tier.PYTHON, "pull", 1),
        *(
            pytest.param(tier, way, many, marks=mark)
            for mark, tier, way, many in [
                (pytest.mark.soak, Tier.PYTHON, "push", 4),
                (pytest.mark.soak, Tier.POSIX, "pull", 1),
                (pytest.mark.soak, Tier.SFTP, "push", 1),
                (pytest.mark.soak, Tier.PYTHON, "push", 1),
                (pytest.mark.soak, Tier.PYTHON, "pull", 4),
                (pytest.mark.soak, Tier.POSIX, "push", 1),
                (pytest.mark.soak, Tier.SFTP, "pull", 1),
            ]
        ),
    ],
)
@pytest.mark.full
def test_the_cap_is_kept_within_a_twentieth(
    sshd: Sshd, tmp_path: Path, tier: Tier, way: str, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if connections > 1:
        every_line_is_long(monkeypatch)
    far, near = sshd.new_folder("far"), tmp_path / "near"
    near.mkdir()
    begin = far if way == "pull" else near
    # Small files on the lower tiers: see below.
    sizes = [9_000_000, 9_000_000, *[20_000] * 400] if tier is Tier.PYTHON else [26_000_000]
    for number, size in enumerate(sizes):
        (begin / f"{number}").write_bytes(bytes(size))
    items = [SendItem(f"{number}", f"l/{number}", size) for number, size in enumerate(sizes)]
    with (
        Wire(sshd.port, upwards=way == "push") as wire,
        closing(open_sftp(address(sshd, far, wire.port), tier, QUICK)) as store,
    ):
        ends = (store, LocalStore(str(near))) if way == "pull" else (LocalStore(str(near)), store)
        with counted(wire) as seen:
            outcomes = list(send_files(*ends, items, SendOptions(bandwidth=CAP, connections=connections)))
        assert all(isinstance(one, Sent) for one in outcomes)
        rates = in_windows(seen)
        assert rates and max(rates) <= 1.05 * CAP, f"{max(rates):.0f}"
        assert tier is not Tier.PYTHON or min(rates) >= 0.95 * CAP, f"{min(rates):.0f}"  # others wait for their tools
        assert connections == 1 or wire.most_at_once > 1


@pytest.mark.soak
@pytest.mark.parametrize("way", ["push", "pull"])
@pytest.mark.parametrize("tier", [Tier.POSIX, Tier.SFTP])
def test_bundles_of_small_files_keep_the_cap_on_the_lower_tiers(sshd: Sshd, tmp_path: Path, tier: Tier, way: str) -> None:
    """They are written, synced and digested between two readings, so they may be slower than the cap. A bundle is asked for
    at once, `tar` headers and the line's frames on top: in ten seconds one more than its share may cross (seen: 6 %)."""
    far, near = sshd.new_folder("far"), tmp_path / "near"
    near.mkdir()
    begin = far if way == "pull" else near
    items = []
    for number in range(1300):
        (begin / f"{number}").write_bytes(bytes(20_000))
        items.append(SendItem(f"{number}", f"l/{number}", 20_000))
    with (
        Wire(sshd.port, upwards=way == "push") as wire,
        closing(open_sftp(address(sshd, far, wire.port), tier, QUICK)) as store,
    ):
        ends = (store, LocalStore(str(near))) if way == "pull" else (LocalStore(str(near)), store)
        with counted(wire) as seen:
            outcomes = list(send_files(*ends, items, SendOptions(bandwidth=CAP)))
        assert all(isinstance(one, Sent) for one in outcomes) and len(outcomes) == len(items)
        rates = in_windows(seen)
        assert rates and max(rates) <= 1.1 * CAP, f"{max(rates):.0f}"


@pytest.mark.full
@pytest.mark.parametrize("way", ["pull", pytest.param("push", marks=pytest.mark.soak)])
def test_a_slow_cap_is_kept_with_files_that_are_seconds_of_it(sshd: Sshd, tmp_path: Path, way: str) -> None:
    """A file that is one piece on a free line is none here: it would cross at once, and nothing for seconds behind it."""
    far, near = sshd.new_folder("far"), tmp_path / "near"
    near.mkdir()
    begin, items = far if way == "pull" else near, []
    for number in range(6):
        (begin / f"{number}").write_bytes(bytes(1_000_000))
        items.append(SendItem(f"{number}", f"l/{number}", 1_000_000))
    with (
        Wire(sshd.port, upwards=way == "push") as wire,
        closing(open_sftp(address(sshd, far, wire.port), Tier.PYTHON, QUICK)) as store,
    ):
        ends = (store, LocalStore(str(near))) if way == "pull" else (LocalStore(str(near)), store)
        with counted(wire) as seen:
            outcomes = list(send_files(*ends, items, SendOptions(bandwidth=SLOW)))
        assert all(isinstance(one, Sent) for one in outcomes) and len(outcomes) == len(items)
        rates = in_windows(seen, SLOW)
        assert rates and max(rates) <= 1.05 * SLOW and min(rates) >= 0.95 * SLOW, f"{min(rates):.0f} {max(rates):.0f}"


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([13_000_000], marks=pytest.mark.full),
        pytest.param([200_000] * 65, marks=pytest.mark.soak),
        pytest.param([20_000] * 650, marks=pytest.mark.soak),
    ],
)
def test_what_is_read_back_for_the_proof_counts(sshd: Sshd, tmp_path: Path, sizes: list[int]) -> None:
    """Over SFTP a pushed file crosses twice, up and down again: both ways together keep the cap. So does a look at what
    is there already."""
    far, near = sshd.new_folder("far"), tmp_path / "near"
    near.mkdir()
    for number, size in enumerate(sizes):
        (near / f"{number}").write_bytes(bytes(size))
    items = [SendItem(f"{number}", f"l/{number}", size) for number, size in enumerate(sizes)]
    with Wire(sshd.port, both=True) as wire, closing(open_sftp(address(sshd, far, wire.port), Tier.SFTP, QUICK)) as store:
        with counted(wire) as seen:
            sent = list(send_files(LocalStore(str(near)), store, items, SendOptions(bandwidth=CAP)))
        assert all(isinstance(one, Sent) for one in sent) and len(sent) == len(items)
        rates = in_windows(seen)
        assert rates and max(rates) <= 1.1 * CAP, f"{max(rates):.0f}"  # requests and answers on top
        with counted(wire) as seen:
            again = list(send_files(LocalStore(str(near)), store, items, SendOptions(bandwidth=CAP)))
        assert [one.wire_bytes for one in again] == [0] * len(items)
        passed, seconds = seen[-1][1] - seen[0][1], seen[-1][0] - seen[0][0]
        assert sum(sizes) <= passed <= 1.1 * CAP * seconds, f"{passed / seconds:.0f}"
