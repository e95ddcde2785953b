# SPDX-License-Identifier: Apache-2.0
"""Formats the results of a benchmark as a table."""

from __future__ import annotations

from rich.table import Table

from volley.bench.run import Result, Results


def results_table(results: Results) -> Table:
    """One row per query with the seconds of the best run; the last row has the totals."""
    table = Table(
        title=f"{results.suite}, scale {results.scale:g}",
        caption=_caption(results),
        caption_justify="left",
        show_footer=True,
    )
    totals = {
        engine: sum(r.seconds for r in results.results if r.engine == engine) for engine in results.engines
    }
    table.add_column("query", footer="all")
    for engine in results.engines:
        table.add_column(f"{engine} s", justify="right", footer=f"{totals[engine]:.2f}")
    if "volley" in results.engines:
        table.add_column("plan s", justify="right", footer=_sum(results, "planning_seconds"))
        table.add_column("capture s", justify="right", footer=_sum(results, "capture_seconds"))
        table.add_column("run s", justify="right", footer=_sum(results, "execution_seconds"))
        if "spark" in results.engines:
            mean = results.geometric_mean(results.ratio_to_spark)
            table.add_column("to Spark", justify="right", footer=_times(mean))
        if "datafusion" in results.engines:
            mean = results.geometric_mean(results.ratio_to_datafusion)
            table.add_column("to DataFusion", justify="right", footer=_number(mean))
        if "embedded" in results.engines:
            mean = results.geometric_mean(results.ratio_to_embedded)
            table.add_column("to embedded", justify="right", footer=_number(mean))
        table.add_column("native")
        table.add_column("Spark tasks", justify="right")
        if any(result.rows_match is not None for result in results.results):
            table.add_column("rows")
    for query in results.queries:
        table.add_row(*_cells(results, query))
    return table


def _cells(results: Results, query: str) -> list[str]:
    cells = [query]
    cells += [_seconds(result) for engine in results.engines if (result := results.of(query, engine))]
    ours = results.of(query, "volley")
    if ours is None:
        return cells
    best = ours.best
    cells += [_number(part) for part in (best.planning_seconds, best.capture_seconds, best.execution_seconds)]
    if "spark" in results.engines:
        cells.append(_times(results.ratio_to_spark(query)))
    if "datafusion" in results.engines:
        cells.append(_number(results.ratio_to_datafusion(query)))
    if "embedded" in results.engines:
        cells.append(_number(results.ratio_to_embedded(query)))
    cells.append("yes" if best.native else "[red]no[/]")
    cells.append(str(best.spark_tasks))
    if ours.rows_match is not None:
        cells.append("same" if ours.rows_match else "[red]differ[/]")
    return cells


def _caption(results: Results) -> str:
    lines = []
    if {"volley", "spark"} <= set(results.engines):
        lines.append(
            "faster than Spark: Spark's seconds divided by Volley's, both with planning; geometric mean."
        )
    if {"volley", "datafusion"} <= set(results.engines):
        lines.append(
            "to DataFusion: Volley's seconds without Spark's planning, divided by plain DataFusion's; geometric mean."
        )
    if {"volley", "embedded"} <= set(results.engines):
        lines.append(
            "to embedded: seconds on the workers divided by those in one process, both without Spark's planning;"
            " geometric mean."
        )
    return "\n".join(lines)


def _seconds(result: Result) -> str:
    return f"{result.seconds:.3f}"


def _sum(results: Results, part: str) -> str:
    return f"{sum(getattr(r.best, part) or 0.0 for r in results.results if r.engine == 'volley'):.2f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}x"
