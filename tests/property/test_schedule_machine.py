"""The scheduler against a model that knows where every byte is: waiting, asked of one connection or two, or here."""

from __future__ import annotations

import itertools
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tidemark.transfer.stream.schedule import SMALL_TURN, Schedule, Span

SMALL = 6  # bytes: what is larger goes in chunks
CONNECTIONS = st.integers(1, 4)
SIZES = st.lists(st.integers(0, 20), min_size=1, max_size=5)

Byte = tuple[int, int]  # file, place; place 0 of an empty file stands for it


def bytes_of(span: Span) -> list[Byte]:
    return [(span.number, at) for at in range(span.offset, span.end)] or [(span.number, 0)]


class ScheduleMachine(RuleBasedStateMachine):
    """Any order of asks, arrivals, pieces, losses, troubles and files given up."""

    def __init__(self) -> None:
        super().__init__()
        self.schedule = Schedule()
        self.wanted: dict[int, set[Byte]] = {}  # of files that are not here and not given up
        self.large: set[int] = set()
        self.owed: dict[int, list[Span]] = {}  # of living connections, in the order asked
        self.came: set[Byte] = set()

    @initialize(sizes=SIZES)
    def begin(self, sizes: list[int]) -> None:
        self.sizes = sizes
        for number, size in enumerate(sizes):
            if size <= SMALL:
                self.schedule.add_small(number, size)
            else:
                self.large.add(number)
                self.schedule.add_large(number, [(0, size)])
            self.wanted[number] = set(bytes_of(Span(number, 0, size)))

    @rule(connection=CONNECTIONS, chunk=st.integers(3, 20), slow=st.frozensets(CONNECTIONS))
    def ask(self, connection: int, chunk: int, slow: frozenset[int]) -> None:
        spans = self.schedule.next_spans(connection, chunk, slow)
        self.owed.setdefault(connection, []).extend(spans)
        if not spans:  # nothing waits, and of who is slow another was asked everything, too
            asked = Counter(self.asked())
            for byte in itertools.chain.from_iterable(map(bytes_of, self.slowly(connection, slow))):
                assert asked[byte] == 2 or byte in self.came or byte[0] not in self.wanted

    def slowly(self, connection: int, slow: frozenset[int]) -> list[Span]:
        return [span for other in slow - {connection} for span in self.owed.get(other, [])]

    def asked(self) -> list[Byte]:
        return [byte for spans in self.owed.values() for span in spans for byte in bytes_of(span)]

    @rule(connection=CONNECTIONS, most=st.integers(1, 30))
    def arrive(self, connection: int, most: int) -> None:
        """The next span of a connection, or its first bytes."""
        if not self.owed.get(connection):
            return
        number, offset, length = self.owed[connection].pop(0)
        got = min(length, most) if number in self.large else length
        if got < length:
            self.owed[connection].insert(0, Span(number, offset + got, length - got))
        fresh = set(bytes_of(Span(number, offset, got))) - self.came
        awaited = number in self.wanted and bool(fresh)
        assert self.schedule.record_arrival(connection, number, offset, got) == awaited
        if number not in self.wanted:
            return
        self.came |= fresh
        if number in self.large:
            assert self.schedule.has_arrived_whole(number) == (self.wanted[number] <= self.came)
        if self.wanted[number] <= self.came:
            self.schedule.complete_file(number)
            del self.wanted[number]

    @rule(number=st.integers(0, 4), ends=st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted))
    def find_bad(self, number: int, ends: list[int]) -> None:
        """Bytes of a large file turn out to differ where they were written; it may have been complete."""
        bad = set(bytes_of(Span(number, ends[0], ends[1] - ends[0])))
        if number not in self.large or ends[0] == ends[1] or not bad <= self.came.difference(self.asked()):
            return
        self.schedule.repeat_span(number, *ends)
        self.came -= bad
        self.wanted.setdefault(number, set(bytes_of(Span(number, 0, self.sizes[number]))))

    @rule(connection=CONNECTIONS)
    def trouble(self, connection: int) -> None:
        """A span is answered by what is wrong with the file, which is given up if it was waited for."""
        if not self.owed.get(connection):
            return
        span = self.owed[connection].pop(0)
        self.schedule.record_refusal(connection, span.number)
        if span.number in self.wanted:
            self.give_up(span.number)

    @rule(number=st.integers(0, 4))
    def give_up(self, number: int) -> None:
        self.schedule.drop_file(number)
        self.wanted.pop(number, None)
        self.came = {byte for byte in self.came if byte[0] != number}
        for connection, spans in self.owed.items():
            self.owed[connection] = [span for span in spans if span.number != number]

    @rule(connection=CONNECTIONS)
    def lose(self, connection: int) -> None:
        self.schedule.drop_connection(connection)
        self.owed.pop(connection, None)

    @invariant()
    def what_is_owed_is_known(self) -> None:
        for connection in range(1, 5):
            owed = sum(span.length or 1 for span in self.owed.get(connection, []))
            assert self.schedule.outstanding_bytes(connection) == owed

    @invariant()
    def no_byte_is_asked_of_more_than_two(self) -> None:
        assert max(Counter(self.asked()).values(), default=0) <= 2

    @invariant()
    def what_waits_is_neither_on_its_way_nor_here(self) -> None:
        waiting = set().union(*self.wanted.values()).difference(self.asked(), self.came)
        empty = sum(1 for number, _ in waiting if self.sizes[number] == 0)
        assert self.schedule.waiting_bytes == len(waiting) - empty
        assert self.schedule.is_finished == (not self.wanted)

    def teardown(self) -> None:
        """Whatever happened: connections that live long enough bring the rest, and nothing is owed then."""
        for connection in itertools.islice(itertools.cycle(range(1, 5)), 2000):
            if self.schedule.is_finished:
                break
            self.ask(connection, 5, frozenset())
            while self.owed.get(connection):
                self.arrive(connection, 30)
        assert self.schedule.is_finished
        for connection in range(1, 5):
            while self.owed.get(connection):
                self.arrive(connection, 30)
            assert self.schedule.outstanding_bytes(connection) == 0
            assert self.schedule.next_spans(connection, 5) == ()


