# SPDX-License-Identifier: Apache-2.0
"""Where native tasks run: one module for each transport.

The options of a session enter, workers behind a `Transport` leave, and the ways in which rows of Spark reach them and
theirs reach Spark. Nothing outside this package may know which transport a session uses.
"""
