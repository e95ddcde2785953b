# SPDX-License-Identifier: Apache-2.0
"""How the coordinator reaches workers, and workers each other.

Task descriptions enter; events, blocks and result batches leave. A transport carries them and knows nothing of
plans: it must never compute who reads what.
"""
