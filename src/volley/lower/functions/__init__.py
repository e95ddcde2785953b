# SPDX-License-Identifier: Apache-2.0
"""One small translation for each Catalyst class, by family.

A call and its lowered arguments enter, a DataFusion expression of exactly the call's Arrow type leaves. A
translation must be exact or fail on the data; what cannot be either is refused by the support table beforehand.
"""
