"""Java programs from Maven Central: the jars of some artifacts and of all they need, fetched once into a cache.

`TIDEMARK_TEST_IOTDB_CACHE` names the cache (default `~/.cache/tidemark-iotdb`). Maven checks each jar against its digest
there. Where it cannot run, a folder `CACHE/NAME/lib` with the jars and an empty file `CACHE/NAME/ok` do as well.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.services.processes import PartMissing

_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"


@dataclass(frozen=True)
class Jars:
    """`artifacts` are group:name:version; `excluded` (group:name) are left out wherever something asks for them."""

    name: str
    artifacts: Sequence[str]
    excluded: Sequence[str]


def fetch(jars: Jars) -> Path:
    """The folder of the jars, by Maven on the first call. Raises PartMissing where that cannot be."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise PartMissing(f"{jars.name} needs {program} (apt-get install openjdk-17-jre-headless maven)")
    cache = Path(os.environ.get("TIDEMARK_TEST_IOTDB_CACHE", "~/.cache/tidemark-iotdb")).expanduser()
    home = cache / jars.name
    if (home / "ok").exists():
        return home / "lib"
    cache.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{jars.name}.", dir=cache))
    (work / "pom.xml").write_text(_pom(jars))
    command = ["mvn", "-q", "-B", _PLUGIN, "-DoutputDirectory=lib", "-DincludeScope=runtime"]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    if done.returncode:
        shutil.rmtree(work)
        raise PartMissing(f"Maven cannot fetch {jars.name}: {done.stdout[-400:]}")
    (work / "ok").touch()
    try:
        work.rename(home)
    except OSError:  # another run was quicker
        shutil.rmtree(work)
    return home / "lib"


def _pom(jars: Jars) -> str:
    excluded = "".join(f"<exclusion>{_named(one, 'groupId', 'artifactId')}</exclusion>" for one in jars.excluded)
    wanted = "".join(
        f"<dependency>{_named(one, 'groupId', 'artifactId', 'version')}<exclusions>{excluded}</exclusions></dependency>"
        for one in jars.artifacts
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>t</groupId>'
        f"<artifactId>t</artifactId><version>1</version><dependencies>{wanted}</dependencies></project>"
    )


def _named(artifact: str, *tags: str) -> str:
    return "".join(f"<{tag}>{word}</{tag}>" for tag, word in zip(tags, artifact.split(":"), strict=True))
