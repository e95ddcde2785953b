# SPDX-License-Identifier: Apache-2.0
"""A forecast as a page of HTML, and as lines of CSV."""

from __future__ import annotations

import csv
import io
from html import escape

from volley.codes import remedy_of
from volley.qualification.forecast import Forecast

_STYLE = """body{font:14px/1.5 system-ui,sans-serif;margin:2em auto;max-width:72em;color:#1c2430;background:#fff}
table{border-collapse:collapse;width:100%;margin:1em 0}th,td{border-bottom:1px solid #d9dee6;padding:4px 10px;
text-align:left}td.n,th.n{text-align:right}.native{color:#1f7a4d}.mixed{color:#8a6100}.spark{color:#b5442a}
@media(prefers-color-scheme:dark){body{color:#e4e9f0;background:#12161c}th,td{border-color:#303a47}
.native{color:#5fc895}.mixed{color:#e0b04a}.spark{color:#f0907a}}"""


def to_html(forecast: Forecast) -> str:
    """A page of its own, with nothing loaded from elsewhere."""
    obstacles = "".join(
        f"<tr><td>{escape(verdict.reason)}</td><td>{escape(verdict.what)}</td><td class=n>{count}</td>"
        f"<td class=n>{seconds:.1f}</td><td>{escape(remedy_of(verdict.reason))}</td></tr>"
        for verdict, count, seconds in forecast.obstacles
    )
    queries = "".join(
        f"<tr><td>{escape(query.application)}</td><td class=n>{query.query}</td><td>{escape(query.description)}</td>"
        f"<td class={query.engine}>{query.engine}</td><td class=n>{query.fraction:.0%}</td>"
        f"<td class=n>{query.seconds:.1f}</td><td class=n>{query.saved_seconds:.1f}</td>"
        f"<td>{escape(', '.join(f'{p.reason} {p.what}' for p in query.problems))}</td></tr>"
        for query in forecast.queries
    )
    assumptions = "".join(f"<li>{escape(line)}</li>" for line in forecast.assumptions)
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Volley forecast</title>'
        f"<style>{_STYLE}</style></head><body><h1>What Volley would do</h1><p>{escape(headline(forecast))}</p>"
        f"<h2>What is in the way</h2><table><tr><th>reason</th><th>what</th><th class=n>queries</th>"
        f"<th class=n>their seconds</th><th>to gain more</th></tr>{obstacles}</table>"
        f"<h2>Queries</h2><table><tr><th>application</th>"
        f"<th class=n>query</th><th>description</th><th>engine</th><th class=n>native</th><th class=n>seconds</th>"
        f"<th class=n>saved</th><th>why</th></tr>{queries}</table><h2>Assumptions</h2>"
        f"<ul>{assumptions}</ul></body></html>"
    )


def to_csv(forecast: Forecast) -> str:
    """One line per query."""
    lines = io.StringIO()
    writer = csv.writer(lines)
    writer.writerow(
        ("application", "query", "description", "engine", "fraction", "seconds", "saved_seconds", "why")
    )
    for query in forecast.queries:
        why = "; ".join(f"{problem.reason} {problem.what}" for problem in query.problems)
        figures = (f"{query.fraction:.4f}", f"{query.seconds:.3f}", f"{query.saved_seconds:.3f}")
        writer.writerow(
            (query.application, query.query, _plain(query.description), query.engine, *figures, why)
        )
    return lines.getvalue()


def headline(forecast: Forecast) -> str:
    engines = forecast.engines
    return (
        f"{len(forecast.queries)} queries, {forecast.seconds:.1f} s: {engines['native']} native, "
        f"{engines['mixed']} mixed, {engines['spark']} on Spark; about {forecast.saved_seconds:.1f} s less."
    )


def _plain(text: str) -> str:
    """Spreadsheets take a text that begins like a formula for one."""
    return f"'{text}" if text[:1] in "=+-@\t\r" else text
