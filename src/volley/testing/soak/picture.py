# SPDX-License-Identifier: Apache-2.0
"""Draws samples as an SVG: one panel for each quantity, one line for each series."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from volley.testing.soak.samples import Sample, percentile

_WIDTH, _HEIGHT = 760, 150
_LEFT, _TOP, _GAP = 70, 34, 46
_COLORS = ("#3b6ea5", "#c0722f", "#8a3b5c")
_WINDOWS = 30

Series = Mapping[str, Sequence[tuple[float, float]]]


def draw(samples: Sequence[Sample], title: str) -> str:
    """The picture of a soak."""
    panels: list[tuple[str, Series]] = [
        (
            "resident memory of the largest daemon, MB",
            {"": _line(samples, lambda s: s.resident_bytes / 2**20)},
        ),
        ("most descriptors of a daemon", {"": _line(samples, lambda s: float(s.descriptors))}),
        ("disk of all daemons, MB", {"": _line(samples, lambda s: s.disk_bytes / 2**20)}),
        ("latency, s", _latencies(samples)),
    ]
    end = max((sample.seconds for sample in samples), default=1.0)
    height = _TOP + len(panels) * (_HEIGHT + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH + _LEFT + 20} {height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="18" font-size="14">{title}</text>',
    ]
    for number, (name, series) in enumerate(panels):
        parts += _panel(name, series, end, _TOP + number * (_HEIGHT + _GAP))
    return "\n".join([*parts, "</svg>", ""])


def _line(samples: Sequence[Sample], value: Callable[[Sample], float]) -> list[tuple[float, float]]:
    return [(sample.seconds, value(sample)) for sample in samples]


def _latencies(samples: Sequence[Sample]) -> Series:
    """Percentiles over windows of several samples, which have few queries each."""
    step = max(1, len(samples) // _WINDOWS)
    series: dict[str, list[tuple[float, float]]] = {"p50": [], "p95": [], "p99": []}
    for first in range(0, len(samples), step):
        window = samples[first : first + step]
        found = [seconds for sample in window for seconds in sample.latencies]
        if found:
            for name, line in series.items():
                line.append((window[-1].seconds, percentile(found, int(name[1:]))))
    return series


def _panel(name: str, series: Series, end: float, top: int) -> list[str]:
    most = max((value for line in series.values() for _, value in line), default=0.0) or 1.0
    base = top + _HEIGHT + 12
    parts = [
        f'<text x="{_LEFT}" y="{top + 6}">{name}</text>',
        f'<line x1="{_LEFT}" y1="{base}" x2="{_LEFT + _WIDTH}" y2="{base}" stroke="#888888"/>',
        f'<text x="{_LEFT - 6}" y="{base}" text-anchor="end">0</text>',
        f'<text x="{_LEFT - 6}" y="{top + 22}" text-anchor="end">{most:.4g}</text>',
        f'<text x="{_LEFT + _WIDTH}" y="{base + 14}" text-anchor="end">{end / 60:.0f} min</text>',
    ]
    for number, (label, line) in enumerate(series.items()):
        color = _COLORS[number % len(_COLORS)]
        points = " ".join(
            f"{_LEFT + _WIDTH * at / end:.1f},{base - (_HEIGHT - 6) * value / most:.1f}" for at, value in line
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"/>')
        if label:
            parts.append(f'<text x="{_LEFT + 90 + 50 * number}" y="{top + 6}" fill="{color}">{label}</text>')
    return parts
