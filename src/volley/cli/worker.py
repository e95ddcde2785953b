# SPDX-License-Identifier: Apache-2.0
"""`volley worker`: runs a worker daemon."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from dataclasses import asdict
from pathlib import Path

import click

from volley.cli.console import parse_settings
from volley.cli.daemon_options import Listening, bytes_option, listening_options, register_option
from volley.config import Config
from volley.jvm.java import find_java
from volley.membership import resolve_option
from volley.options import SHUFFLE_SERVERS
from volley.process.allocator import keep_little_memory
from volley.process.machine import available_cores, available_memory_bytes
from volley.process.tracing import export_spans
from volley.session.requirements import check_packages


@click.command()
@click.option(
    "--cores", type=click.IntRange(min=1), help="Cores that a task uses. Default: all of this machine's."
)
@click.option("--tasks", type=click.IntRange(min=1), help="Concurrent tasks. Default: the number of cores.")
@click.option("--memory", callback=bytes_option, help="Memory, such as 8g. Default: 80% of this machine's.")
@click.option(
    "--dir",
    "directories",
    multiple=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for data that does not fit into memory. Repeatable. Default: the temporary directory.",
)
@click.option(
    "--python-functions",
    is_flag=True,
    help="Run the Python functions of sessions, which are code, in processes of this account. Needs a token.",
)
@click.option(
    "--jvm-expressions",
    is_flag=True,
    help="Evaluate expressions of Spark that sessions send, which are code, in a JVM of this account. Needs a token, "
    "Java and PySpark.",
)
@click.option(
    "--jvm-memory",
    callback=bytes_option,
    help="Memory for that JVM, in addition to --memory. Default: an eighth of it, at least 384m, at most 4g.",
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A shuffle option. Repeatable.")
@click.option(
    "--tracing",
    is_flag=True,
    help="Send OpenTelemetry spans of traced queries to OTEL_EXPORTER_OTLP_ENDPOINT. Needs the extra tracing.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Serve Prometheus metrics at http://host:port/metrics. Default: no metrics.",
)
@register_option
@listening_options
def worker(
    listening: Listening,
    cores: int | None,
    tasks: int | None,
    memory: int | None,
    directories: tuple[Path, ...],
    python_functions: bool,
    jvm_expressions: bool,
    jvm_memory: int | None,
    settings: tuple[str, ...],
    tracing: bool,
    metrics_port: int | None,
    registries: tuple[str, ...],
) -> None:
    """Run a worker daemon, which runs the tasks of queries. It needs no Java, except for --jvm-expressions.

    SIGTERM or Ctrl-C drains it: it takes no new tasks, finishes the running ones and exits. A second one stops it at
    once.

    \b
    Example:
      volley worker --port 7070 --memory 8g
      spark.volley.transport=flight, spark.volley.workers=127.0.0.1:7070
    """
    # With another version of a package, its rows could be others than those of the driver and of other workers.
    check_packages()
    memory_bytes = memory or int(available_memory_bytes() * 0.8)
    keep_little_memory(memory_bytes)
    # These load the allocators.
    from volley.registry.registration import Registration
    from volley.rpc.control import Role
    from volley.shuffle.factory import ShuffleSettings
    from volley.worker.daemon import Daemon, DaemonSettings, check_directories, serve

    if tracing:
        export_spans("volley-worker")
    if python_functions and listening.security.token is None:
        raise click.BadParameter(
            "needs a token; otherwise everybody who can connect could run code",
            param_hint="--python-functions",
        )
    if python_functions and importlib.util.find_spec("pyspark") is None:
        raise click.BadParameter(
            "needs PySpark, which is not installed: pip install volley-spark instead of volley-worker",
            param_hint="--python-functions",
        )
    if jvm_expressions and listening.security.token is None:
        raise click.BadParameter(
            "needs a token; otherwise everybody who can connect could run code",
            param_hint="--jvm-expressions",
        )
    java = find_java() if jvm_expressions else None
    config = Config.read(resolve_option(parse_settings(settings), SHUFFLE_SERVERS))
    spill = directories or (Path(tempfile.gettempdir()),)
    check_directories(spill)
    width = cores or available_cores()
    daemon = Daemon(
        DaemonSettings(
            host=listening.host,
            port=config.shuffle_port if listening.port is None else listening.port,
            advertise=listening.advertise,
            cores=width,
            slots=tasks or width,
            memory_bytes=memory_bytes,
            directories=spill,
            shuffle=ShuffleSettings.of(config),
            drain_seconds=listening.drain_seconds,
            require_client_certificate=listening.mutual_tls,
            insecure=listening.insecure,
            python_functions=python_functions,
            java=java,
            jvm_memory_bytes=jvm_memory or 0,
            metrics_port=metrics_port,
        ),
        listening.security,
    )

    def announce() -> None:
        words = [
            f"worker {daemon.address}: {width} cores, up to {tasks or width} tasks",
            f"memory {daemon.budget}",
        ]
        if isinstance(java, str):
            words.append(f"no JVM for expressions: {java}")
        if daemon.metrics_port is not None:
            words.append(f"metrics http://{listening.host}:{daemon.metrics_port}/metrics")
        ready = {"address": daemon.address, "pid": os.getpid(), "memory": asdict(daemon.budget)}
        listening.announce(ready | {"metrics_port": daemon.metrics_port}, words)

    registration = Registration(registries, Role.WORKER, daemon.address, listening.security)
    serve(daemon, announce, listening.parent, registration)
