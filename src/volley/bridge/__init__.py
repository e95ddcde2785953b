# SPDX-License-Identifier: Apache-2.0
"""Converts between native results and PySpark, and moves rows between the two engines.

Native batches enter, and leave as what PySpark's callers expect: tables under Spark's column names and types.
No operator runs here.
"""
