"""The verbs init, doctor, demo, test, bench for a new checkout, and up, down for the embedded Airflow."""

from __future__ import annotations

import argparse
import os
import shlex
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemark.cli.call import Answer, Call, Verb
from tidemark.cli.screen import Screen
from tidemark.cli.verbs.checkout import hand_over
from tidemark.errors import NotFoundError
from tidemark.installation import ROOT, require_checkout
from tidemark.settings.load import DEFAULT

if TYPE_CHECKING:
    from tidemark.operations.new_sites import NewSite
    from tidemark.operations.survey import Survey
    from tidemark.orchestration.deployment.deployment import Deployment


def _init_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "dir", nargs="?", metavar="DIR", help="folder to write tidemark.toml into (default: here, or the file of --config)"
    )
    parser.add_argument(
        "--site",
        action="append",
        default=[],
        metavar="[NAME=]URL",
        help="look at this IoTDB, a folder or sftp://user@host:port/folder, and write what is found; may be repeated",
    )
    proofs = parser.add_mutually_exclusive_group()
    proofs.add_argument("--key", default="", metavar="FILE", help="private key file for sftp sites (else ~/.ssh/id_*)")
    proofs.add_argument("--agent", action="store_true", help="log in at sftp sites by the keys of the SSH agent")
    parser.add_argument(
        "--host-key",
        action="append",
        default=[],
        metavar="SHA256:…",
        help="of an sftp site that ~/.ssh/known_hosts does not have: one for all, or one for each, in their order",
    )


def _run_init(call: Call) -> Answer:
    from tidemark.settings.load import find_settings, load_settings
    from tidemark.settings.template import render_sites, render_template

    asked = call.arguments
    target = Path(asked.dir) / DEFAULT if asked.dir else Path(asked.config or DEFAULT).expanduser()
    is_found = target.absolute() == find_settings(None, os.environ)[0]  # without --config, by the next command
    option = "" if is_found else f"--config {shlex.quote(str(target))} "
    sites = _look_at_sites(call) if asked.site else []
    tables = {site.name: site.as_settings() for site in sites}
    written = not target.exists()
    if written:
        _write_new(target, render_template(tables))
    load_settings(target, {})  # raises for errors in an existing file
    more = render_sites(tables) if sites and not written else ""

    def show(screen: Screen) -> None:
        screen.print_line(str(target) if written else f"{target} is there already; nothing was written")
        for site in sites:
            screen.print_line(f"  site {site.name}: {_describe_survey(site.found)}")
        if more:
            screen.print_text(f"\n{more}")
        edit = "add these tables to it" if more else "edit it (sites, receivers, links)" if not sites else "look at it"
        screen.print_remark(f"  next: {edit}, then ./tidemark {option}doctor")

    found: dict[str, Any] = {"config": str(target), **({} if written else {"written": False})}
    if sites:
        found |= {"sites": [site.as_json() for site in sites], **({"tables": more} if more else {})}
    return Answer(found, show)


def _look_at_sites(call: Call) -> list[NewSite]:
    from tidemark.operations.new_sites import Login, look_at_sites

    asked = call.arguments
    return look_at_sites(asked.site, Login(asked.key, asked.host_key, asked.agent), Path.cwd())


def _describe_survey(found: Survey) -> str:
    told = [
        f"IoTDB {found.version}" if found.version else "an IoTDB that does not tell its version",
        f"data in {', '.join(found.data)}",
        f"schema in {found.schema}" if found.schema else "no schema folder found",
        f"time unit {found.time_unit}" if found.time_unit else "time unit not told: ms is written, IoTDB's default",
        f"partitions of {found.partition_interval_ms:,} ms"
        if found.partition_interval_ms
        else "partition interval not told",
    ]
    return "; ".join(told)


