# SPDX-License-Identifier: Apache-2.0
"""A forecast for one frame: who would run it, roughly what that gains, and what to change to gain more."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

from pyspark.sql import DataFrame

from volley.codes import remedy_of
from volley.connect.local_server import classic_frame
from volley.errors import ConfigError
from volley.observe.display import show, show_at_end
from volley.observe.explain import Explanation, explain_silently
from volley.qualification.forecast import SPEEDUP, estimate_gain
from volley.support.reasons import Engine, Reason, Unsupported


@dataclass(frozen=True)
class FrameForecast:
    """What Volley would do for a frame, on or off. `explanation` has the verdict on each operator.

    `times_faster` is an estimate: native work is taken to be `speedup` times as fast as Spark's, and all operators to
    cost the same.
    """

    explanation: Explanation
    speedup: float

    @property
    def engine(self) -> Engine:
        if not self.reasons:
            return "native"
        return "mixed" if self.explanation.spark_inputs or self.explanation.subplans else "spark"

    @property
    def fraction(self) -> float:
        """The share of operators that have a native form."""
        return self.explanation.fraction

    @property
    def reasons(self) -> tuple[Unsupported, ...]:
        """What is in the way."""
        return tuple(reason for reason in self.explanation.reasons if reason.reason is not Reason.DISABLED)

    @property
    def advice(self) -> tuple[str, ...]:
        """What to change to gain more, for each code of `reasons`."""
        codes = dict.fromkeys(str(reason.reason) for reason in self.reasons)
        return tuple(f"{code}: {remedy}" for code in codes if (remedy := remedy_of(code)))

    @property
    def times_faster(self) -> float:
        return 1 / (1 - estimate_gain(self.engine, self.fraction, self.speedup))

    @property
    def assumptions(self) -> tuple[str, ...]:
        return (
            f"Native work is taken to be {self.speedup:g} times as fast as Spark's.",
            "All operators of the query are taken to cost the same.",
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "engine": self.engine,
            "fraction": self.fraction,
            "times_faster": self.times_faster,
            "reasons": [str(reason) for reason in self.reasons],
            "advice": list(self.advice),
            "assumptions": list(self.assumptions),
        }

    def __str__(self) -> str:
        lines = [self._headline()]
        lines += [f"  {reason}" for reason in self.reasons]
        lines += [f"  To gain more: {advice}" for advice in self.advice]
        return "\n".join([*lines, *(f"  * {line}" for line in self.assumptions)])

    def __repr__(self) -> str:
        return f"<volley.qualify: {self._headline()}>"

    def _repr_html_(self) -> str:
        lines = [*map(str, self.reasons), *(f"To gain more: {advice}" for advice in self.advice)]
        items = "".join(f"<li>{escape(line)}</li>" for line in lines)
        notes = "".join(f"<div><small>{escape(line)}</small></div>" for line in self.assumptions)
        return f"<details open><summary><b>{escape(self._headline())}</b></summary><ul>{items}</ul>{notes}</details>"

    def _ipython_display_(self) -> None:
        show_at_end(self)

    def _headline(self) -> str:
        who = {
            "native": "Volley would run this query",
            "mixed": "Volley and Spark would run this query",
            "spark": "Spark would run this query",
        }
        share = f"{self.fraction:.0%} of its operators are native"
        return f"{who[self.engine]}: {share}, about {self.times_faster:.1f} times as fast as Spark alone"


def qualify(frame: DataFrame, speedup: float = SPEEDUP) -> FrameForecast:
    """Forecast what Volley would do for a frame, whether it is on or off. Printed, or shown as HTML; nothing runs.

    `speedup` is how many times faster native work is taken to be.
    """
    if not speedup >= 1:
        raise ConfigError(f"speedup={speedup!r}: expected a number of at least 1.")
    forecast = FrameForecast(explain_silently(classic_frame(frame)), speedup)
    show(forecast)
    return forecast
