"""The block journal: what is written is read, what is torn ends it."""

from __future__ import annotations

import pytest

from tidemark.stores.agent.block_journal import (
    Block,
    BlockJournal,
    Identity,
    copy_at,
    copy_of,
    decode_journal,
    journal_at,
    journal_of,
    part_at,
    part_of,
)

IDENTITY = Identity(wanted=25, mtime=1_700_000_000, inode=12)
BLOCKS = (Block(0, 10, "a" * 64), Block(10, 10, "b" * 64), Block(20, 5, "c" * 64))
WHOLE = BlockJournal(IDENTITY, BLOCKS)


def test_it_reads_what_it_wrote() -> None:
    assert decode_journal(WHOLE.encode()) == WHOLE
    assert decode_journal(BlockJournal(IDENTITY).encode()) == BlockJournal(IDENTITY)


def test_cut_anywhere_it_is_a_prefix_of_itself() -> None:
    data = WHOLE.encode()
    for end in range(len(data)):
        got = decode_journal(data[:end])
        if got is None:
            assert b"\n" not in data[:end]
        else:
            assert got.identity == IDENTITY and got.blocks == BLOCKS[: len(got.blocks)]
            assert len(got.blocks) == data[:end].count(b"\n") - 1


@pytest.mark.parametrize(
    "line",
    [
        "20 10 " + "d" * 64,  # goes beyond the end
        "25 1 " + "d" * 64,  # behind the file's end
        "10 10 short",
        "ten 10 " + "d" * 64,
        "10 10",
        "10 " + "1" * 5000 + " " + "d" * 64,  # more digits than a number is read of
        "\x00\x00\x00",
    ],
)
def test_a_line_out_of_order_ends_it(line: str) -> None:
    data = BlockJournal(IDENTITY, BLOCKS[:1]).encode() + line.encode() + b"\n" + BLOCKS[1].encode_line()
    assert decode_journal(data) == BlockJournal(IDENTITY, BLOCKS[:1])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"tidemark-blocks 2 {}\n",
        b"tidemark-blocks 1 []\n",
        b"tidemark-blocks 1 {\n",
        b"\xff\n",
        b'tidemark-blocks 1 {"wanted": 1e999, "mtime": 1, "inode": 1}\n',
        b'tidemark-blocks 1 {"wanted": -1, "mtime": 1, "inode": 1}\n',
        b'tidemark-blocks 1 {"wanted": 9223372036854775808, "mtime": 1, "inode": 1}\n',
        b'tidemark-blocks 1 {"wanted": 1, "mtime": 9223372036854775808, "inode": 1}\n',
        b'tidemark-blocks 1 {"wanted": 1, "mtime": -9223372036854775809, "inode": 1}\n',
        b'tidemark-blocks 1 {"wanted": 1, "mtime": 1, "inode": -1}\n',
        b'tidemark-blocks 1 {"wanted": 1, "mtime": 1, "inode": 18446744073709551616}\n',
        b"tidemark-blocks 1 " + b"[" * 100_000 + b"\n",
    ],
)
def test_a_foreign_header_is_no_journal(data: bytes) -> None:
    assert decode_journal(data) is None


@pytest.mark.parametrize("name", ["x.tsfile", "ü" * 112, "n" * 225, "n" * 226, "n" * 255, "日" * 85, "\udcff" * 250])
def test_the_names_of_parts_fit_on_a_disk_however_long_the_file_s_own_is(name: str) -> None:
    path = f"landing/d/{name}"
    place = path.encode(errors="surrogateescape")
    for of, at in ((part_of, part_at), (copy_of, copy_at), (journal_of, journal_at)):
        part = of(path)
        assert part.encode(errors="surrogateescape") == at(place)
        assert part.startswith("landing/d/") and len(at(place).rpartition(b"/")[2]) <= 255
        assert part != of(f"landing/d/{name[:-1]}~")
    assert len({part_of(path), copy_of(path), journal_of(path)}) == 3
    assert part_of("landing/d/x.tsfile") == "landing/d/x.tsfile.part"
