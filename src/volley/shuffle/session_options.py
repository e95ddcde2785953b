# SPDX-License-Identifier: Apache-2.0
"""The shuffle options of a session on their way to its workers, which apply them within the limits of their owner.

    session    options_to_send(config)           ->  TaskSpec.settings: what the session set, and always the store
    worker     apply_options(owner, settings)    ->  ShuffleConfig for the attempts of this session

What the owner of a worker set with `volley worker --set` is a limit: the store, its servers and its replicas must be
the same, and so must options of plug-ins. Sizes and shares may be smaller, and the rest is the session's choice. The
port and the share of memory always belong to the worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from volley.config import Config
from volley.errors import OptionRefused
from volley.options import PREFIX
from volley.plugins import is_path, store_plugin
from volley.shuffle.config import ShuffleConfig

Options = tuple[tuple[str, str], ...]
"""Names without `spark.volley.`, and values as they were written."""

_STORE = "shuffle.store"
_OF_WORKERS = ("shuffle.port", "shuffle.memoryFraction")
# The name of a checkpoint gives access to it.
_OF_DRIVER = ("shuffle.checkpoint", "shuffle.checkpointSeconds")
_FIXED: dict[str, Callable[[Config], Any]] = {
    _STORE: lambda config: config.shuffle_store,
    "shuffle.service": lambda config: config.shuffle_service,
    "shuffle.replicas": lambda config: config.shuffle_replicas,
}


def options_to_send(config: Config) -> Options:
    """What a session sends with its queries. A worker's default store may be another, so the store is always part."""
    chosen = dict(config.shuffle_options) | {_STORE: config.shuffle_store}
    kept_back = (*_OF_WORKERS, *_OF_DRIVER)
    return tuple(sorted((name, value) for name, value in chosen.items() if name not in kept_back))


def apply_options(owner: Config, settings: Sequence[tuple[str, str]]) -> ShuffleConfig:
    """The options of a session on a worker. Raises OptionRefused if its owner does not allow them."""
    own = ShuffleConfig.of(owner)
    for name, _ in settings:
        if not name.startswith(("shuffle.", "plugin.")):
            raise OptionRefused(f"{PREFIX}{name} is not an option that a session sends to workers.")
    session = {PREFIX + name: value for name, value in settings if name not in _OF_WORKERS}
    limits = dict(owner.shuffle_options)
    asked = Config.read({PREFIX + name: value for name, value in limits.items()} | session)
    for name, value_of in _FIXED.items():
        if name in limits and value_of(asked) != value_of(owner):
            raise OptionRefused(
                f"this worker was started with {PREFIX}{name}={limits[name]}, and the session has "
                f"{session.get(PREFIX + name, 'another')}.",
                hint="Set the same in the session, or do not set it with `volley worker --set`.",
            )
    for name, value in settings:
        # It may be the address of a server to which this worker would send a password.
        if name.startswith("plugin.") and limits.get(name, value) != value:
            raise OptionRefused(f"this worker was started with {PREFIX}{name}={limits[name]}.")
    plugin = store_plugin(asked.shuffle_store)
    if plugin is not None and is_path(plugin) and asked.shuffle_store != owner.shuffle_store:
        # Importing a module runs its code, and a session is not the owner of this process.
        raise OptionRefused(
            f"a session cannot let this worker import {plugin}.",
            hint=f"Start it with --set {PREFIX}{_STORE}={plugin}, or declare an entry point.",
        )
    config = replace(ShuffleConfig.of(asked), memory_fraction=own.memory_fraction)
    if "shuffle.spillThreshold" in limits:
        config = replace(config, spill_threshold=min(config.spill_threshold, own.spill_threshold))
    if "shuffle.maxMessageSize" in limits:
        config = replace(config, max_message_bytes=min(config.max_message_bytes, own.max_message_bytes))
    return config
