# SPDX-License-Identifier: Apache-2.0
"""The dashboard: pages in a browser over the history and the health of daemons.

It reads what programs have written to the history, so it shows any program that writes to the same folder, also
while its queries run. It changes nothing: every request is a GET.
"""
