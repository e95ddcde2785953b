# SPDX-License-Identifier: Apache-2.0
"""Formats results of several engines as one table."""

from __future__ import annotations

from rich.table import Table

from volley.bench.peers.run import PeerResults
from volley.bench.run import Result

_BEST = "[bold]{}[/]"


def peers_table(results: PeerResults) -> Table:
    """One row per query with the seconds of the best run, then what sums them up."""
    common = results.common_queries
    table = Table(
        title=f"{results.suite}, scale {results.scale:g}",
        caption=(
            f"Totals are about the {len(common)} of {len(results.queries)} queries that every engine ran; means about "
            "all that Volley ran too. All figures include planning. ~: other rows than Spark's, or the first engine's."
        ),
        caption_justify="left",
    )
    table.add_column("query")
    for engine in results.engines:
        table.add_column(f"{engine} s", justify="right")
    for query in results.queries:
        found = {engine: results.of(query, engine) for engine in results.engines}
        best = min(result.seconds for result in found.values() if result)
        table.add_row(query, *(_cell(result, best) for result in found.values()))
    table.add_section()
    table.add_row("total s", *(f"{results.total_seconds(engine):.2f}" for engine in results.engines))
    table.add_row("to Volley", *(_number(results.ratio_to_volley(engine)) for engine in results.engines))
    table.add_row("CPU s", *(f"{results.cpu_seconds(engine):.2f}" for engine in results.engines))
    table.add_row("peak MiB", *(f"{results.peak_bytes(engine) / 2**20:,.0f}" for engine in results.engines))
    table.add_row("queries", *(str(results.answered(engine)) for engine in results.engines))
    return table


def engine_lines(results: PeerResults) -> list[str]:
    """The versions of the engines, and what each could not do."""
    lines = [
        f"{engine}: " + ", ".join(f"{package} {version}" for package, version in versions.items())
        for engine, versions in results.versions.items()
    ]
    for failure in results.failures:
        what = f"cannot run {failure.query}" if failure.query else "is left out"
        lines.append(f"{failure.engine} {what}: {failure.message}")
    lines += [
        f"volley leaves {result.query} to Spark: {'; '.join(result.best.reasons)}"
        for result in results.results
        if result.engine == "volley" and result.best.native is False
    ]
    lines += [
        f"{result.engine}, {result.query}: {(result.difference or '').splitlines()[0]}"
        for result in results.results
        if result.rows_match is False
    ]
    return lines


def _cell(result: Result | None, best: float) -> str:
    if result is None:
        return "-"
    text = f"{result.seconds:.3f}" + ("~" if result.rows_match is False else "")
    return _BEST.format(text) if result.seconds == best else text


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
