# SPDX-License-Identifier: Apache-2.0
"""Tables of the health of daemons."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from volley.cluster import Unhealthy
from volley.rpc.control import Health
from volley.rpc.shuffle_messages import ServiceHealth
from volley.worker.budget import format_size


def health_table(addresses: Sequence[str], health: Sequence[Health | Unhealthy | None]) -> Table:
    table = Table("worker", "state", "tasks", "slots", "exchanged data", "of", "memory", "drivers", "version")
    for address, state in zip(addresses, health, strict=True):
        if state is None or isinstance(state, Unhealthy):
            table.add_row(address, f"[red]{state.status if state else 'gone'}[/]", *[""] * 7)
        else:
            table.add_row(
                address,
                state.status,
                str(state.running),
                str(state.slots),
                format_size(state.held_bytes),
                format_size(state.shuffle_limit_bytes),
                format_size(state.memory_bytes),
                str(state.drivers),
                state.version,
            )
    return table


def service_table(addresses: Sequence[str], health: Sequence[ServiceHealth | None]) -> Table:
    table = Table(
        "shuffle server",
        "state",
        "applications",
        "queries",
        "committed",
        "kept",
        "in memory",
        "of",
        "on disk",
    )
    for address, state in zip(addresses, health, strict=True):
        if state is None:
            table.add_row(address, "[red]gone[/]", *[""] * 7)
        else:
            table.add_row(
                address,
                state.status,
                str(state.applications),
                str(state.queries),
                str(state.committed),
                format_size(state.held_bytes),
                format_size(state.memory_bytes),
                format_size(state.memory_limit_bytes),
                format_size(state.disk_bytes),
            )
    return table
