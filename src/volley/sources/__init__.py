# SPDX-License-Identifier: Apache-2.0
"""Data sources that come with Volley: ordinary ones of PySpark, whose readers offer `discover`.

They run on plain Spark as well, and import nothing of Volley.
"""
