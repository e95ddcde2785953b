# SPDX-License-Identifier: Apache-2.0
"""What commands that start a daemon share: where it listens, whom it answers, how it ends, what it says of itself."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from volley.config import parse_bytes
from volley.security import Security

_LISTENING = (
    click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on."),
    click.option(
        "--port", type=click.IntRange(0, 65535), help="Port to listen on; 0, the default, takes a free one."
    ),
    click.option(
        "--advertise", default="", help="Host that others reach this one by, when it is not --host."
    ),
    click.option(
        "--token-file",
        default="",
        help="Holds the token to ask for; otherwise VOLLEY_TOKEN in the environment.",
    ),
    click.option("--tls-certificate", default="", help="Its certificate (PEM). Set: it speaks TLS."),
    click.option("--tls-key", default="", help="The key of that certificate (PEM)."),
    click.option("--tls-ca", default="", help="Certificates (PEM) that vouch for those who call it."),
    click.option("--mutual-tls", is_flag=True, help="Refuse clients without a certificate of that CA."),
    click.option("--insecure", is_flag=True, help="Listen beyond loopback without token and TLS."),
    click.option(
        "--drain-seconds",
        type=click.FloatRange(min=0),
        default=30.0,
        show_default=True,
        help="How long to finish what is under way after SIGTERM.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print where it listens as one line of JSON."),
    click.option("--parent", type=int, hidden=True, help="End when this process does."),
)


@dataclass(frozen=True)
class Listening:
    """How a daemon was asked to listen. `port` is None when nobody chose one."""

    host: str
    port: int | None
    advertise: str
    security: Security
    mutual_tls: bool
    insecure: bool
    drain_seconds: float
    as_json: bool
    parent: int | None

    def announce(self, ready: Mapping[str, object], lines: Sequence[str]) -> None:
        """That it is ready: for programs, or in words."""
        for line in [json.dumps(ready)] if self.as_json else lines:
            click.echo(line)


def listening_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command gets them as its first argument, a `Listening`."""

    @functools.wraps(command)
    def with_listening(
        token_file: str, tls_certificate: str, tls_key: str, tls_ca: str, **options: Any
    ) -> None:
        mine = {name: options.pop(name) for name in Listening.__dataclass_fields__ if name != "security"}
        security = Security.read(token_file, tls_ca, tls_certificate, tls_key)
        command(Listening(security=security, **mine), **options)

    return functools.reduce(lambda decorated, option: option(decorated), reversed(_LISTENING), with_listening)


def bytes_option(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    try:
        return None if value is None else parse_bytes(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
