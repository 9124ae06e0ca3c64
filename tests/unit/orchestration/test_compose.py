"""docker-compose.yaml: what the Compose specification asks of it, and what it shares with `./tidemark up`.

There is no engine in a test run, so the file is checked as data: by the specification's own schema, and for what a schema
cannot say (what it names exists, dependencies can be met, nothing secret stands in it).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml

from tidemark.orchestration.deployment.home import TUNED

ROOT = Path(__file__).parents[3]
FILE = ROOT / "docker-compose.yaml"
SERVICE_KEYS = {
    "build", "command", "depends_on", "environment", "healthcheck", "hostname", "image", "ports", "profiles", "restart",
    "secrets", "stop_grace_period", "user", "volumes",
}  # fmt: skip
CONDITIONS = {"service_started", "service_healthy", "service_completed_successfully"}
DURATION = re.compile(r"(\d+(h|m|s|ms|us))+")
INTERPOLATION = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(:?[-?+][^}]*)?\}")
SECRET_WORDS = ("password", "secret", "key", "token")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return loaded


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("ssh-keygen is not installed")
    folder = tmp_path_factory.mktemp("compose")
    subprocess.run([sys.executable, ROOT / "docker/prepare", "--dir", folder], check=True, capture_output=True)
    return folder


def services(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = compose["services"]
    return found


def test_it_has_the_whole_deployment(compose: dict[str, Any]) -> None:
    assert set(compose) - {key for key in compose if key.startswith("x-")} == {"name", "services", "volumes", "secrets"}
    airflow = {"api-server", "scheduler", "dag-processor", "triggerer"}
    spark = {"spark-master", "spark-worker-1", "spark-worker-2"}
    assert set(services(compose)) == airflow | spark | {"postgres", "migrate", "plant1", "plant2", "capture", "serve"}


def test_every_service_says_only_what_the_specification_knows(compose: dict[str, Any]) -> None:
    for name, service in services(compose).items():
        assert set(service) <= SERVICE_KEYS, name
        assert "image" in service, name
        assert service["restart"] in ("no", "always", "on-failure", "unless-stopped"), name
        assert isinstance(service.get("command", []), list), f"{name}: a list needs no shell and passes signals on"
        if "stop_grace_period" in service:
            assert DURATION.fullmatch(service["stop_grace_period"]), name


def test_dependencies_exist_and_can_be_met(compose: dict[str, Any]) -> None:
    known = services(compose)
    for name, service in known.items():
        for wanted, how in service.get("depends_on", {}).items():
            assert wanted in known, f"{name} depends on {wanted}, which is not a service"
            assert how["condition"] in CONDITIONS
            if how["condition"] == "service_healthy":
                assert "healthcheck" in known[wanted], f"{name} waits for the health of {wanted}, which has no check"
            if how["condition"] == "service_completed_successfully":
                assert known[wanted]["restart"] == "no", f"{wanted} would be started again for ever"


def test_dependencies_have_no_circle(compose: dict[str, Any]) -> None:
    known = services(compose)

    def depth(name: str, above: tuple[str, ...] = ()) -> int:
        assert name not in above, f"circle: {' → '.join((*above, name))}"
        return 1 + max((depth(d, (*above, name)) for d in known[name].get("depends_on", {})), default=0)

    assert max(depth(name) for name in known) >= 3


def test_every_part_that_stays_has_a_health_check(compose: dict[str, Any]) -> None:
    for name, service in services(compose).items():
        if name == "migrate":
            continue
        check = service["healthcheck"]
        assert check["test"][0] in ("CMD", "CMD-SHELL"), name
        assert all(DURATION.fullmatch(check[key]) for key in ("interval", "timeout")), name


def test_volumes_and_secrets_are_declared_and_used(compose: dict[str, Any]) -> None:
    mounts = [mount for service in services(compose).values() for mount in service.get("volumes", [])]
    named = {mount.split(":")[0] for mount in mounts if not mount.startswith((".", "/"))}
    assert named == set(compose["volumes"])
    used = {
        s if isinstance(s, str) else s["source"]
        for service in services(compose).values()
        for s in service.get("secrets", [])
    }
    assert used == set(compose["secrets"])


@pytest.mark.real("sshd")  # ssh-keygen comes with it
def test_every_file_it_names_exists(compose: dict[str, Any], prepared: Path) -> None:
    def exists(path: str) -> bool:
        below = path.removeprefix("./var/compose/")
        return (prepared / below).exists() if below != path else (ROOT / path).exists()

    for name, service in services(compose).items():
        if "build" in service:
            dockerfile = ROOT / service["build"]["dockerfile"]
            assert dockerfile.exists(), name
            for line in re.findall(r"^COPY (?:--\S+ )*(.+) \S+$", dockerfile.read_text(), re.MULTILINE):
                for source in line.split():
                    assert (ROOT / source).exists(), f"{dockerfile.name} copies {source}"
        for mount in service.get("volumes", []):
            if mount.startswith("."):
                assert exists(mount.split(":")[0]), f"{name}: {mount}"
    for name, secret in compose["secrets"].items():
        assert exists(secret["file"]), name


def test_interpolations_all_have_a_default() -> None:
    uses = INTERPOLATION.findall(FILE.read_text())
    assert uses
    for name, default in uses:
        assert name.startswith("TIDEMARK_"), name
        assert default.startswith(":-"), f"${{{name}}} needs a default: a plain `up` must not warn"


def test_it_sets_what_up_sets(compose: dict[str, Any]) -> None:
    for part in ("migrate", "api-server", "scheduler", "dag-processor", "triggerer"):
        environment = services(compose)[part]["environment"]
        assert {key: str(environment.get(key)) for key in TUNED} == dict(TUNED), part


def test_it_carries_no_secret(compose: dict[str, Any]) -> None:
    for name, service in services(compose).items():
        for key, value in service.get("environment", {}).items():
            by_reference = key.endswith(("_FILE", "_CMD")) or key == "PGPASSFILE"
            assert by_reference or not any(word in key.lower() for word in SECRET_WORDS), f"{name}: {key}={value}"
            assert "://" not in str(value) or not re.search(r"://[^@/]*:[^@/]*@", str(value)), (
                f"{name}: {key} has a password"
            )


def test_airflow_reads_these_secrets_by_command_and_knows_every_key(compose: dict[str, Any]) -> None:
    from airflow.configuration import conf

    known = conf.configuration_description
    for key in services(compose)["scheduler"]["environment"]:
        match = re.fullmatch(r"AIRFLOW__([A-Z_]+?)__([A-Z_0-9]+)", key)
        if match:
            section, option = match[1].lower(), match[2].lower()
            if option.endswith("_cmd"):
                option = option.removesuffix("_cmd")
                assert (section, option) in conf.sensitive_config_values, f"{key}: Airflow would ignore it"
            assert option in known[section]["options"], f"Airflow does not know {key}"


def test_the_command_that_runs_is_one_airflow_has(compose: dict[str, Any]) -> None:
    from airflow.cli import cli_parser

    parser = cli_parser.get_parser()
    for service in services(compose).values():
        words = service.get("command", [])
        if words[:1] == ["sh"]:
            words = shlex.split(words[2].split("&&")[0])
        if words[:1] == ["airflow"]:
            assert parser.parse_args(words[1:]).func


@pytest.mark.real("sshd")  # ssh-keygen comes with it
def test_settings_that_are_included_are_where_the_parts_look(compose: dict[str, Any], prepared: Path) -> None:
    """What `include = ["sites/*.toml"]` names beside the settings is mounted beside them, in every part."""
    place = 'include = ["sites/*.toml"]\n' + (prepared / "tidemark.toml").read_text()
    (prepared / "tidemark.toml").write_text(place)
    (prepared / "sites" / "third.toml").write_text(f'[sites.third]\nid = "{uuid4()}"\nstore = "/data"\n')
    for part in ("migrate", "api-server", "scheduler", "dag-processor", "triggerer"):
        mounts = dict(m.split(":")[:2] for m in services(compose)[part]["volumes"] if m.startswith("./var/compose/"))
        at = {source.removeprefix("./var/compose/"): target for source, target in mounts.items()}
        assert Path(at["sites"]) == Path(at["tidemark.toml"]).parent / "sites", part

    from tidemark.settings.load import load_settings

    assert "third" in load_settings(prepared / "tidemark.toml", {}).sites


@pytest.mark.real("sshd")  # ssh-keygen comes with it
def test_prepare_makes_private_files_and_sound_settings_and_keeps_them(prepared: Path) -> None:
    before = {path.name: path.read_bytes() for path in prepared.iterdir() if path.is_file()}
    subprocess.run([sys.executable, ROOT / "docker/prepare", "--dir", prepared], check=True, capture_output=True)
    assert {path.name: path.read_bytes() for path in prepared.iterdir() if path.is_file()} == before
    for path in filter(Path.is_file, prepared.iterdir()):
        if not path.name.endswith(".pub"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path.name
    assert json.loads(before["passwords.json"])["admin"]

    from tidemark.settings.load import load_settings

    settings = load_settings(prepared / "tidemark.toml", {})
    assert sorted(settings.links) == ["plant1", "plant2"]
    shown = subprocess.run(
        ["ssh-keygen", "-lf", prepared / "plant1_host_key.pub"], capture_output=True, text=True, check=True
    )
    assert settings.sites["plant1"].host_key == shown.stdout.split()[1]


def test_every_shipped_script_is_executable_and_parses() -> None:
    for name in ("prepare", "healthy", "entrypoint", "site-entrypoint"):
        script = ROOT / "docker" / name
        assert os.access(script, os.X_OK), name
        first = script.read_text().splitlines()[0]
        if "python3" in first:
            compile(script.read_text(), str(script), "exec")
        else:
            subprocess.run(["sh", "-n", script], check=True)


def conforms(file: Path) -> subprocess.CompletedProcess[str]:
    """Judge a file by the schema of the Compose specification, which comes with check-jsonschema: no network, no engine."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", "-o", "json"]
    return subprocess.run([*command, file], capture_output=True, text=True, check=False)


@pytest.mark.full
def test_it_conforms_to_the_compose_specification() -> None:
    judged = conforms(FILE)
    assert judged.returncode == 0, judged.stdout + judged.stderr


@pytest.mark.full_after(1)
@pytest.mark.parametrize(
    ("right", "wrong", "where"),
    [
        ("    restart: unless-stopped\n", "    restrat: unless-stopped\n", "services"),
        ("{condition: service_healthy}", "{condition: service_wealthy}", "depends_on"),
        ("retries: 20", "retries: [20]", "healthcheck"),
        ("postgres_password: {file:", "postgres_password: {path:", "secrets"),
    ],
)
def test_that_judge_sees_mistakes(tmp_path: Path, right: str, wrong: str, where: str) -> None:
    text = FILE.read_text()
    assert right in text
    broken = tmp_path / "docker-compose.yaml"
    broken.write_text(text.replace(right, wrong, 1))
    judged = conforms(broken)
    assert judged.returncode == 1
    assert where in judged.stdout, judged.stdout
