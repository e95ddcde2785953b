# SPDX-License-Identifier: Apache-2.0
"""The shuffle service: servers that keep exchanged data when the workers that wrote it have gone.

Chunks of map attempts enter, by partition. Committed attempts are served until their query ends or its lease expires. A
server never decides which attempt wins, and never serves less than was committed.
"""
