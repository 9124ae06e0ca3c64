"""The transfer engine as a process of its own: everything below one store's folder to another store.

python -m bench.engine SOURCE_URL TARGET_URL [--host-key SHA256:…] [--key FILE] [--target-only] [--connections N]
"""

from __future__ import annotations

import argparse
import sys

from tidemark.stores.opening import StoreAddress, open_store
from tidemark.stores.protocol import Tier
from tidemark.stores.transfer import Failed, SendItem, SendOptions, send


def run() -> int:
    parser = argparse.ArgumentParser(prog="bench.engine", description=__doc__)
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--host-key", default="")
    parser.add_argument("--key", default="")
    parser.add_argument("--target-host-key", default="", help="where the target's server is another one than the source's")
    parser.add_argument("--target-key", default="")
    parser.add_argument("--tier", default="")
    parser.add_argument("--target-only", action="store_true", help="SHA-256 at the target alone")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--stop-after", type=int, default=0, help="bytes; what is under way then is left for another run")
    asked = parser.parse_args()
    tier = Tier(asked.tier) if asked.tier else None
    source, target = (
        open_store(StoreAddress(url, host_key, key), tier if url.startswith("sftp:") else None)
        for url, host_key, key in (
            (asked.source, asked.host_key, asked.key),
            (asked.target, asked.target_host_key or asked.host_key, asked.target_key or asked.key),
        )
    )
    entries = source.list_files([""]).entries
    items = [SendItem(entry.path, entry.path, entry.size) for entry in entries]
    crossed: list[int] = []
    options = SendOptions(
        connections=asked.connections,
        digest_at_source=not asked.target_only,
        should_stop=(lambda: sum(crossed) >= asked.stop_after) if asked.stop_after else None,
    )
    failed = [one for one in send(source, target, items, options, crossed.append) if isinstance(one, Failed)]
    source.close()
    target.close()
    for one in failed[:10]:
        print(one.error.message, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(run())
