# SPDX-License-Identifier: Apache-2.0
"""Translates plans to DataFusion.

The plan of a task and its inputs enter; a DataFusion plan leaves, with exactly Spark's types. Evaluating it gives
Spark's values or fails, and then Spark runs the query: a translation must never return a value that Spark would not.
"""
