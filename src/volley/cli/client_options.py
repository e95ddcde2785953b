# SPDX-License-Identifier: Apache-2.0
"""Options of the commands that call daemons: how they authenticate, and whom they trust."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def client_options(command: Command) -> Command:
    """Adds --token-file and --tls-*, as `token_file`, `tls_certificate`, `tls_key` and `tls_ca`."""
    for option in (
        click.option("--tls-ca", default="", help="CA certificates (PEM) to trust. If set, use TLS."),
        click.option("--tls-key", default="", help="Private key (PEM) of the certificate."),
        click.option("--tls-certificate", default="", help="Client certificate (PEM), if they require one."),
        click.option(
            "--token-file",
            default="",
            help="File with their token. Default: VOLLEY_TOKEN, or on this machine your own.",
        ),
    ):
        command = option(command)
    return command
