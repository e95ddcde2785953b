# SPDX-License-Identifier: Apache-2.0
"""Looks into the pickle of a class without running anything of it."""

from __future__ import annotations

import dis
import io
import pickle
from typing import Any

# Where the arguments of `types.CodeType` are, in every release of Python that Spark 4 runs on.
_CODE, _NAME = 6, 11
_LOADS = {dis.opmap[name] for name in dis.opmap if name.startswith(("LOAD_FAST", "LOAD_CLOSURE"))}
# These have two local variables in one argument.
_DOUBLE = {dis.opmap[name] for name in dis.opmap if name.count("_FAST") == 2}
_CELL = dis.opmap.get("MAKE_CELL")


def methods_use_object(pickled: bytes, name: str) -> bool:
    """Whether a method `name` of a class in the pickle uses its first parameter, or no such method is found."""
    seen: list[tuple[Any, ...]] = []
    try:
        _Reader(io.BytesIO(pickled), seen).load()
    except Exception:  # a pickle may be anything, and one that cannot be read shows nothing
        return True
    codes = [found[_CODE] for found in seen if len(found) > _NAME and found[_NAME] == name]
    return not codes or any(not isinstance(code, bytes) or _uses_first(code) for code in codes)


def _uses_first(code: bytes) -> bool:
    for opcode, argument in zip(code[::2], code[1::2], strict=True):
        if opcode in _DOUBLE and 0 in (argument >> 4, argument & 15):
            return True
        if opcode in _LOADS | {_CELL} and argument == 0:
            return True
    return False


class _Reader(pickle.Unpickler):
    """Reads a pickle with nothing but inert objects in the place of everything that it names."""

    def __init__(self, file: io.BytesIO, seen: list[tuple[Any, ...]]) -> None:
        super().__init__(file)
        self._seen = seen

    def find_class(self, module: str, name: str) -> Any:
        return _inert(self._seen)

    def persistent_load(self, identifier: Any) -> Any:
        return _inert(self._seen)


def _inert(seen: list[tuple[Any, ...]]) -> Any:
    class Inert(dict[Any, Any]):
        """Can be called, filled and extended as pickles do it, which does nothing but note the arguments."""

        def __new__(cls, *arguments: Any, **named: Any) -> Any:
            seen.append(arguments)
            return super().__new__(cls)

        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__()

        def __call__(self, *arguments: Any, **named: Any) -> Any:
            seen.append(arguments)
            return Inert()

        def __setstate__(self, state: Any) -> None:
            pass

        def __hash__(self) -> int:  # type: ignore[override]
            return id(self)

        def append(self, item: Any) -> None:
            pass

        def extend(self, items: Any) -> None:
            pass

        def add(self, item: Any) -> None:
            pass

    return Inert
