# SPDX-License-Identifier: Apache-2.0
"""The command `volley`. Each subcommand has its own file, which is imported only when it is used."""

from __future__ import annotations

import sys
from importlib import import_module

import click

from volley import __version__
from volley.errors import VolleyError
from volley.session.requirements import check_packages

_COMMANDS = {
    "bench": "Compare Volley with Spark and DataFusion.",
    "checkpoints": "List the stages that are kept for later runs, and remove them.",
    "cluster": "Run a local cluster of worker daemons.",
    "config": "List all options: name, type, default, meaning.",
    "connect-server": "Run a Spark Connect server whose sessions run natively.",
    "dashboard": "Show queries and workers in a browser.",
    "demo": "Run a short PySpark pipeline on Volley and on Spark.",
    "doctor": "Check this machine, and say how to fix what is wrong.",
    "help": "Say what a code of an error or a reason means.",
    "history": "List past queries, and show what one did.",
    "qualify": "Forecast from Spark's event logs what Volley would do.",
    "registry": "Run a registry, with which daemons register that nobody lists.",
    "run": "Run an unchanged PySpark program with Volley enabled.",
    "shell": "Start an interactive PySpark session with Volley enabled.",
    "shuffle-service": "Run a shuffle server, which keeps exchanged data when workers go.",
    "sql": "Run SQL statements, or start an SQL shell, with Volley enabled.",
    "status": "Show the health of worker daemons and shuffle servers.",
    "worker": "Run a worker daemon, which runs the tasks of queries.",
}


class _LazyGroup(click.Group):
    """Imports subcommands lazily: `volley --help` must not load PySpark and DataFusion."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(import_module(f"volley.cli.{name}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="volley")
def cli() -> None:
    """Volley runs PySpark queries natively: Spark plans, DataFusion runs, the rows are Spark's.

    Example: volley doctor
    """


def main() -> None:
    """The entry point. Volley's own errors become one line on stderr and exit status 2, not a traceback."""
    try:
        _run()
    except VolleyError as error:
        click.echo("\n".join([str(error), *getattr(error, "__notes__", ())]), err=True)
        sys.exit(2)


def _run() -> None:
    try:
        cli(prog_name="volley")
    except ImportError:
        # Perhaps another version of a package does not have what is imported: say so.
        check_packages()
        raise


if __name__ == "__main__":
    main()
