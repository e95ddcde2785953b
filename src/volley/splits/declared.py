# SPDX-License-Identifier: Apache-2.0
"""Whether a module declares a class of some kind, found out without running any of it.

A peer names the classes of data sources. To import a module is to run it, so the name is followed through the text of
modules first: from the class to its bases, through their imports, until one is the base that is allowed.
"""

from __future__ import annotations

import ast
import sys
from importlib.machinery import ModuleSpec

_DEEPEST = 20
_Name = tuple[str, str]
"""A module, and what is named inside of it."""
_declared: set[tuple[str, str, type]] = set()


def declares(module: str, qualname: str, base: type) -> bool:
    """Whether `qualname` is a class statement of `module`, or imported there, that derives from `base` or is it."""
    key = (module, qualname, base)
    # What was declared once is imported by now; what was not may be installed later.
    if key not in _declared and _derives(key[:2], (base.__module__, base.__qualname__), _DEEPEST):
        _declared.add(key)
    return key in _declared


def _derives(name: _Name, wanted: _Name, depth: int) -> bool:
    if name == wanted:
        return True
    found = _declarations(name[0]) if depth else None
    if found is None:
        return False
    bases, imports = found
    if name[1] in imports:
        return _derives(imports[name[1]], wanted, depth - 1)
    return any(
        _derives(_resolve(base, name[0], imports), wanted, depth - 1) for base in bases.get(name[1], ())
    )


def _resolve(base: str, module: str, imports: dict[str, _Name]) -> _Name:
    """Where the base of a class is declared: `base` is what its statement says, perhaps with dots."""
    first, _, rest = base.partition(".")
    if first not in imports:
        return module, base
    source, name = imports[first]
    if not rest:
        return source, name
    path = [*filter(None, (source, name)), *rest.split(".")]
    # What stands before the last dot is a module; a class inside a class is not followed.
    return ".".join(path[:-1]), path[-1]


def _declarations(module: str) -> tuple[dict[str, tuple[str, ...]], dict[str, _Name]] | None:
    """The classes of a module with their bases, and what it imports; None when its text cannot be had."""
    source = _source(module)
    if source is None:
        return None
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    classes: dict[str, tuple[str, ...]] = {}
    _collect(tree, "", classes)
    imports: dict[str, _Name] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                # `import a.b` names a; `import a.b as c` names b.
                target = alias.name if alias.asname else alias.name.partition(".")[0]
                imports[alias.asname or target] = (target, "")
        elif isinstance(node, ast.ImportFrom):
            origin = _origin(node, module)
            for alias in node.names:
                imports[alias.asname or alias.name] = (origin, alias.name)
    return classes, imports


def _collect(tree: ast.AST, prefix: str, classes: dict[str, tuple[str, ...]]) -> None:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            classes[prefix + node.name] = tuple(ast.unparse(base) for base in node.bases)
            _collect(node, f"{prefix}{node.name}.", classes)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            _collect(node, prefix, classes)


def _origin(node: ast.ImportFrom, module: str) -> str:
    if not node.level:
        return node.module or ""
    package = module.split(".")[: -node.level]
    return ".".join([*package, *filter(None, [node.module])])


def _source(module: str) -> str | None:
    """The text of a module. The finders look for it; nothing is imported, not even the packages around it."""
    spec: ModuleSpec | None = None
    parts = module.split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    for length in range(1, len(parts) + 1):
        around = spec.submodule_search_locations if spec else None
        if spec is not None and around is None:
            return None
        spec = _find(".".join(parts[:length]), around)
        if spec is None:
            return None
    get_source = getattr(spec.loader, "get_source", None) if spec else None
    try:
        return get_source(module) if get_source else None
    except (ImportError, OSError, SyntaxError):
        return None


def _find(name: str, path: list[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        if find is not None and (spec := find(name, path)) is not None:
            return spec  # type: ignore[no-any-return]  # finders ship no types
    return None
