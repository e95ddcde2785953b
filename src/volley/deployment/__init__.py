# SPDX-License-Identifier: Apache-2.0
"""Where native tasks run: one module for each transport.

The options of a session enter. Workers behind a `Transport` leave, with the paths by which rows move between them and
Spark. Nothing outside this package may know which transport a session uses.
"""
