# SPDX-License-Identifier: Apache-2.0
"""The seam with PySpark: `volley.enable` wraps the methods through which actions pass, classic and Spark Connect.

A call of a PySpark method enters, and what that method returns leaves. The rest of Volley never patches PySpark, except
for the methods that stop queries (`query.interrupts`).
"""
