"""`python -m demo [--dir D] [--no-ui] [--json]`: run the story and print its last screen."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from demo.command import StoryBroke
from demo.story import Outcome, Story

LEFT_OUT = {
    "SSH: the sites were plain folders. apt-get install openssh-server": "ssh",
    "changes: there is no MariaDB. apt-get install mariadb-server": "mariadb",
}
"""What the last screen says where a part is missing, and the figure of the outcome that tells."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="tidemark demo", description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("var/demo"))
    parser.add_argument("--no-ui", action="store_true", help="leave Airflow out")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    try:
        outcome = Story(asked.dir.resolve(), _tell, not asked.no_ui).run()
    except (StoryBroke, OSError) as broke:
        print(f"\nThe demo broke: {broke}", file=sys.stderr)
        if asked.json:
            print(json.dumps({"ok": False, "kind": 1, "error": str(broke), "hint": f"look into {asked.dir}"}))
        return 1
    print(last_screen(outcome), file=sys.stderr)
    if asked.json:
        print(json.dumps(outcome.as_json()))
    return 0 if outcome.ok else 20


def _tell(title: str, came: str, seconds: float) -> None:
    print(f"  {seconds:5.1f} s  {title}\n           {came}", file=sys.stderr, flush=True)


def last_screen(outcome: Outcome) -> str:
    lines = ["", "  site       server       points read   missing   twice   coverage"]
    for name, site in outcome.sites.items():
        lines.append(
            f"  {name:<10} {site['version']:<10} {site['rows']:>13,} {site['missing']:>9} {site['duplicates']:>7}"
            f" {site.get('coverage', 0):>9.0%}"
        )
    verdict = "Every sealed file is in the centre, once, unchanged." if outcome.ok else "SOMETHING IS WRONG: see above."
    lines += [
        "",
        f"  {verdict}  {outcome.files} files, {outcome.bytes:,} bytes, {outcome.seconds} s",
        f"  heat map   {outcome.coverage_html}",
        f"  go on      ./tidemark --config {outcome.settings} status   (or up: Airflow's pages again)",
        *(f"  left out   {what}, then the demo again" for what, there in LEFT_OUT.items() if not getattr(outcome, there)),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
