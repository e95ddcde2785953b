# SPDX-License-Identifier: Apache-2.0
"""Random aggregate calls. Each has one answer: ties and the order of rows do not show."""

from __future__ import annotations

from volley.testing.fuzz.choices import Choices
from volley.testing.fuzz.grammar import NUMBERS, ORDERABLE, TYPE_OF, Expressions

_MOMENTS = ("stddev", "variance", "stddev_pop", "var_pop", "skewness", "kurtosis")
_PAIRS = (
    "corr",
    "covar_pop",
    "covar_samp",
    "regr_count",
    "regr_slope",
    "regr_intercept",
    "regr_r2",
    "regr_sxy",
)
_SQUARES = ("regr_avgx", "regr_avgy", "regr_sxx", "regr_syy")
_RANKED = (
    "percentile({}, 0.3)",
    "median({})",
    "percentile_approx({}, 0.5)",
    "percentile_approx({}, 0.25, 100)",
    "cast(approx_percentile({}, array(0.1, 0.99, 0.0)) as string)",
    "percentile_cont(0.5) within group (order by {})",
    "percentile_disc(0.4) within group (order by {} desc)",
)
# They cannot be DISTINCT, or it would show in the order of their arguments.
_NEVER_DISTINCT = (
    "*",
    "std",
    "var",
    "skew",
    "kurt",
    "corr",
    "regr",
    "percentile",
    "median",
    "mode",
    "_by",
    "sort",
    "struct",
    "agg",
)


def draw_call(choices: Choices, draw: Expressions, *, window: bool = False) -> tuple[str, str]:
    """An aggregate call, and the type of its result as far as its kind goes."""
    number, any_kind = choices.pick(NUMBERS), choices.pick(ORDERABLE)
    # A sum of floats depends on the order of the rows if they differ much.
    summed = draw.draw(number, 1) if number != "float" else f"round({draw.leaf('float')}, 1)"
    value = draw.draw(any_kind, 1)
    call, type = choices.weighted(
        (
            (6, ("count(*)", "int")),
            (6, (f"count({value})", "int")),
            (10, (f"sum({summed})", TYPE_OF[number])),
            (6, (f"avg({summed})", "decimal" if number == "dec" else "double")),
            (10, (f"{choices.pick(['min', 'max'])}({value})", TYPE_OF[any_kind])),
            (2, (f"bool_or({draw.condition()})", "boolean")),
            (2, (f"every({draw.condition()})", "boolean")),
            (2, (f"count_if({draw.condition()})", "int")),
            (3, (f"{choices.pick(_MOMENTS)}({draw.leaf('int')})", "double")),
            (2, (f"bit_{choices.pick(['and', 'or', 'xor'])}({draw.leaf('int')})", "int")),
            (2, (f"try_sum({draw.draw('int', 1)})", "int")),
            (2, (f"try_avg({draw.draw('dec', 1)})", "decimal")),
            (2, (f"{choices.pick(_PAIRS)}({draw.leaf('int')}, {draw.leaf('int')})", "double")),
            (3, (choices.pick(_RANKED).format(draw.leaf("int")), "double")),
            (2, (f"approx_count_distinct({value})", "int")),
            (2, (f"mode({value}, true)", TYPE_OF[any_kind])),
            (2, (f"{choices.pick(['min', 'max'])}_by({value}, {value})", TYPE_OF[any_kind])),
            (2, (f"cast(sort_array(collect_{choices.pick(['list', 'set'])}({value})) as string)", "string")),
            (1, (f"{choices.pick(_SQUARES)}({draw.leaf('int')}, {draw.leaf('int')})", "double")),
            (2, (f"{choices.pick(['min', 'max'])}(struct({value}, {summed}))", "other")),
            (1, (f"max({draw.leaf('struct')}).a", "int")),
            (2, (f"count({value}, {summed})", "int")),
            (1, (f"size(collect_set({value}))", "int")),
            (1, (f"listagg({draw.leaf('str')}, '-') within group (order by {draw.leaf('str')})", "string")),
        )
    )  # fmt: skip
    if not window:
        if choices.percent(20) and not any(name in call for name in _NEVER_DISTINCT):
            call = call.replace("(", "(distinct ", 1)
        if choices.percent(15) and not call.startswith("cast"):
            call += f" filter (where {draw.condition()})"
    return call, type
