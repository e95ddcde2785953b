# SPDX-License-Identifier: Apache-2.0
"""Cuts a plan into stages that tasks can run, and adapts them as stages finish.

A checked plan enters; a graph of stages leaves, cut at the exchanges that move rows between tasks. Every pass is a
pure function from a plan to a plan with the same rows. Nothing here touches data, files or workers.
"""
