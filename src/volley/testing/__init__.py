# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of Volley, and of programs that use or extend it.

A query enters, and an assertion that Spark returns the same rows leaves; an implementation of a protocol enters, and
its contract tests leave. The rest of Volley never imports this package.
"""
