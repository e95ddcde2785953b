# SPDX-License-Identifier: Apache-2.0
"""`volley bench compare`: two saved benchmarks, with what is noise and what is not."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.table import Table

from volley.bench.regression import Band, Comparison, compare, read_results
from volley.cli.console import json_option, new_console, save

_COLOURS = {"slower": "red", "faster": "green", "same": "", "unknown": "dim"}


@click.command("compare")
@click.argument("old", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("new", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--engine", default="volley", show_default=True, help="The engine to compare.")
@click.option(
    "--reference",
    help="An engine in both files that did not change: its seconds say how much slower the machine was. "
    "Default: the first of another project. none: do not correct.",
)
@click.option(
    "--threshold",
    type=click.FloatRange(min=0),
    default=0.02,
    show_default=True,
    help="Smaller changes count as noise, as a share of the old seconds.",
)
@json_option
def compare_command(
    old: Path, new: Path, engine: str, reference: str | None, threshold: float, json_file: Path | None
) -> None:
    """Compare two files that `--json` of a suite wrote. Exit status 1 if a query became slower.

    The runs of each query give its noise band: only what is outside of it counts. Use at least three runs, better five.

    \b
    Examples:
      volley bench compare old.json new.json
      volley bench compare old.json new.json --engine datafusion --reference none
    """
    console = new_console()
    found = compare(
        read_results(old), read_results(new), engine, "" if reference == "none" else reference, threshold
    )
    console.print(_table(found))
    if found.missing:
        console.print(f"Only in one of the files: {', '.join(found.missing)}")
    slower, unknown = found.of("slower"), found.of("unknown")
    if unknown:
        console.print("A query that ran only once has no noise band: run with --runs 5.")
    console.print(
        f"{len(slower)} slower, {len(found.of('faster'))} faster, {len(found.of('same'))} within noise"
    )
    save(console, json_file, found.to_dict())
    sys.exit(1 if slower or found.verdict == "slower" else 0)


def _table(found: Comparison) -> Table:
    caption = f"new / old by the medians of runs; band: what noise explains. {found.engine}"
    if found.reference:
        caption += f", corrected by {found.reference}, for which the machine took {found.drift:.3f} as long"
    table = Table(caption=caption, caption_justify="left", show_footer=True)
    old, new = (
        sum(getattr(change, side) for change in found.changes) for side in ("old_seconds", "new_seconds")
    )
    table.add_column("query", footer="all")
    table.add_column("old s", justify="right", footer=f"{old:.2f}")
    table.add_column("new s", justify="right", footer=f"{new:.2f}")
    table.add_column("new / old", justify="right", footer=f"{found.total.ratio:.3f}")
    table.add_column("band", justify="right", footer=_text(found.total))
    table.add_column("", footer=found.verdict)
    table.add_column("changed counts")
    for change in found.changes:
        colour = _COLOURS[change.verdict]
        table.add_row(
            change.query,
            f"{change.old_seconds:.3f}",
            f"{change.new_seconds:.3f}",
            f"{change.band.ratio:.3f}",
            _text(change.band),
            f"[{colour}]{change.verdict}[/]" if colour else change.verdict,
            ", ".join(f"{name} {was:,} -> {now:,}" for name, (was, now) in change.counts.items()),
        )
    return table


def _text(band: Band) -> str:
    return f"{band.low:.3f} - {band.high:.3f}"
