# SPDX-License-Identifier: Apache-2.0
"""Java classes for tests, compiled in a session's JVM by the compiler that Spark ships."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from pyspark.sql import SparkSession


def compile_java(spark: SparkSession, file: str, parent: Any = None, **words: str) -> Any:
    """The class loader with the classes of a Java file of this package, in which `words` are replaced.

    It also knows the classes of `parent`, another such loader.
    """
    source = files("volley.testing").joinpath(file).read_text()
    for word, text in words.items():
        source = source.replace(word, text)
    jvm: Any = spark._jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    if parent is None:
        parent = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    compiler.setParentClassLoader(parent)
    compiler.cook(source)
    return compiler.getClassLoader()
