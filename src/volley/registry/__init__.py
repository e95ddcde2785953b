# SPDX-License-Identifier: Apache-2.0
"""Where daemons that nobody lists register themselves. Registrations come in, and files of addresses come out, which
sessions watch (`volley.membership`). It knows nothing of queries and is not needed while they run.
"""
