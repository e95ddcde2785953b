# SPDX-License-Identifier: Apache-2.0
"""Who may use a checkpoint: whoever has the token of the cluster and knows the name.

Neither leaves the driver. Stores get a secret that is derived from both, and show a digest of it to others.
"""

from __future__ import annotations

import hashlib
import hmac

from volley.security import Security


def checkpoint_secret(security: Security, name: str) -> str:
    """The secret that gives access to the checkpoint of this name in a store."""
    token = (security.token or "").encode()
    return hmac.new(token, b"volley checkpoint\0" + name.encode(), hashlib.sha256).hexdigest()


def public_id(checkpoint: str) -> str:
    """A name for the secret of a checkpoint that does not give access to it."""
    return hashlib.sha256(checkpoint.encode()).hexdigest()[:12]
