"""The health of workers as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from volley.transport.control import Health
from volley.worker.budget import size


def health_table(addresses: Sequence[str], health: Sequence[Health | None]) -> Table:
    table = Table("worker", "state", "tasks", "slots", "exchanged data", "of", "memory", "drivers")
    for address, state in zip(addresses, health, strict=True):
        if state is None:
            table.add_row(address, "[red]gone[/]", "", "", "", "", "", "")
        else:
            table.add_row(
                address,
                state.status,
                str(state.running),
                str(state.slots),
                size(state.held_bytes),
                size(state.shuffle_limit_bytes),
                size(state.memory_bytes),
                str(state.drivers),
            )
    return table
