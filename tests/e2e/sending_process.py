"""A transfer in a process of its own, told in JSON: what its disk does to it, this process does not see."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from tests.e2e.engine_world import World
from tidemark.transfer.engine import SendItem

PLUGINS = Path(__file__).parents[2] / "plugins"
PROGRAM = """
import json, os, sys
from tidemark.stores.open import open_store; from tidemark.stores.protocol import StoreAddress
from tidemark.transfer.engine import Failed, SendItem, SendOptions, send_files
source, target, items, options = json.loads(sys.argv[1])
ends = [open_store(StoreAddress(*end)) for end in (source, target)]
for one in send_files(*ends, [SendItem(*item) for item in items], SendOptions(**options)):
    error = [type(one.error).__name__, one.error.message, one.error.hint] if isinstance(one, Failed) else None
    print(json.dumps([one.item.source_path, error]), flush=True)
for end in ends:
    end.close()
"""


def moved_apart(
    world: World, items: Sequence[SendItem], environment: Mapping[str, str], **options: Any
) -> dict[str, list[str] | None]:
    """By source path: None for what was sent, else [error class, message, hint]."""
    server = world.server
    far = [server.url(world.site if world.way == "pull" else world.centre), server.host_key, str(server.key)]
    near = [f"file://{world.centre if world.way == 'pull' else world.site}"]
    asked = [*((far, near) if world.way == "pull" else (near, far)), [astuple(item) for item in items], options]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(asked)],
        env={**os.environ, "PYTHONPATH": str(PLUGINS), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines())
