# SPDX-License-Identifier: Apache-2.0
"""`volley checkpoints`: lists what is kept for later runs of programs, and removes it."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click
from rich.table import Table

from volley.cli.client_options import client_options
from volley.cli.console import new_console
from volley.config import Config
from volley.errors import ConfigError
from volley.membership import current_addresses
from volley.options import PREFIX
from volley.security import Security
from volley.shuffle.base import CheckpointStore
from volley.shuffle.checkpoint_ids import checkpoint_secret
from volley.shuffle.config import ShuffleConfig
from volley.shuffle.factory import new_store
from volley.user_token import token_file_for


@click.command()
@click.argument("store")
@click.option("--remove", metavar="NAME", help="Remove the checkpoint of this name, with all its stages.")
@client_options
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def checkpoints(
    store: str,
    remove: str | None,
    token_file: str,
    tls_certificate: str,
    tls_key: str,
    tls_ca: str,
    as_json: bool,
) -> None:
    """List the checkpoints in STORE: shuffle servers (host:port,...), or the URI of a folder.

    Checkpoints are listed by id. --remove needs the name, which the store does not know. Exit status 1 if there is no
    checkpoint of that name; 2 if no server answers, or with --remove if any does not.

    Example: volley checkpoints s3://bucket/shuffle --remove nightly
    """
    is_folder = "://" in store
    names = {"shuffle.store": store} if is_folder else {"shuffle.store": "service", "shuffle.service": store}
    config = Config.read({PREFIX + name: value for name, value in names.items()})
    servers = current_addresses(config.shuffle_service)
    # Sessions with daemons on this machine use this user's own token, wherever their checkpoint is.
    addresses = servers or ("127.0.0.1:0",)
    security = Security.read(token_file_for(addresses, token_file), tls_ca, tls_certificate, tls_key)
    secrets = [checkpoint_secret(of, remove or "") for of in (security, Security())]
    opened = new_store(ShuffleConfig.of(config), security, 0)
    assert opened is not None, "it is not memory"
    try:
        if not isinstance(opened, CheckpointStore):
            raise ConfigError(f"{store} cannot keep checkpoints.")
        if remove is not None:
            removed = sum(map(opened.drop_checkpoint, secrets)) > 0
            click.echo(f"{remove} is removed." if removed else f"There is no checkpoint {remove} in {store}.")
            sys.exit(0 if removed else 1)
        found = opened.checkpoints()
    finally:
        opened.close()
    if as_json:
        click.echo(json.dumps([asdict(info) for info in found], indent=2))
        return
    table = Table("checkpoint", "stages", "bytes", "hours left")
    for info in found:
        table.add_row(info.id, str(info.stages), f"{info.size_bytes:,}", f"{info.seconds_left / 3600:.1f}")
    new_console().print(table)
