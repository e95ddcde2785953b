# SPDX-License-Identifier: Apache-2.0
"""What tests of Volley, here or in a program that uses it, are written with.

A query enters, and an assertion that Spark gives the same rows leaves; an implementation of a protocol enters, and
its contract suite leaves. Nothing in the product imports this package.
"""
