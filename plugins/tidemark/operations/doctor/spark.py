"""The check of Spark's master, where it is not this machine: reached, and really a master. No Spark session is started.

A master of a standalone cluster is asked for a stream that it does not have, in the frames of Spark's own protocol: it says
so, and logs nothing. Of Kubernetes only the port is tried, of YARN the folder of its configuration.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

from tidemark.errors import PermanentError, TidemarkError, UnreachableError, UsageError
from tidemark.operations.doctor.stores import Check, fail_check, pass_check
from tidemark.settings.model import SparkSettings

SECONDS = 10.0
PORT = 7077
_YARN = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
_STREAM = b"/files/tidemark-doctor"
_QUESTION = struct.pack(">qBi", 8 + 1 + 4 + len(_STREAM), 6, len(_STREAM)) + _STREAM  # frame's length, StreamRequest, name
_ANSWERS = (7, 8)  # StreamResponse, StreamFailure
_HINT = '[spark] master; with engine = "pool" no Spark is needed'


def check_spark(settings: SparkSettings, environ: Mapping[str, str]) -> Sequence[Check]:
    """Check the master. Nothing where Spark runs here, or is not used."""
    scheme, _, rest = settings.master.partition("://")
    if settings.engine == "pool" or scheme.startswith("local"):
        return ()
    try:
        if scheme == "yarn":
            return [pass_check("spark", f"yarn, as {_find_yarn(environ)} says")]
        if scheme == "k8s":
            url = urlsplit(rest if "://" in rest else f"https://{rest}")
            _dial(url.hostname or "", url.port or (80 if url.scheme == "http" else 443)).close()
            return [pass_check("spark", f"{settings.master}: its port answers")]
        return [pass_check("spark", _find_master(rest.split(",")))]
    except (TidemarkError, ValueError) as trouble:
        wrong = trouble if isinstance(trouble, TidemarkError) else UsageError(f"{settings.master}: {trouble}")
        return [fail_check("spark", wrong, _HINT)]


def _find_yarn(environ: Mapping[str, str]) -> str:
    for name in _YARN:
        if folder := environ.get(name):
            if not Path(folder).is_dir():
                raise UsageError(f"yarn: {name}={folder} is no folder")
            return f"{name}={folder}"
    raise UsageError(f"yarn: neither {' nor '.join(_YARN)} is set: Spark cannot find the cluster")


def _find_master(addresses: Sequence[str]) -> str:
    """Return what answers. Of several masters one is enough. Raises the error of the last one."""
    failed: list[TidemarkError] = []
    for address in addresses:
        url = urlsplit(f"//{address}")
        try:
            _ask_master(url.hostname or "", url.port or PORT)
        except TidemarkError as trouble:
            failed.append(trouble)
        else:
            others = f" ({'; '.join(error.message for error in failed)})" if failed else ""
            return f"a master answers at {address}{others}"
    raise type(failed[-1])("; ".join(error.message for error in failed))


def _ask_master(host: str, port: int) -> None:
    with closing(_dial(host, port)) as line:
        answer = b""
        try:
            line.sendall(_QUESTION)
            while len(answer) < 9 and (more := line.recv(4096)):  # bytes left unread would make the master log a reset
                answer += more
        except TimeoutError:
            raise UnreachableError(f"{host}:{port} accepts, and says nothing for {SECONDS:g} s") from None
        except OSError:
            answer = b""
    if len(answer) < 9 or answer[8] not in _ANSWERS:
        raise PermanentError(f"{host}:{port} is something else than a master of Spark: its web page has another port")


def _dial(host: str, port: int) -> socket.socket:
    """Connect, or raise UnreachableError that names the cause."""
    try:
        return socket.create_connection((host, port), SECONDS)
    except socket.gaierror:
        cause = "no such host"
    except ConnectionRefusedError:
        cause = "nothing listens there"
    except TimeoutError:
        cause = f"no answer within {SECONDS:g} s"
    except OSError as broken:
        cause = broken.strerror or str(broken)
    raise UnreachableError(f"{host}:{port}: {cause}")
