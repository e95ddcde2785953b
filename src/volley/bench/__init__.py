# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: Volley, Spark and plain DataFusion on the same queries, files and cores.

Query texts and engines enter; timed runs, compared rows and a table leave. Every figure comes from a measured run. Only
the command line and the tests depend on this package.
"""
