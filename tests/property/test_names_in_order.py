"""Whatever order files become whole or fail in: companions get their names before the file they belong to, each once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemark.transfer.items import SendItem
from tidemark.transfer.stream.publish import NamesInOrder, Whole

SUFFIXES = ("", ".resource", ".mods", ".mods2")


@st.composite
def sendings(draw: st.DrawFn) -> list[SendItem]:
    """Files with some of their companions, or companions whose file is not sent, in any order."""
    names = [
        f"landing/{number}.tsfile{suffix}"
        for number in range(draw(st.integers(1, 4)))
        for suffix in draw(st.sets(st.sampled_from(SUFFIXES), min_size=1))
    ]
    return [SendItem(name, name, 1) for name in draw(st.permutations(names))]


@given(sendings(), st.data())
def test_a_file_gets_its_name_behind_its_companions(items: list[SendItem], data: st.DataObject) -> None:
    order = NamesInOrder.order_files(items)
    companions = {
        number: [other for other, item in enumerate(items) if item.target_path.rpartition(".")[0] == base.target_path]
        for number, base in enumerate(items)
    }
    named: list[int] = []
    failed: set[int] = set()
    whole: set[int] = set()
    for number in data.draw(st.permutations(range(len(items)))):
        if data.draw(st.booleans()):
            whole.add(number)
            order.add_complete(number, Whole(items[number], b"", "", False, number=number))
        else:
            failed.add(number)
            order.release_next(number)
        named += [taken.number for taken in order.pop_ready()]
        for at, done in enumerate(named):
            assert all(other in failed or other in named[:at] for other in companions[done])
        due = {n for n in whole if all(other in failed | whole for other in companions[n])}
        assert set(named) == due and len(named) == len(due)
    assert set(named) == whole
