# SPDX-License-Identifier: Apache-2.0
"""Group-by and join queries over generated tables, after the well-known benchmark of data frame libraries.

The data is our own: `x` for the groups, and for the joins `x` with two tables of 90 rows, by numbers and by text, and
one with a hundredth of the rows of `x`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from volley.bench.columns import map_numbers
from volley.bench.data import cache_directory, generate_once

ROWS_PER_SCALE = 10_000_000
TABLES = ("x", "small", "medium", "big")
_VERSION = 1
_FILES = 4
# Groups of the coarse keys, whatever the scale.
_COARSE = 100

_TEXTS = {
    "g01": "select id1, sum(v1) as v1 from x group by id1",
    "g02": "select id1, id2, sum(v1) as v1 from x group by id1, id2",
    "g03": "select id3, sum(v1) as v1, avg(v3) as v3 from x group by id3",
    "g04": "select id4, avg(v1) as v1, avg(v2) as v2, avg(v3) as v3 from x group by id4",
    "g05": "select id6, sum(v1) as v1, sum(v2) as v2, sum(v3) as v3 from x group by id6",
    "g06": "select id4, id5, stddev(v3) as sd_v3, max(v3) as max_v3 from x group by id4, id5",
    "g07": "select id3, max(v1) - min(v2) as range_v1_v2 from x group by id3",
    "g08": """
        select id6, v3 from (
            select id6, v3, row_number() over (partition by id6 order by v3 desc) as place from x
        ) ranked
        where place <= 2""",
    "g09": "select id2, id4, power(corr(v1, v2), 2) as r2 from x group by id2, id4",
    "g10": """
        select id1, id2, id3, id4, id5, id6, sum(v3) as v3, count(*) as rows
        from x group by id1, id2, id3, id4, id5, id6""",
    "j01": """
        select count(*) as rows, sum(x.v1) as v1, sum(small.v2) as v2
        from x join small on x.id4 = small.id4""",
    "j02": """
        select count(*) as rows, sum(x.v1) as v1, sum(medium.v2) as v2
        from x join medium on x.id5 = medium.id5""",
    "j03": """
        select count(*) as rows, sum(x.v1) as v1, sum(medium.v2) as v2
        from x left join medium on x.id5 = medium.id5""",
    "j04": """
        select count(*) as rows, sum(x.v1) as v1, sum(medium.v2) as v2
        from x join medium on x.id2 = medium.id2""",
    "j05": """
        select count(*) as rows, sum(x.v1) as v1, sum(big.v2) as v2
        from x join big on x.id6 = big.id6""",
}
QUERIES: tuple[str, ...] = tuple(_TEXTS)


def query_text(name: str) -> str:
    return _TEXTS[name]


def h2o_data(scale: float, directory: Path | None = None) -> Path:
    """Return the directory with one folder per table; generate it if it does not exist."""
    home = directory or cache_directory("h2o")
    return generate_once(
        home / f"scale-{scale:g}-v{_VERSION}", "H2O", lambda partial: _generate(scale, partial)
    )


def _generate(scale: float, target: Path) -> None:
    rows = max(_COARSE * _FILES, round(ROWS_PER_SCALE * scale))
    fine = max(_COARSE, rows // _COARSE)
    for table in TABLES:
        (target / table).mkdir()
    for part in range(_FILES):
        of_part = rows // _FILES
        draw = np.random.default_rng([_VERSION, part])
        id4, id5, id6 = (draw.integers(1, most, of_part, endpoint=True) for most in (_COARSE, _COARSE, fine))
        columns = {
            "id1": _names(draw.integers(1, _COARSE, of_part, endpoint=True), 3),
            "id2": _names(draw.integers(1, _COARSE, of_part, endpoint=True), 3),
            "id3": _names(draw.integers(1, fine, of_part, endpoint=True), 10),
            "id4": id4,
            "id5": id5,
            "id6": id6,
            "v1": draw.integers(1, 5, of_part, endpoint=True),
            "v2": draw.integers(1, 15, of_part, endpoint=True),
            "v3": draw.uniform(0, 100, of_part).round(6),
        }
        pq.write_table(pa.table(columns), target / "x" / f"part-{part}.parquet")
        big = {
            "id6": np.arange(1 + part, fine + 1, _FILES),
            "v2": draw.uniform(0, 100, len(range(part, fine, _FILES))),
        }
        pq.write_table(pa.table(big), target / "big" / f"part-{part}.parquet")
    draw = np.random.default_rng(_VERSION)
    # One key in ten has no match.
    keys = np.arange(1, _COARSE * 9 // 10 + 1)
    small = {"id4": keys, "v2": draw.uniform(0, 100, len(keys))}
    pq.write_table(pa.table(small), target / "small" / "part-0.parquet")
    medium = {"id2": _names(keys, 3), "id5": keys, "v2": draw.uniform(0, 100, len(keys))}
    pq.write_table(pa.table(medium), target / "medium" / "part-0.parquet")


def _names(numbers: np.ndarray, digits: int) -> pa.Array:
    """The keys as text: id016."""
    return map_numbers(numbers, lambda number: f"id{number:0{digits}}")
