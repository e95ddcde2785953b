# SPDX-License-Identifier: Apache-2.0
"""Runs queries and writes under faults. A seed goes in; right answers, clean failures, wrong rows and leaks come out.

The processes are real, and faults are what an operating system or a network does to them. Nothing here is imported by
the product.
"""
