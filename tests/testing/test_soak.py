# SPDX-License-Identifier: Apache-2.0
"""A soak tells growth from noise, and draws what it measured."""

from __future__ import annotations

import os
import random
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from volley.testing.chaos.arena import Arena
from volley.testing.chaos.work import Work
from volley.testing.soak.__main__ import Soak
from volley.testing.soak.picture import draw
from volley.testing.soak.samples import Sample, find_growth, percentile, take_sample


def samples_of(memory: list[int]) -> list[Sample]:
    chance = random.Random(1)
    return [
        Sample(2.0 * n, bytes_, 40, 1000, tuple(chance.random() for _ in range(3)))
        for n, bytes_ in enumerate(memory)
    ]


def test_growth_is_told_from_noise() -> None:
    chance = random.Random(1)
    warm = [n * 10_000_000 for n in range(30)]
    flat = [300_000_000 + chance.randrange(40_000_000) for _ in range(60)]
    assert find_growth(samples_of(warm + flat)) == []
    rising = [300_000_000 + n * 4_000_000 for n in range(60)]
    (found,) = find_growth(samples_of(warm + rising))
    assert found.startswith("resident_bytes rose from ")
    assert find_growth(samples_of(rising)[:5]) == []


def test_a_sample_is_of_the_largest_and_of_all_directories(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(100_000))
    sample = take_sample(3.0, [os.getpid(), 2**22 - 1], [tmp_path], [0.5])
    assert sample.resident_bytes > 10_000_000
    assert sample.descriptors > 3
    assert sample.disk_bytes >= 100_000
    assert percentile([1.0, 2.0, 3.0], 50) == 2.0
    assert percentile([], 99) == 0.0


def test_the_picture_has_a_line_for_each_series() -> None:
    picture = draw(samples_of([300_000_000] * 90), "an hour")
    lines = ET.fromstring(picture).findall(".//{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 6
    assert all(len(line.attrib["points"].split()) >= 30 for line in lines)
    assert "an hour" in picture


@pytest.mark.slow
def test_a_minute(spark: SparkSession, tmp_path: Path) -> None:
    work = Work(spark, tmp_path, 3)
    with Arena("flight", "service", tmp_path / "arena") as arena:
        soak = Soak(spark, arena, work, 3)
        soak.run(60)
    assert soak.outcome.problems == []
    assert soak.outcome.answers > 3
    assert len(soak.samples) > 10
