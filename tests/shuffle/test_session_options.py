# SPDX-License-Identifier: Apache-2.0
"""A worker applies the shuffle options of a session, within the limits that its owner set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from volley.config import Config
from volley.errors import BlockMissing, ConfigError, OptionRefused
from volley.ids import QueryId
from volley.options import PREFIX
from volley.security import Security
from volley.shuffle.config import ShuffleConfig
from volley.shuffle.factory import DaemonStores, ShuffleSettings
from volley.shuffle.session_options import apply_options, options_to_send
from volley.testing.contracts import attempt_id, read_values, write_block

QUERY = QueryId("q")


def config_of(**options: str) -> Config:
    """`shuffle_store="service"` is the option `shuffle.store`."""
    return Config.read({PREFIX + name.replace("_", ".", 1): value for name, value in options.items()})


def applied(owner: dict[str, str], session: dict[str, str]) -> ShuffleConfig:
    return apply_options(config_of(**owner), options_to_send(config_of(**session)))


def test_what_is_not_set_is_not_sent() -> None:
    assert options_to_send(Config.read({})) == (("shuffle.store", "memory"),)
    sent = options_to_send(config_of(shuffle_compression="zstd", shuffle_port="7", plugin_a="b"))
    assert sent == (("plugin.a", "b"), ("shuffle.compression", "zstd"), ("shuffle.store", "memory"))


def test_a_session_chooses_what_its_queries_do() -> None:
    owner = {"shuffle_compression": "lz4", "shuffle_retryAttempts": "1", "shuffle_memoryFraction": "0.2"}
    session = {"shuffle_compression": "zstd", "shuffle_timeoutSeconds": "7", "shuffle_memoryFraction": "0.9"}
    config = applied(owner, session)
    assert (config.compression, config.retry.stall_seconds, config.retry.attempts) == ("zstd", 7.0, 1)
    assert config.memory_fraction == 0.2


def test_sizes_and_shares_have_limits() -> None:
    owner = {"shuffle_maxMessageSize": "8m", "shuffle_spillThreshold": "0.5"}
    more = applied(owner, {"shuffle_maxMessageSize": "64m", "shuffle_spillThreshold": "0.9"})
    assert (more.max_message_bytes, more.spill_threshold) == (8 * 2**20, 0.5)
    less = applied(owner, {"shuffle_maxMessageSize": "1m", "shuffle_spillThreshold": "0.1"})
    assert (less.max_message_bytes, less.spill_threshold) == (2**20, 0.1)
    free = applied({}, {"shuffle_maxMessageSize": "128m", "shuffle_spillThreshold": "1"})
    assert (free.max_message_bytes, free.spill_threshold) == (128 * 2**20, 1.0)


def test_a_store_that_the_owner_set_is_fixed() -> None:
    owner = {"shuffle_store": "service", "shuffle_service": "a:1,b:2"}
    assert applied(owner, owner | {"shuffle_replicas": "1"}).servers == ("a:1", "b:2")
    assert applied(owner, {"shuffle_store": "service"}).servers == ("a:1", "b:2")
    for session in ({}, {"shuffle_store": "file:///data"}, owner | {"shuffle_service": "c:3"}):
        with pytest.raises(OptionRefused, match=r"started with spark\.volley\.shuffle\.(store|service)="):
            applied(owner, session)


def test_options_of_plugins_that_the_owner_set_are_fixed() -> None:
    owner = {"plugin_shelf.url": "a"}
    assert applied(owner, {"plugin_other": "c"}).plugin == (("other", "c"), ("shelf.url", "a"))
    with pytest.raises(OptionRefused, match=r"started with spark\.volley\.plugin\.shelf\.url=a"):
        applied(owner, {"plugin_shelf.url": "b"})


def test_only_the_owner_names_a_module_to_import() -> None:
    named = {"shuffle_store": "package.module:factory"}
    assert applied(named, named).store == "package.module:factory"
    with pytest.raises(OptionRefused, match=r"import package\.module:factory"):
        applied({}, named)


@pytest.mark.parametrize("name", ["transport", "nonsense"])
def test_other_options_are_not_taken_from_peers(name: str) -> None:
    with pytest.raises(ConfigError):
        apply_options(Config.read({}), ((f"shuffle.{name}", "x"),))
    with pytest.raises(OptionRefused):
        apply_options(Config.read({}), ((name, "local"),))


@pytest.fixture
def open_stores(tmp_path: Path) -> Callable[..., DaemonStores]:
    def open_stores(**owner: str) -> DaemonStores:
        settings = ShuffleSettings.of(config_of(**owner))
        return settings.open_stores("127.0.0.1:1", 2**20, [tmp_path], Security())

    return open_stores


def test_sessions_use_the_memory_of_one_worker_in_their_own_ways(
    open_stores: Callable[..., DaemonStores],
) -> None:
    stores = open_stores()
    plain = stores.of(QUERY, options_to_send(Config.read({})))
    spilling = stores.of(QUERY, options_to_send(config_of(shuffle_spillThreshold="0")))
    (in_memory,) = write_block(plain, attempt_id(0), 1, 2)
    (on_disk,) = write_block(spilling, attempt_id(1), 3)
    assert (in_memory.spilled_bytes, on_disk.spilled_bytes > 0) == (0, True)
    assert read_values(plain, on_disk) == [3]
    assert stores.own.held_bytes > 0
    stores.release(QUERY)
    assert stores.own.held_bytes == 0
    with pytest.raises(BlockMissing):
        stores.of(QUERY, ())


def test_a_session_brings_a_store_of_its_own(
    open_stores: Callable[..., DaemonStores], tmp_path: Path
) -> None:
    stores = open_stores()
    settings = options_to_send(config_of(shuffle_store=tmp_path.as_uri()))
    chosen = stores.of(QUERY, settings)
    with pytest.raises(BlockMissing, match="driver did not renew"):
        write_block(chosen, attempt_id(), 1)
    assert stores.own.held_bytes == 0
    stores.release(QUERY)
    stores.close()


def test_messages_are_as_small_as_either_wants(open_stores: Callable[..., DaemonStores]) -> None:
    stores = open_stores(shuffle_maxMessageSize="2m")
    assert stores.max_message_bytes(()) == 2 * 2**20
    assert stores.max_message_bytes((("shuffle.maxMessageSize", "1m"),)) == 2**20