def _write_new(target: Path, text: str) -> None:
    """Write a new file atomically. A file that another process creates meanwhile stays."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8")
        with suppress(FileExistsError):
            target.hardlink_to(part)
    finally:
        # CRASH WINDOW: a file whose name begins with a dot is left over; nothing reads it.
        part.unlink(missing_ok=True)


def _run_doctor(call: Call) -> Answer:
    from tidemark.operations.doctor.doctor import doctor

    report = doctor(call.arguments.config, os.environ)

    def show(screen: Screen) -> None:
        screen.print_table(["", "check", "found"], [("ok" if c.ok else "BAD", c.name, c.detail) for c in report.checks])
        for check in [one for one in report.checks if not one.ok][1:]:  # that of the first ends the command as its error
            if check.hint:
                screen.print_line(f"  {check.name}: {check.hint}")

    return Answer(report.as_json(), show, report.exit_code)


def _demo_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dir", default="var/demo", metavar="D", help="where the deployment is made (default: var/demo)")
    parser.add_argument("--no-ui", action="store_true", help="leave Airflow out")


def _run_demo(call: Call) -> Answer:
    require_checkout("demo")
    asked = call.arguments
    words = ["--dir", str(Path(asked.dir).resolve()), *(["--no-ui"] if asked.no_ui else [])]
    return hand_over(call, "demo", [*words, *_json_flag(call)])


def _test_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--all", action="store_true", help="also real servers, a running Airflow, a browser, a Spark cluster"
    )
    parser.add_argument("--soak", action="store_true", help="also long sweeps")
    parser.add_argument("--install", action="store_true", help="system packages too (CI=true does the same)")
    parser.usage = "./tidemark test [--all] [--soak] [--install] [PYTEST ARGS]"


def _run_test(call: Call) -> Answer:
    require_checkout("test")
    from tidemark.cli.verbs import checkout

    asked = call.arguments
    checkout.prepare_packages(everything=asked.all, install=asked.install or checkout.in_ci(), screen=call.screen)
    chosen = [f"--{name}" for name in ("all", "soak") if getattr(asked, name)]
    everything = asked.all or asked.soak
    options = [*checkout.side_by_side(call.rest, everything), *checkout.keep_files_in_memory(everything), *chosen]
    return hand_over(call, "pytest", [*options, *call.rest])


def _bench_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help=f"one of: {', '.join(_list_benchmarks())}")
    parser.add_argument("--quick", action="store_true", help="fewer rounds; sizes stay")
    parser.add_argument(
        "--only", metavar="PARTS", default="", help="parts of it, with commas (transfer, sync, merge, cluster)"
    )
    parser.add_argument("--install", action="store_true", help="the peers' packages too")


def _run_bench(call: Call) -> Answer:
    require_checkout("bench")
    from tidemark.cli.verbs import checkout

    name = call.arguments.name
    if name not in _list_benchmarks():
        raise NotFoundError(
            f"no benchmark {name!r}; there are: {', '.join(_list_benchmarks())}", hint="./tidemark bench --help"
        )
    asked = call.arguments
    checkout.prepare_packages(everything=False, install=asked.install or checkout.in_ci(), screen=call.screen, peers=True)
    words = [*(["--quick"] if asked.quick else []), *(["--only", asked.only] if asked.only else [])]
    return hand_over(call, f"bench.{name}", [*words, *_json_flag(call)])


def _json_flag(call: Call) -> list[str]:
    return ["--json"] if call.screen.as_json else []


def _list_benchmarks() -> list[str]:
    """The modules of bench/ that are run by this verb. Others are programs that these start."""
    modules = (ROOT / "bench").glob("[!_]*.py")
    return sorted(path.stem for path in modules if 'prog="tidemark bench ' in path.read_text(encoding="utf-8"))


VERBS = (
    Verb(
        "init",
        "write a commented tidemark.toml, with the sites that it looks at",
        "./tidemark init --site north=sftp://edge@10.0.0.5:22/opt/iotdb --key ~/.ssh/id_ed25519",
        _run_init,
        _init_arguments,
    ),
    Verb("doctor", "check settings, ledger, stores, host keys, tools, clocks, disks", "./tidemark doctor", _run_doctor),
    Verb(
        "demo",
        "a whole deployment on real TsFiles that checks its own answers",
        "./tidemark demo --no-ui",
        _run_demo,
        _demo_arguments,
    ),
    Verb(
        "test",
        "set up what the tests need and run them",
        "./tidemark test --all -k sshd",
        _run_test,
        _test_arguments,
        flags=("--all", "--soak", "--install"),
    ),
    Verb(
        "bench",
        "a benchmark with its peers side by side, as JSON in var/bench/",
        "./tidemark bench plan --quick",
        _run_bench,
        _bench_arguments,
    ),
)


def _up_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--port", type=int, default=8080, metavar="N", help="of Airflow's pages on 127.0.0.1 (default 8080; 0: a free one)"
    )
    parser.add_argument("--detach", action="store_true", help="return when Airflow answers; ./tidemark down stops it")


def _run_up(call: Call) -> Answer:
    from tidemark.orchestration.deployment import deployment as deployment_deployment

    settings, asked = call.settings, call.arguments
    if found := deployment_deployment.running_at(settings, asked.port):
        call.screen.print_remark("it runs already")
        return Answer(_encode_deployment(found), lambda screen: _print_deployment(screen, found))
    if asked.detach:
        call.screen.print_remark("starting Airflow …")
        started = deployment_deployment.start(settings, asked.port)
        return Answer(_encode_deployment(started), lambda screen: _print_deployment(screen, started))

    def report_ready(running: Deployment) -> None:
        if call.screen.as_json:
            call.screen.print_json({"ok": True, **_encode_deployment(running)})
        else:
            _print_deployment(call.screen, running)
            call.screen.print_remark("Ctrl-C stops it")

    call.screen.print_remark("starting Airflow …")
    deployment_deployment.up(settings, asked.port, report_ready)
    call.screen.print_remark("stopped")
    return Answer({}, lambda _screen: None, said=True)


def _run_down(call: Call) -> Answer:
    from tidemark.orchestration.deployment import deployment as deployment_deployment

    stopped = deployment_deployment.down(call.settings)
    if stopped is None:
        return Answer({"ui": "", "pid": 0}, lambda screen: screen.print_line("no Airflow of these settings is running"))
    return Answer(_encode_deployment(stopped), lambda screen: screen.print_line(f"stopped {stopped.ui} (pid {stopped.pid})"))


def _encode_deployment(running: Deployment) -> dict[str, Any]:
    return {"ui": running.ui, "pid": running.pid, "user": running.user, "password_file": running.password_file}


def _print_deployment(screen: Screen, running: Deployment) -> None:
    screen.print_line(running.ui)
    screen.print_remark(f"log in as {running.user}; the password stands in {running.password_file}")


DEPLOY_VERBS = (
    Verb("up", "start Airflow with a DAG per link; stays until Ctrl-C", "./tidemark up --port 8080", _run_up, _up_arguments),
    Verb("down", "stop the Airflow of these settings", "./tidemark down", _run_down),
)
