# SPDX-License-Identifier: Apache-2.0
"""Runs a mixed load under faults for a long time. Memory, descriptors, disk and latencies over time come out.

The processes are those of the chaos suite. Nothing here is imported by the product.
"""
