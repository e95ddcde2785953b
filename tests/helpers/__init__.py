# SPDX-License-Identifier: Apache-2.0
"""Code that several test modules share. It imports no test; what other projects need is in `volley.testing`."""
