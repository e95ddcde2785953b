# SPDX-License-Identifier: Apache-2.0
"""The end of a process, and of the children that it forks."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import volley
from volley.process.runtime import Phase, Shared

_EXIT_SECONDS = 240


def _run(program: str) -> list[str]:
    """What a program prints that uses Volley. It must end by itself, and so must its children."""
    run = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(program)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=_EXIT_SECONDS,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


_FORK = """
import os, select, sys

def exit_of_a_child():
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        sys.exit(0)
    watched = os.pidfd_open(pid)
    if not select.select([watched], [], [], 60)[0]:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        return "hangs"
    return f"exit-{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}"
"""


def test_a_child_forked_while_the_loop_runs_exits() -> None:
    assert _run(
        _FORK
        + """
from volley.process.loop import shared_loop

async def work():
    return "ran"

print(shared_loop().submit(work()).result())
print(exit_of_a_child())
print(shared_loop().submit(work()).result())
"""
    ) == ["ran", "exit-0", "ran"]


def test_a_child_forked_beside_a_server_and_its_clients_exits() -> None:
    assert _run(
        _FORK
        + """
import pyarrow.flight as flight
from volley.process.runtime import Phase, Shared

class Echo(flight.FlightServerBase):
    def do_action(self, context, action):
        return [action.body]

servers = Shared(Phase.CONNECTIONS, close=lambda server: server.shutdown())
clients = Shared(Phase.CONNECTIONS, close=lambda client: client.close())

def ask():
    server = servers.get("s", lambda: Echo("grpc://127.0.0.1:0"))
    client = clients.get("c", lambda: flight.FlightClient(f"grpc://127.0.0.1:{server.port}"))
    (reply,) = client.do_action(flight.Action("echo", b"heard"))
    return reply.body.to_pybytes().decode()

print(ask())
print(exit_of_a_child())
print(ask())
"""
    ) == ["heard", "exit-0", "heard"]


def test_a_child_has_resources_of_its_own_and_leaves_those_of_its_parent() -> None:
    assert _run(
        """
import os
from volley.process.runtime import Phase, Shared

shared = Shared(Phase.STORES, close=lambda pid: print(f"closed-{pid == os.getpid()}", flush=True))
shared.get("store", os.getpid)
pid = os.fork()
if pid:
    os.waitpid(pid, 0)
else:
    assert shared.get("store", os.getpid) == os.getpid()
"""
    ) == ["closed-True", "closed-True"]


def test_resources_are_closed_by_phase_and_one_that_fails_does_not_keep_the_others() -> None:
    assert _run(
        """
from volley.process.runtime import Phase, Shared

def fail(value):
    print(value)
    raise OSError("it does not close")

for phase in (Phase.STORES, Phase.ENGINE, Phase.QUERIES, Phase.FILES, Phase.CONNECTIONS):
    Shared(phase, close=fail).get("one", lambda: phase.name.lower())
"""
    ) == [phase.name.lower() for phase in Phase]


def test_a_closed_resource_is_created_again() -> None:
    closed: list[int] = []
    shared: Shared[str, int] = Shared(Phase.FILES, close=closed.append)
    assert shared.get("a", lambda: 1) == shared.get("a", lambda: 2) == 1
    shared.close()
    assert closed == [1]
    assert shared.get("a", lambda: 3) == 3
    shared.close()
    assert closed == [1, 3]


def test_nobody_else_registers_for_the_end_of_the_process_or_for_forks() -> None:
    root = Path(volley.__file__).parent
    users = set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            # An attribute `atexit` of weakref.finalize is none of these.
            if isinstance(node, ast.Import) and any(alias.name == "atexit" for alias in node.names):
                users.add(path.relative_to(root).as_posix())
            if isinstance(node, ast.Attribute) and node.attr == "register_at_fork":
                users.add(path.relative_to(root).as_posix())
    assert users == {"process/runtime.py"}
