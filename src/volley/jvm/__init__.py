# SPDX-License-Identifier: Apache-2.0
"""Evaluates Spark's own expressions over Arrow batches, in the driver's JVM or in one beside a worker.

A Catalyst expression of a captured plan enters and becomes a program: generated code of Spark behind a number. Arrow
columns go in, a column of the result comes out. This package never decides what the JVM evaluates.
"""
