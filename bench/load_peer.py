"""LOAD of a folder into a running IoTDB 2.x, until it answers with every point.

python -m bench.load_peer RPC_PORT FOLDER POINTS

Prints {"seconds": …}: from the LOAD statement to the count. The session is open before, as a client's that stays.
"""

from __future__ import annotations

import json
import sys
import time

from bench.sync_tool_data import GROUPS
from bench.sync_tool_rpc import Session


def run(port: int, folder: str, points: int) -> int:
    session = Session(port)
    began = time.monotonic()
    session.run(f"load '{folder}' with ('on-success'='none')")
    found = sum(session.count(f"{group}.**") for group in GROUPS)
    seconds = time.monotonic() - began
    if found != points:
        print(f"{found} of {points} points are there", file=sys.stderr)
        return 1
    print(json.dumps({"seconds": seconds}))
    return 0


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
