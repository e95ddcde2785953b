# SPDX-License-Identifier: Apache-2.0
"""Random tables and programs, with Spark as the oracle: `make fuzz`, or `python -m volley.testing.fuzz --help`.

A seed enters; programs whose result on Volley is not Spark's leave, each shrunk to a small test. A program that does
not run natively proves little, so the share of native ones is part of every report.
"""
