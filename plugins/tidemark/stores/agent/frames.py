"""The protocol between the near end and the agent: structs, kinds and flags of all frames. All integers are big-endian.

A frame is a HEAD (kind, length of the JSON part, length of the bytes), the JSON, the bytes. Near to far: ASK
[operation, arguments], then for writes DATA… and LAST, or STOP. Far to near: DATA…, then DONE with the result or
FAILED [errno, words, path]. Before them come BEATs, where the agent computes for long and gets on.

A pull asks a row of RANGEs (number, offset, length, bytes wanted, mtime, inode, bytes of the path), each followed by
its path. The answer's frames hold RECORDs (number, offset, length, trouble, kind, edition or size, digest), then the
bytes of all of them. The kind says what a record's digest is of: its own bytes (BLOCK), the file up to their end
(PREFIX), nothing (BARE), or a span whose bytes do not follow (KEPT). Troubles beside an errno: CHANGED, SHORT,
DIFFERS, LOST.

A push sends WORDS (PIECES or SEALS, bytes of the FILEs), a FILE and its path for each file in it, and RECORDs. Flags
of a FILE: LARGE, COPY, SHARED. Answers are RECORDs too; SEALED is about a name, SOURCE is trouble at the near end,
READ says that a piece was read by a sending node and is on its way.

Standard library, Python 3.6.
"""

from __future__ import annotations

import struct

READ = 6  # kind of a record beside `frames.SOURCE`: read here and on its way; its note is the edition

HEAD = struct.Struct(">BII")
ASK, DATA, LAST, STOP, DONE, FAILED, BEAT = range(7)

WORDS = struct.Struct(">BI")  # PIECES or SEALS, bytes of the FILEs with their paths
FILE = struct.Struct(">IQqQBH")  # number, bytes, mtime, inode, flags, bytes of the path
LARGE, COPY, SHARED = 1, 2, 4  # flags: comes in pieces; another connection was asked for it before; one may be asked
PIECES, SEALS = 1, 2
SOURCE = 5  # kind of an answer beside SEALED: trouble at the near end, which this module never says
ANSWERS = 1000  # RECORDs a frame: the near end has room for no more

SEALED = 4  # kind of an answer: about a name
DIFFERS = 252  # a trouble beside those of `reader`: not the bytes whose digest came with them
LOST = 254  # and: the disk lost bytes of it, as a sync said

RANGE = struct.Struct(">IQQQqQH")  # number, offset, length, bytes of the file wanted, mtime, inode, bytes of the path
RECORD = struct.Struct(">IQIBBQ32s")  # number, offset, length, trouble, kind, edition or (with SHORT) size, digest
BLOCK, PREFIX, BARE, KEPT = range(4)  # what a record's digest is of: its bytes, the file up to their end, nothing;
# KEPT: the bytes of its span, which do not follow
ALONE = 1 << 63  # with a RANGE's length: its digest alone
CHANGED, SHORT = 250, 251  # troubles beside the errno: not the file it was; fewer bytes than wanted
ANY = -1  # as mtime of a RANGE: whatever it is, as long as it is the same before and after the read
NOTHING = bytes(32)
