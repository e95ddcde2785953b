# SPDX-License-Identifier: Apache-2.0
"""PySpark programs that a benchmark runs as they are. They import PySpark and nothing of Volley."""
