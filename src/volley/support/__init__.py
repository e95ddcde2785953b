# SPDX-License-Identifier: Apache-2.0
"""Decides which parts of a plan run natively.

A captured plan enters; a verdict leaves, with a reason for everything that does not run natively. The support tables
also feed explain and the documentation. Nothing here runs, changes or translates a plan, and whatever the tables do
not list is refused.
"""
