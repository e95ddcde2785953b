# SPDX-License-Identifier: Apache-2.0
"""Finds the transports, shuffle stores, data sources and task listeners of other packages.

A package declares them as entry points:

    [project.entry-points."volley.transports"]
    unix = "volley_unix:open_transport"

A session names one (`spark.volley.transport=unix`), or writes `package.module:factory` for one that is not declared.
The factory says which version of the protocol it implements: by its attribute `protocol_version`, or by `implements`.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import Any, TypeVar

from volley.errors import ConfigError

Factory = TypeVar("Factory", bound=Callable[..., Any])

_PATH = re.compile(r"[A-Za-z_]\w*(\.\w+)*:[A-Za-z_]\w*(\.\w+)*", re.ASCII)


@dataclass(frozen=True)
class Kind:
    """A kind of plug-in: the group of its entry points, what Volley brings itself, and the version of its protocol."""

    title: str
    group: str
    builtin: tuple[str, ...]
    version: int


TRANSPORTS = Kind("transport", "volley.transports", ("local", "flight", "spark"), version=1)
STORES = Kind("shuffle store", "volley.shuffle_stores", ("memory", "service"), version=1)
SOURCES = Kind("data source", "volley.sources", (), version=1)
LISTENERS = Kind("task listener", "volley.task_listeners", (), version=1)
KINDS = (TRANSPORTS, STORES, SOURCES, LISTENERS)


@dataclass(frozen=True)
class Plugin:
    """An entry point: `target` is its factory, as module:name, and `package` the distribution that declares it."""

    name: str
    target: str
    package: str

    def __str__(self) -> str:
        return f"{self.name} ({self.package})"


def implements(version: int) -> Callable[[Factory], Factory]:
    """Declare the protocol version of a factory that is a function. A class has an attribute `protocol_version`."""

    def declare(factory: Factory) -> Factory:
        factory.protocol_version = version  # type: ignore[attr-defined]
        return factory

    return declare


def installed(kind: Kind) -> tuple[Plugin, ...]:
    """The plug-ins of this kind that installed packages declare, by name."""
    return _find(kind.group, tuple(sys.path))


def is_path(name: str) -> bool:
    """Whether a name is `package.module:factory`."""
    return _PATH.fullmatch(name) is not None


def is_known(kind: Kind, name: str) -> bool:
    """Whether a plug-in can be loaded by this name. Nothing is imported."""
    return is_path(name) or any(plugin.name == name for plugin in installed(kind))


def describe(kind: Kind) -> str:
    """What a user may write, for messages."""
    names = [*kind.builtin, *map(str, installed(kind))]
    return f"{', '.join(names)}, or package.module:factory"


def parse_transport(text: str) -> str:
    """A value of `spark.volley.transport`. ValueError, with what there is, for an unknown one."""
    if text.lower() in TRANSPORTS.builtin:
        return text.lower()
    if not is_known(TRANSPORTS, text):
        raise ValueError(f"expected one of {describe(TRANSPORTS)}")
    return text


def parse_store(text: str) -> str:
    """A value of `spark.volley.shuffle.store`. ValueError, with what there is, for an unknown one."""
    if text.lower() in STORES.builtin:
        return text.lower()
    if store_plugin(text):
        return text
    if "://" not in text:
        raise ValueError(
            f"expected one of {describe(STORES)}, or the URI of a folder such as file:///data or s3://bucket/folder"
        )
    return text.rstrip("/") if "?" not in text else text


def store_plugin(store: str) -> str | None:
    """The plug-in that a store names, alone or as the scheme of a URI; None if it names none."""
    name = store.partition("://")[0]
    return name if is_known(STORES, name) else None


def load(kind: Kind, name: str) -> Callable[..., Any]:
    """Import the factory of a plug-in. ConfigError if there is none, or it implements another protocol version."""
    target = name
    if not is_path(name):
        found = [plugin for plugin in installed(kind) if plugin.name == name]
        if not found:
            raise ConfigError(f"there is no {kind.title} {name!r}.", hint=f"There are: {describe(kind)}.")
        if len(found) > 1:
            raise ConfigError(f"several packages have a {kind.title} {name!r}: {', '.join(map(str, found))}.")
        target = found[0].target
    factory: Callable[..., Any] = _import(kind, name, target)
    version = getattr(factory, "protocol_version", None)
    if version != kind.version:
        raise ConfigError(
            f"the {kind.title} {name!r} implements version {version} of its protocol, not {kind.version}.",
            hint="Install a release of it that was made for this version of Volley.",
        )
    return factory


def _import(kind: Kind, name: str, target: str) -> Any:
    module, _, attributes = target.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for attribute in attributes.split("."):
            found = getattr(found, attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"the {kind.title} {name!r} cannot be imported from {target}: {error}.",
            hint="Install its package here and where the workers run.",
        ) from error
    if not callable(found):
        raise ConfigError(f"the {kind.title} {name!r}: {target} cannot be called.")
    return found


# Reading the metadata of all packages takes milliseconds, and options are read for each query.
@cache
def _find(group: str, path: tuple[str, ...]) -> tuple[Plugin, ...]:
    found = {
        Plugin(entry.name, entry.value.partition("[")[0].strip(), _package(entry))
        for entry in metadata.entry_points(group=group)
    }
    return tuple(sorted(found, key=lambda plugin: (plugin.name, plugin.package)))


def _package(entry: metadata.EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "unknown"
