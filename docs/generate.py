# SPDX-License-Identifier: Apache-2.0
"""Writes what is made from tables in the code and from measurements: `make docs`.

    python docs/generate.py            write the pages
    python docs/generate.py --check    status 1 when one is not up to date

The figures in the README come from docs/bench/tpch.json, which is what
`volley bench tpch --scale 1 --check --json docs/bench/tpch.json` wrote.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from volley.config import OPTIONS
from volley.support.expressions import EXPRESSIONS
from volley.support.operators import AGGREGATES, JOINS, OPERATORS, WINDOWS, Rule
from volley.support.reasons import MEANINGS

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
MEASURED = HERE / "bench" / "tpch.json"
HEADER = "<!-- Made by docs/generate.py from {source}. Change that, then run `make docs`. -->\n\n"


def configuration() -> str:
    rows = [(f"`{option.key}`", option.kind, _code(option.default), option.meaning) for option in OPTIONS]
    return (
        HEADER.format(source="src/volley/config.py")
        + "# Configuration\n\n"
        + "Options are Spark options: set them when the session is built, or on a live session with\n"
        + "`spark.conf.set`. They are read anew for every query. A bad value or an unknown name under\n"
        + "`spark.volley.` is an error, not a silent default. `volley config` prints this table.\n\n"
        + _table(("option", "type", "default", "meaning"), rows)
    )


def supported() -> str:
    parts = [
        HEADER.format(source="src/volley/support/"),
        "# What runs natively\n\n"
        "Volley reads Spark's physical plan. Each operator and each expression below runs natively with exactly\n"
        "Spark's values and types. Spark runs whatever is not listed, and `volley.explain(df)` names it.\n"
        "A query can mix both: see [Mixed queries](mixed.md).\n\n",
        _section("Operators", "operator", OPERATORS),
        _section("Joins", "kind", {kind.value: rule for kind, rule in JOINS.items()}),
        _section("Aggregate functions", "function", AGGREGATES),
        _section("Window functions", "function", WINDOWS),
        "## Expressions\n\nThe names are Catalyst classes, as in Spark's plans.\n\n",
    ]
    rules = sorted(EXPRESSIONS.items(), key=lambda item: (item[1].family, item[0]))
    for family, members in groupby(rules, key=lambda item: item[1].family):
        rows = [(f"`{name}`", rule.note) for name, rule in members]
        parts.append(f"### {family}\n\n" + _table(("expression", "notes"), rows) + "\n")
    parts.append(_reasons())
    return "".join(parts).rstrip("\n") + "\n"


def readme() -> str:
    """The README with its figures anew; the rest stays."""
    if MEASURED.exists():
        section = figures(json.loads(MEASURED.read_text(encoding="utf-8")))
    else:
        section = "No figures have been published for this version; `make bench` measures your machine.\n"
    return re.sub(
        r"(<!-- bench:begin.*?-->\n).*?(<!-- bench:end -->)",
        lambda match: match[1] + section + match[2],
        README.read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )


def figures(measure: Mapping[str, Any]) -> str:
    seconds: dict[str, dict[str, Mapping[str, Any]]] = {}
    for record in measure["results"]:
        seconds.setdefault(record["query"], {})[record["engine"]] = record
    rows = [_figure_row(query, engines) for query, engines in seconds.items()]
    summary, where = measure["summary"], measure["environment"]
    totals = summary["seconds"]
    native = sum(bool(engines["volley"]["native"]) for engines in seconds.values())
    same = sum(bool(engines["volley"]["rows_match"]) for engines in seconds.values())
    tasks = sum(engines["volley"]["spark_tasks"] for engines in seconds.values())
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
    slower = [
        q for q, engines in seconds.items() if engines["volley"]["seconds"] > engines["spark"]["seconds"]
    ]
    rows.append(
        (
            "all",
            f"{totals['volley']:.2f}",
            f"{sum(engines['volley']['planning_seconds'] for engines in seconds.values()):.2f}",
            f"{totals['spark']:.2f}",
            f"{totals['datafusion']:.2f}",
            f"{summary['times_faster_than_spark']:.1f}",
            f"{summary['ratio_to_datafusion_without_planning']:.2f}",
        )
    )
    headings = ("query", "Volley s", "of it Spark's planning", "Spark s", "DataFusion s")
    return (
        f"TPC-H at scale {measure['scale']:g}, embedded, {where['master']}, on {where['processor']} with\n"
        f"{where['memory_bytes'] / (1 << 30):.0f} GiB ({versions}, Java {where['java']}). "
        f"{native} of {len(seconds)} queries native, {same} of {len(seconds)} with Spark's rows, {tasks} Spark tasks. "
        + (f"Slower than Spark: {', '.join(slower)}. " if slower else "Ahead of Spark on every query. ")
        + "\nThe last line has sums, and geometric means of the ratios.\n\n"
        + _table((*headings, "times faster than Spark", "of DataFusion"), rows)
    )


def _figure_row(query: str, engines: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    ours, spark, plain = (engines[name] for name in ("volley", "spark", "datafusion"))
    return (
        query,
        f"{ours['seconds']:.2f}",
        f"{ours['planning_seconds']:.2f}",
        f"{spark['seconds']:.2f}",
        f"{plain['seconds']:.2f}",
        f"{spark['seconds'] / ours['seconds']:.1f}",
        f"{(ours['seconds'] - ours['planning_seconds']) / plain['seconds']:.2f}",
    )


def _section(title: str, heading: str, rules: Mapping[str, Rule]) -> str:
    rows = [
        (f"`{name}`", "native" if rule.native else f"Spark: `{rule.reason}`", rule.note)
        for name, rule in rules.items()
    ]
    return f"## {title}\n\n" + _table((heading, "runs", "notes"), rows) + "\n"


def _reasons() -> str:
    rows = [(f"`{reason}`", meaning) for reason, meaning in MEANINGS.items()]
    return (
        "## Reasons\n\nThe codes that `volley.explain(df)` and `volley.last_query(spark).reasons` give.\n\n"
        + _table(("code", "meaning"), rows)
    )


def _table(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [headings, tuple("---" for _ in headings), *rows]
    return "".join("| " + " | ".join(_cell(cell) for cell in line) + " |\n" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


PAGES = {HERE / "configuration.md": configuration, HERE / "supported.md": supported, README: readme}


def main() -> int:
    outdated = [
        page
        for page, make in PAGES.items()
        if not page.exists() or page.read_text(encoding="utf-8") != make()
    ]
    if "--check" in sys.argv[1:]:
        for page in outdated:
            print(f"{page.name} is not up to date; run `make docs`", file=sys.stderr)
        return 1 if outdated else 0
    for page in outdated:
        page.write_text(PAGES[page](), encoding="utf-8")
        print(f"wrote {page.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
