# SPDX-License-Identifier: Apache-2.0
"""Spark's physical plan as plain data.

A JVM plan enters. Frozen dataclasses leave: nodes, expressions and types that can be compared, printed and sent.
This package never decides whether a plan can run natively, and never guesses: an unreadable plan raises CaptureError.
"""
