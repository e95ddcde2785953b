# SPDX-License-Identifier: Apache-2.0
"""Spark's physical plan as plain data.

A JVM plan enters, frozen dataclasses leave: nodes, expressions and types that compare, print and travel.
Nothing here decides whether a plan can run natively, and nothing is ever guessed: what cannot be read is an error.
"""
