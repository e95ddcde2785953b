# SPDX-License-Identifier: Apache-2.0
"""From one plan to stages that tasks can run.

A checked plan enters; a graph of stages leaves, cut at the exchanges that really move rows between tasks. Every pass
is a pure function from a plan to a plan that still gives the same rows; nothing here touches data, files or workers.
"""
