# SPDX-License-Identifier: Apache-2.0
"""The shuffle service: servers beside the workers that keep exchanged data after the workers have gone.

Chunks of map attempts enter, by partition; what was committed is served until its query ends or its driver is silent
for too long. A server never decides which attempt counts for a query, and never gives less than what was committed.
"""
