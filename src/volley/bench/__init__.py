# SPDX-License-Identifier: Apache-2.0
"""Volley beside Spark and plain DataFusion, on the same queries, files and cores.

Query texts and engines enter; timed runs, compared rows and a table leave. A figure is never shown without the run
behind it, and nothing outside the command line and the tests depends on this package.
"""
