# SPDX-License-Identifier: Apache-2.0
"""Options of all commands that start a daemon: address, authentication, shutdown, logs and output."""

from __future__ import annotations

import functools
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from volley.membership import Membership, parse_members
from volley.option_values import parse_bytes
from volley.process.log_format import configure_logs
from volley.security import TOKEN_VARIABLE, Security
from volley.user_token import ensure_user_token

_log = logging.getLogger(__name__)

# Spark Connect's own variable, which its clients read too.
CONNECT_TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"

_OWN_CLIENTS = (
    click.option(
        "--port", type=click.IntRange(0, 65535), help="Port to listen on. Default: 0, any free port."
    ),
    click.option(
        "--advertise", default="", help="Host name by which others reach this one, if it is not --host."
    ),
    click.option(
        "--token-file",
        default="",
        help="File with the token that clients must present. Default: VOLLEY_TOKEN, or a file of your own that is made"
        " once.",
    ),
    click.option(
        "--no-token",
        is_flag=True,
        help="Let everybody who can connect use it, other users of this machine too.",
    ),
)

_CONNECT_CLIENTS = (
    click.option(
        "--port",
        type=click.IntRange(0, 65535),
        default=15002,
        show_default=True,
        help="Port to listen on. 0: any.",
    ),
    click.option(
        "--token-file",
        default="",
        help=f"File with the bearer token that clients must present. Default: {CONNECT_TOKEN_VARIABLE}, or none.",
    ),
)

_LISTENING = (
    click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on."),
    click.option("--tls-certificate", default="", help="Server certificate (PEM). If set, it uses TLS."),
    click.option("--tls-key", default="", help="Private key (PEM) of the certificate."),
    click.option(
        "--tls-ca",
        default="",
        help="CA certificates (PEM) to verify other daemons, and clients with --mutual-tls.",
    ),
    click.option("--mutual-tls", is_flag=True, help="Require a client certificate signed by that CA."),
    click.option("--insecure", is_flag=True, help="Allow listening beyond loopback without token and TLS."),
    click.option(
        "--drain-seconds",
        type=click.FloatRange(min=0),
        default=30.0,
        show_default=True,
        help="Seconds to finish running work after SIGTERM.",
    ),
    click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="How lines of its log look, on standard error.",
    ),
    click.option(
        "--log-level",
        "log_levels",
        multiple=True,
        metavar="[COMPONENT=]LEVEL",
        help="Level of its log, such as DEBUG, or volley.shuffle=DEBUG for a component. Repeatable. Default: INFO.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print its address as one line of JSON."),
    click.option("--parent", type=int, hidden=True, help="Exit when this process ends."),
)


@dataclass(frozen=True)
class Listening:
    """The options of a daemon. `port` is None if not given."""

    host: str
    port: int | None
    advertise: str
    security: Security
    mutual_tls: bool
    insecure: bool
    drain_seconds: float
    as_json: bool
    token_file: str
    """Where clients find the token; empty if it is in the environment, or there is none."""
    parent: int | None

    def announce(self, ready: Mapping[str, object], lines: Sequence[str]) -> None:
        """Print that the daemon is ready, as JSON or as text."""
        if self.as_json:
            click.echo(json.dumps(dict(ready) | {"token_file": self.token_file}))
            return
        for line in lines:
            click.echo(line)
        if self.token_file:
            click.echo(f"token file {self.token_file} (spark.volley.tokenFile)")


def listening_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command, which gets them as its first argument, a `Listening`."""

    @functools.wraps(command)
    def with_listening(
        token_file: str,
        no_token: bool,
        tls_certificate: str,
        tls_key: str,
        tls_ca: str,
        log_format: str,
        log_levels: tuple[str, ...],
        **options: Any,
    ) -> None:
        configure_logs(log_format, log_levels)
        file = "" if no_token else _token_file(token_file)
        environment = {} if no_token else os.environ
        security = Security.read(file, tls_ca, tls_certificate, tls_key, environment)
        if no_token:
            _log.warning("--no-token: everybody who can connect may use this daemon")
        found: dict[str, Any] = {"security": security, "token_file": file}
        mine = {name: options.pop(name) for name in Listening.__dataclass_fields__ if name not in found}
        command(Listening(**found, **mine), **options)

    return _decorate(with_listening, (*_LISTENING, *_OWN_CLIENTS))


def connect_listening_options(command: Callable[..., None]) -> Callable[..., None]:
    """The same for a server of Spark Connect, whose clients know only Connect's own token."""

    @functools.wraps(command)
    def with_listening(
        token_file: str,
        tls_certificate: str,
        tls_key: str,
        tls_ca: str,
        log_format: str,
        log_levels: tuple[str, ...],
        **options: Any,
    ) -> None:
        configure_logs(log_format, log_levels)
        # Spark's JVM must not take it for the token of its own server.
        environment = {TOKEN_VARIABLE: os.environ.pop(CONNECT_TOKEN_VARIABLE, "")}
        security = Security.read(token_file, tls_ca, tls_certificate, tls_key, environment)
        found: dict[str, Any] = {"security": security, "token_file": "", "advertise": ""}
        mine = {name: options.pop(name) for name in Listening.__dataclass_fields__ if name not in found}
        command(Listening(**found, **mine), **options)

    return _decorate(with_listening, (*_CONNECT_CLIENTS, *_LISTENING))


def _decorate(
    command: Callable[..., None], options: Sequence[Callable[[Callable[..., None]], Callable[..., None]]]
) -> Callable[..., None]:
    return functools.reduce(lambda decorated, option: option(decorated), reversed(options), command)


def _token_file(given: str) -> str:
    """The file with the token of a daemon; empty if the environment has it."""
    return given or ("" if os.environ.get(TOKEN_VARIABLE) else str(ensure_user_token()))


register_option = click.option(
    "--register",
    "registries",
    multiple=True,
    metavar="HOST:PORT",
    callback=lambda context, parameter, value: _check_addresses(value),
    help="Register with this `volley registry`, so that sessions find it. Repeatable.",
)


def _check_addresses(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        try:
            is_one = parse_members(value) == (value,) and not Membership((value,)).may_change
        except ValueError:
            is_one = False
        if not is_one:
            raise click.BadParameter(f"expected host:port, not {value!r}", param_hint="--register")
    return values


def bytes_option(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    try:
        return None if value is None else parse_bytes(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
