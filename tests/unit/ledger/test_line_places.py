"""Places on a receiver's line, in a real ledger: shares by who is there, and back from who is dead."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import sqlalchemy as sa

from tidemark.errors import RetryableError
from tidemark.ledger.database import Ledger
from tidemark.ledger.leases import Identity
from tidemark.ledger.sender import bandwidth as line_places
from tidemark.ledger.sender.bandwidth import TTL_SECONDS, LinePlace, SharedLine, place_on

CAP = 10e6
HERE = Identity("here", "boot-1", 100, "1000")
NEIGHBOUR = Identity("here", "boot-1", 200, "2000")
ELSEWHERE = Identity("elsewhere", "boot-9", 300, "3000")


@dataclass
class World:
    """One clock for all; every place takes all it may, as long as it is `busy`."""

    ledger: Ledger
    now: float = 1000.0
    dead: set[Identity] = field(default_factory=set)

    def line(self, receiver: str = "centre") -> SharedLine:
        return SharedLine(self.ledger, receiver, CAP, lambda who: who not in self.dead, lambda _c: self.now)

    def join(self, me: Identity = HERE, most: float = 0.0, receiver: str = "centre") -> LinePlace:
        place = LinePlace(self.line(receiver), f"run of {me.pid}", me, most)
        place.update_share()
        return place

    def pass_time(self, *busy: LinePlace, idle: tuple[LinePlace, ...] = (), seconds: int = 2) -> None:
        for _ in range(seconds):
            self.now += 1.0
            for place in (*busy, *idle):
                if place in busy:
                    place.count_used(int(place.rate))
                place.update_share()
                assert sum(one.rate for one in (*busy, *idle)) <= CAP * 1.001

    def rows(self) -> list[tuple[str, float]]:
        with self.ledger.read() as connection:
            return [tuple(row) for row in connection.execute(sa.text("SELECT holder, rate FROM line_place ORDER BY 1"))]


@pytest.fixture
def world(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(ledger)
    monkeypatch.setattr(line_places, "boot_clock", lambda: made.now)
    return made


def listening(ledger: Ledger) -> list[str]:
    """First words of what is asked of the database from now on."""
    said: list[str] = []
    sa.event.listen(ledger.engine, "before_cursor_execute", lambda _c, _cur, query, *_: said.append(query.split()[0]))
    return said


def test_who_is_alone_has_all_of_it(world: World) -> None:
    assert world.join().rate == CAP
    assert world.join(receiver="another").rate == CAP


def test_a_second_one_waits_until_the_first_has_given_up_its_half(world: World) -> None:
    first = world.join()
    second = world.join(NEIGHBOUR)
    assert (first.rate, second.rate) == (CAP, 0.0)
    world.pass_time(first, second, seconds=1)
    assert (first.rate, second.rate) == (CAP / 2, CAP / 2)
    first.leave_line()
    world.pass_time(second, seconds=1)
    assert second.rate == CAP


def test_five_share_and_one_with_a_lower_cap_leaves_the_rest(world: World) -> None:
    places = [world.join(replace(HERE, pid=number), most=1e6 if number == 0 else 0.0) for number in range(5)]
    world.pass_time(*places, seconds=4)
    assert [round(place.rate) for place in places] == [1_000_000, *[2_250_000] * 4]


def test_who_sends_nothing_leaves_its_share_to_others_and_has_it_back_soon(world: World) -> None:
    first, second = world.join(), world.join(NEIGHBOUR)
    world.pass_time(first, idle=(second,), seconds=6)
    assert first.rate == pytest.approx(0.98 * CAP)
    world.pass_time(first, second, seconds=3)
    assert first.rate == second.rate == CAP / 2


@pytest.mark.full_after(1)
@pytest.mark.parametrize("died", [NEIGHBOUR, ELSEWHERE])
def test_the_share_of_a_dead_one_comes_back(world: World, died: Identity) -> None:
    first, second = world.join(), world.join(died)
    world.pass_time(first, second)
    world.dead.add(died)
    world.pass_time(first, seconds=1)
    known = died.host == HERE.host  # nobody can know of a process of another machine: its row has to expire
    assert first.rate == (CAP if known else CAP / 2)
    world.pass_time(first, seconds=int(TTL_SECONDS))
    assert first.rate == CAP and len(world.rows()) == 1


def test_who_could_not_renew_its_place_takes_nothing_until_it_can(world: World) -> None:
    """As the others do: they have its share by then."""
    asleep, other = world.join(ELSEWHERE), world.join()
    world.pass_time(other, seconds=int(TTL_SECONDS))
    assert other.rate == CAP and asleep.rate == 0.0
    asleep.update_share()
    assert asleep.rate == 0.0
    world.pass_time(asleep, other)
    assert asleep.rate == other.rate == CAP / 2


def test_a_machine_that_was_started_again_owes_nothing(world: World) -> None:
    """Its boot clock begins anew, and a container's processes of before cannot be judged."""
    world.now = 1e6
    world.join(ELSEWHERE)
    world.now = 10.0
    assert world.join().rate == CAP


@pytest.mark.full_after(1)
def test_a_steady_place_writes_seldom(world: World) -> None:
    place, said = world.join(), listening(world.ledger)
    world.pass_time(place, seconds=60)
    assert "SELECT" in said and said.count("INSERT") <= 60 / (TTL_SECONDS / 3) + 1 and "DELETE" not in said


def test_a_ledger_that_does_not_answer_is_told_once_a_place_expired(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    place = world.join()

    class Over:
        def wait(self, _seconds: float) -> bool:
            world.now += 1.0
            place.assert_share_known()
            return False

    def away() -> None:
        raise RetryableError("the ledger does not answer")

    monkeypatch.setattr(place, "update_share", away)
    with pytest.raises(RetryableError, match="centre is not known: the ledger does not answer"):
        place.keep_updating(Over())  # type: ignore[arg-type]
    assert world.now == 1000.0 + TTL_SECONDS and place.rate == 0.0


def test_without_a_cap_the_ledger_is_not_asked(world: World) -> None:
    said = listening(world.ledger)
    with place_on(SharedLine(world.ledger, "centre", 0.0), "run", HERE) as place:
        assert place is None
    assert said == []


def test_a_place_is_there_while_it_is_used(world: World) -> None:
    with place_on(world.line(), "run-1", HERE) as place:
        assert place is not None and place.rate == CAP
        assert world.rows() == [("run-1", CAP)]
    assert world.rows() == []
