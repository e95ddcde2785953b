# SPDX-License-Identifier: Apache-2.0
"""One small translation for each Catalyst class, by family.

A call and its lowered arguments enter; a DataFusion expression with exactly the call's Arrow type leaves. A
translation must be exact or fail on the data. The support table refuses calls for which neither is possible.
"""
