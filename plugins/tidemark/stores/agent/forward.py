"""Send files from this node to another node by this node's own ssh client.

`Forward` is the connection, kept for several sendings. In each, the near end asks for ranges of files and for final names.
The bytes go to the other node in the frames of a push (`writer`). Its answers are relayed to the near end. Before a piece
leaves, a READ record reports to the near end what was read, and the near end checks that it is the file it knows. Runs at
the far end (see `server`): the standard library alone, Python 3.6.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterable
from typing import Any

from tidemark.stores.agent import durable
from tidemark.stores.agent.disk import Disk
from tidemark.stores.agent.frames import (
    ANSWERS,
    ASK,
    DATA,
    DONE,
    FAILED,
    FILE,
    HEAD,
    LAST,
    NOTHING,
    PIECES,
    PREFIX,
    READ,
    RECORD,
    SEALS,
    SOURCE,
    WORDS,
)
from tidemark.stores.agent.reader import RangeReader, widen_pipe, write_all

READY = b"tidemark python3 ready"
GREETING_LINES = 200  # that a login script may print before READY
ENDING_SECONDS = 60.0  # for the other end's last answer, after the last request


class NoRoute(Exception):
    """This node cannot send to the other one. The text is the reason."""


class ConnectionLost(Exception):
    """The connection to the other node broke. No OSError: reading a file raises that."""


class Forward:
    """A connection to another node. `command`: the ssh client and its arguments, with "{known}" for the path of a
    known_hosts file. `known`: the other node's line in that file. `program`: the input for the other node's python3. Raises
    NoRoute after `seconds` at most."""

    def __init__(self, command: list[str], known: str, program: bytes, seconds: float) -> None:
        if not os.environ.get("SSH_AUTH_SOCK"):
            raise NoRoute("its sshd forwards no agent (AllowAgentForwarding)")
        self.child: Any = None
        self.words = tempfile.TemporaryFile()  # noqa: SIM115 the stderr of ssh; removed with this process
        handle, path = tempfile.mkstemp(prefix="tidemark-known-")
        # CRASH WINDOW: a public key in the folder for temporary files, which the system clears.
        try:
            os.write(handle, known.encode())
            self._start_client([word.replace("{known}", path) for word in command], program, seconds)
        finally:
            os.close(handle)
            durable.remove_quietly(os.fsencode(path))

    def _start_client(self, command: list[str], program: bytes, seconds: float) -> None:
        pipe = subprocess.PIPE
        try:
            self.child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self.words, bufsize=-1)
        except OSError as error:
            raise NoRoute(f"it has no ssh client ({error.strerror})") from error
        over = threading.Timer(seconds, self.child.kill)
        over.start()
        try:
            self._write_pieces([program])
            greeting = self._read_greeting()
        except ConnectionLost:
            greeting = b""
        finally:
            over.cancel()
        if greeting != READY:
            self.close()
            raise NoRoute(self.last_words() or "the other end starts no python3, or did not answer in time")
        widen_pipe(self.child.stdin.fileno())

    def _read_greeting(self) -> bytes:
        for _ in range(GREETING_LINES):
            line = self.child.stdout.readline()
            if line.endswith((READY + b"\n", b"tidemark posix\n")) or not line:
                return bytes(line[-len(READY) - 1 :].strip())
        return b""

    def close(self) -> None:
        """Kill the ssh client. The other end still finishes what it has received."""
        self.child.kill()
        self.child.wait()

    def last_words(self) -> str:
        self.words.seek(0)
        said = self.words.read().decode("utf-8", "backslashreplace").replace("\r", "").strip()
        return str(said.rpartition("\n")[2])

    def run(self, sending: Sending, asking: Iterable[bytes]) -> None:
        """Do one sending. `asking`: WORDS as for `writer`, but in PIECES the FILEs are followed by RANGEs to read."""
        asked: Any = queue.Queue()
        ranges = RangeReader(
            sending.disk, lambda records, data: self._send_records(sending, records, data), sending.frame, sending.digest
        )
        threads = [
            threading.Thread(target=self._read_and_send, args=(sending, ranges, asked)),
            threading.Thread(target=self._relay_answers, args=(sending,)),
        ]
        for thread in threads:
            thread.start()
        try:
            for words in asking:
                asked.put(words)
        except BaseException:  # the near end is disconnected: nobody needs the rest
            self.child.kill()
            raise
        finally:
            asked.put(None)
            over = threading.Timer(ENDING_SECONDS, self.child.kill)  # from here on a near end that gives up goes unnoticed
            over.start()
            for thread in threads:
                thread.join()
            over.cancel()

    # the thread that reads and sends

    def _read_and_send(self, sending: Sending, ranges: RangeReader, asked: Any) -> None:
        try:
            self._write_frame(ASK, json.dumps(["receive", [sending.frame, sending.reserve]]).encode())
            for words in iter(asked.get, None):
                kind, size = WORDS.unpack_from(words)
                sending.note_files(words[WORDS.size : WORDS.size + size])
                if kind == SEALS:
                    self._write_frame(DATA, words)
                else:
                    ranges.answer(words[WORDS.size + size :])
            self._write_frame(LAST, b"")
        except ConnectionLost:
            self.child.kill()  # `_relay_answers` reports it
        except BaseException:
            sys.stderr.write(traceback.format_exc())
            sys.stderr.flush()
            self.child.kill()

    def _send_records(self, sending: Sending, records: bytes, data: Any) -> None:
        notes, kept, numbers, size = [], [], {}, 0
        for number, offset, length, trouble, kind, note, digest in RECORD.iter_unpack(records):
            if trouble:
                notes.append(RECORD.pack(number, offset, 0, trouble, SOURCE, note, NOTHING))
                continue
            notes.append(RECORD.pack(number, offset, length, 0, READ, note, digest if kind == PREFIX else NOTHING))
            kept.append(RECORD.pack(number, offset, length, 0, kind, 0, digest))
            numbers[number] = sending.files[number]
            size += length
        sending.report_records(notes)
        if kept:
            files = b"".join(numbers.values())
            self._write_frame(DATA, b"".join([WORDS.pack(PIECES, len(files)), files, *kept]), data[:size])

    # the thread that relays the other end's answers

    def _relay_answers(self, sending: Sending) -> None:
        kind, text = self._read_answer()
        while kind == DATA:
            sending.report_records([text])
            kind, text = self._read_answer()
        if kind != DONE:
            self.close()
            said = json.loads(text.decode())[1] if text else self.last_words()
            sending.report_failure(said or "the line to the other node ended")

    def _read_answer(self) -> tuple[int, bytes]:
        """Return the next answer's kind and words; (FAILED, b"") where no more comes."""
        try:
            head = self.child.stdout.read(HEAD.size)
            if len(head) < HEAD.size:
                return FAILED, b""
            kind, words, size = HEAD.unpack(head)
            return kind, self.child.stdout.read(words + size)[:words]
        except OSError:
            return FAILED, b""

    def _write_pieces(self, pieces: list[Any]) -> None:
        try:
            write_all(self.child.stdin.fileno(), pieces)
        except OSError as error:
            raise ConnectionLost from error

    def _write_frame(self, kind: int, words: bytes, data: Any = b"") -> None:
        self._write_pieces([HEAD.pack(kind, len(words), len(data)), words, data])