TestScheduleMachine = ScheduleMachine.TestCase
TestScheduleMachine.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)


@given(SIZES, st.lists(st.integers(0, 60), max_size=6), st.integers(1, 4))
def test_a_cut_costs_what_was_on_its_way_and_no_more(sizes: list[int], cuts: list[int], block: int) -> None:
    """Of one connection that is asked for `block` bytes ahead, or one small file: that much is asked again after a cut."""
    schedule = Schedule()
    for number, size in enumerate(sizes):
        if size <= SMALL:
            schedule.add_small(number, size)
        else:
            schedule.add_large(number, [(0, size)])
    asked, again, steps = 0, 0, 0
    owed: list[Span] = []
    while not schedule.is_finished:
        while schedule.outstanding_bytes(1) < block and (spans := schedule.next_spans(1, block)):
            owed += spans
            asked += sum(span.length or 1 for span in spans)
        steps += 1
        if steps in cuts:
            again += schedule.outstanding_bytes(1)
            assert schedule.outstanding_bytes(1) < block + max(block, SMALL)
            schedule.drop_connection(1)
            owed.clear()
            continue
        number, offset, length = owed.pop(0)
        schedule.record_arrival(1, number, offset, length)
        if schedule.has_arrived_whole(number):
            schedule.complete_file(number)
    assert asked == sum(size or 1 for size in sizes) + again


@given(st.lists(st.integers(200, 5000), min_size=1, max_size=6), st.integers(1, 40), st.integers(1, 4))
def test_small_files_have_their_turn_and_large_ones_the_rest(large: list[int], small: int, connections: int) -> None:
    """While both kinds wait, one ask of SMALL_TURN is for small files; a connection begins with the largest that is free."""
    schedule = Schedule()
    for number, size in enumerate(large):
        schedule.add_large(number, [(0, size)])
    for number in range(len(large), len(large) + small):
        schedule.add_small(number, 10)
    left = dict(enumerate(large))
    at: dict[int, int] = {}
    kinds: list[bool] = []
    for connection in itertools.cycle(range(connections)):
        before = dict(left)
        spans = schedule.next_spans(connection, 20)
        small -= sum(span.number >= len(large) for span in spans)
        for span in spans:
            if span.number in left:
                left[span.number] -= span.length
                taken = {number for other, number in at.items() if other != connection}
                if not before.get(at.get(connection, -1)):
                    free = {n: size for n, size in before.items() if size and n not in taken}
                    assert not free or before[span.number] == max(free.values())
                at[connection] = span.number
        if not small or not any(left.values()):
            break
        kinds.append(spans[0].number >= len(large))
    for start in range(len(kinds) - SMALL_TURN + 1):
        assert sum(kinds[start : start + SMALL_TURN]) == 1


def test_what_another_brought_or_will_bring_is_not_asked_a_third_time() -> None:
    schedule = Schedule()
    schedule.add_large(0, [(0, 60)])
    (first,) = schedule.next_spans(1, 30)
    (second,) = schedule.next_spans(1, 30)
    assert schedule.next_spans(2, 30) == (second,)
    assert schedule.next_spans(3, 30) == ()  # two are on it
    assert schedule.next_spans(3, 30, frozenset({1})) == (first,)  # the first may be under way, but it is slow
    schedule.record_arrival(2, 0, 30, 20)
    schedule.drop_connection(1)
    assert schedule.waiting_bytes == 0
    schedule.drop_connection(2)
    assert schedule.next_spans(2, 30) == (Span(0, 50, 10),)
    schedule.record_arrival(3, 0, 0, 30)
    schedule.record_arrival(2, 0, 50, 10)
    assert schedule.has_arrived_whole(0)
