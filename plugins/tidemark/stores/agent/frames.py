"""The protocol between the near end and the agent: structs, kinds and flags of all frames. All integers are big-endian.

A frame is a HEAD (kind, length of the JSON part, length of the bytes), the JSON, the bytes. Near to far: ASK
[operation, arguments], then for writes DATA… and LAST, or STOP. Far to near: DATA…, then DONE with the result or
FAILED [errno, words, path]. During a long computation the agent sends BEATs before them.

A request of a pull is a sequence of RANGEs (number, offset, length, bytes wanted, mtime, inode, bytes of the path), each
followed by its path. The answer's frames hold RECORDs (number, offset, length, trouble, kind, edition or size, digest),
then the bytes of all of them. The kind names what a record's digest covers: its own bytes (BLOCK), the file up to their
end (PREFIX), nothing (BARE), or a span whose bytes do not follow (KEPT). A trouble is an errno or one of CHANGED, SHORT,
DIFFERS, LOST.

A push sends WORDS (PIECES or SEALS, bytes of the FILEs), a FILE and its path for each file in it, and RECORDs. Flags
of a FILE: LARGE, COPY, SHARED. Answers are RECORDs too. SEALED concerns a final name. SOURCE is trouble at the sender.
READ reports that a sending node has read a piece and is sending it.

Standard library, Python 3.6.
"""

from __future__ import annotations

import struct

READ = 6  # kind of a record from a sending node: read and being sent; its note is the edition

HEAD = struct.Struct(">BII")
ASK, DATA, LAST, STOP, DONE, FAILED, BEAT = range(7)

WORDS = struct.Struct(">BI")  # PIECES or SEALS, bytes of the FILEs with their paths
FILE = struct.Struct(">IQqQBH")  # number, bytes, mtime, inode, flags, bytes of the path
LARGE, COPY, SHARED = 1, 2, 4  # flags: comes in pieces; second copy, by another connection; may get a second copy
PIECES, SEALS = 1, 2
SOURCE = 5  # kind of an answer: trouble at the sender; the receiving end never sends it
ANSWERS = 1000  # RECORDs in a frame at most: the size of the near end's buffer

SEALED = 4  # kind of an answer: about a final name
DIFFERS = 252  # trouble: the bytes do not have the digest that came with them
LOST = 254  # trouble: a sync reported that the disk lost bytes of the file

RANGE = struct.Struct(">IQQQqQH")  # number, offset, length, bytes of the file wanted, mtime, inode, bytes of the path
RECORD = struct.Struct(">IQIBBQ32s")  # number, offset, length, trouble, kind, edition or (with SHORT) size, digest
BLOCK, PREFIX, BARE, KEPT = range(4)  # kinds of a record, see above
ALONE = 1 << 63  # added to a RANGE's length: send the digest without the bytes
CHANGED, SHORT = 250, 251  # troubles: the file has changed; it has fewer bytes than wanted
ANY = -1  # mtime of a RANGE: accept any, if it is the same before and after the read
NOTHING = bytes(32)