class Sending:
    """The state of one sending. `say(kind, words)` sends a frame to the near end. It is called from any thread, one call at
    a time."""

    def __init__(self, disk: Disk, say: Callable[[int, bytes], None], frame: int, digest: bool, reserve: int) -> None:
        self.disk = disk
        self.frame = frame
        self.digest = digest
        self.reserve = reserve
        self.files: dict[int, bytes] = {}  # a FILE and its path, by number
        self._say = say
        self._door = threading.Lock()

    def note_files(self, files: bytes) -> None:
        at = 0
        while at < len(files):
            number, name = FILE.unpack_from(files, at)[0], FILE.unpack_from(files, at)[5]
            self.files[number] = files[at : at + FILE.size + name]
            at += FILE.size + name

    def report_records(self, records: list[bytes]) -> None:
        """Send RECORDs to the near end. A failure is ignored: the near end has disconnected, and that ends the sending."""
        joined = b"".join(records)
        step = ANSWERS * RECORD.size
        for start in range(0, max(1, len(joined)), step):  # an empty frame is a sign of life
            self._send_frame(DATA, joined[start : start + step])

    def report_failure(self, words: str) -> None:
        self._send_frame(FAILED, json.dumps([0, words, None]).encode())

    def _send_frame(self, kind: int, words: bytes) -> None:
        with self._door:
            try:
                self._say(kind, words)
            except OSError:
                return
