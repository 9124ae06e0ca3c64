"""What of an earlier try is gone on from, and which block is to blame."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from tidemark.stores.agent.block_journal import Block
from tidemark.stores.protocol import Entry
from tidemark.transfer.items import SendItem
from tidemark.transfer.relay.job import Job, first_bad_block, good_claims

DATA = bytes(range(256)) * 4


def digests_of(data: bytes, asked: list[int] | None = None) -> Callable[[Sequence[Block]], Sequence[str | None]]:
    def digests(blocks: Sequence[Block]) -> Sequence[str | None]:
        if asked is not None:
            asked.append(len(blocks))
        ends = [data[block.offset : block.end] for block in blocks]
        return [
            hashlib.sha256(piece).hexdigest() if len(piece) == block.length else None
            for piece, block in zip(ends, blocks, strict=True)
        ]

    return digests


def carried(cuts: Sequence[int], resumed_at: int = 0) -> Job:
    """A job that took DATA in these pieces, with a claim behind each; from `resumed_at` on as a second try."""
    job = Job(0, SendItem("s", "t", len(DATA)), Entry("s", len(DATA), 1), small=False)
    for cut in sorted({*cuts, len(DATA)}):
        if job.at and cut > job.at >= resumed_at > 0 and job.running is not None:
            job.resume_from(job.claims)
        job.receive_data(DATA[job.at : cut])
        job.claim_block()
    return job


CUTS = st.lists(st.integers(1, len(DATA) - 1), max_size=20)


@given(CUTS, st.integers(0, len(DATA)), st.integers(-1, len(DATA) - 1))
def test_everything_before_the_rot_is_gone_on_from_and_nothing_behind(cuts: list[int], resumed: int, rot: int) -> None:
    job = carried(cuts, resumed)
    part = bytearray(DATA)
    if rot >= 0:
        part[rot] ^= 1

    good = good_claims(job.claims, digests_of(bytes(part)))

    at = max((claim.end for claim in good), default=0)
    ends = [0, *sorted({*cuts, len(DATA)})]
    assert at == (len(DATA) if rot < 0 else max(end for end in ends if end <= rot))
    bad = first_bad_block(job.claims, digests_of(bytes(part)))
    if rot < 0:
        assert bad is None
    else:
        assert bad is not None and bad.offset <= rot < bad.end and bad.offset == at


@given(CUTS, st.integers(0, len(DATA)))
def test_a_part_that_was_cut_is_gone_on_from_its_last_whole_claim(cuts: list[int], length: int) -> None:
    good = good_claims(carried(cuts).claims, digests_of(DATA[:length]))
    assert max((claim.end for claim in good), default=0) == max(end for end in [0, *cuts, len(DATA)] if end <= length)


def test_a_sound_part_is_asked_about_once() -> None:
    asked: list[int] = []
    good_claims(carried(range(10, 1000, 10)).claims, digests_of(DATA, asked))
    assert asked == [1]


def test_the_digest_is_of_all_bytes_and_unknown_behind_an_earlier_try() -> None:
    assert carried([100, 200]).received_digest() == hashlib.sha256(DATA).hexdigest()
    assert carried([100, 200], resumed_at=100).received_digest() == ""
