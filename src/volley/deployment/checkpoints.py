# SPDX-License-Identifier: Apache-2.0
"""The checkpoint of a session: where its finished stages are kept for later runs of the same program."""

from __future__ import annotations

import datafusion
import pyarrow as pa
import pyspark

from volley.config import Config
from volley.coordinator.checkpoint import Checkpoint
from volley.deployment.base import read_security, shared_store
from volley.errors import ConfigError
from volley.rpc.handshake import Identity
from volley.shuffle.base import CheckpointStore
from volley.shuffle.checkpoint_ids import checkpoint_secret
from volley.version import __version__


def open_checkpoint(config: Config, *, takes_over: bool = True) -> Checkpoint | None:
    """The checkpoint that the session names; None if it names none. ConfigError if its store cannot keep any."""
    if not config.shuffle_checkpoint:
        return None
    store = shared_store(config)
    if store is None or not isinstance(store, CheckpointStore):
        raise ConfigError(
            f"spark.volley.shuffle.store={config.shuffle_store} cannot keep checkpoints.",
            hint="Use shuffle servers (service) or the URI of a folder; or unset spark.volley.shuffle.checkpoint.",
        )
    engine = Identity.of_this_process("")
    versions = (
        f"volley {__version__}",
        f"protocol {engine.protocol_version}",
        f"datafusion {datafusion.__version__}",
        f"hash {engine.hash_fingerprint}",
        f"pyarrow {pa.__version__}",
        f"pyspark {pyspark.__version__}",
    )
    secret = checkpoint_secret(read_security(config), config.shuffle_checkpoint)
    return Checkpoint(store, secret, config.shuffle_checkpoint_seconds, versions, takes_over)
