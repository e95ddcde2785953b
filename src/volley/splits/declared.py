# SPDX-License-Identifier: Apache-2.0
"""Checks that a module declares a class with a given base, without running the module.

A peer names the classes of data sources, and importing a module runs it. So the name is first resolved in the source
text of modules: from the class to its bases, through their imports, until the allowed base is found.
"""

from __future__ import annotations

import ast
import sys
from importlib.machinery import ModuleSpec

_MAX_DEPTH = 20
_Name = tuple[str, str]
"""A module and a name inside it."""
_declared: set[tuple[str, str, type]] = set()


def declares(module: str, qualname: str, base: type) -> bool:
    """Whether `module` declares or imports a class `qualname` that is `base` or derives from it."""
    key = (module, qualname, base)
    # Cache only positive results: a class that was declared is imported by now, others may be installed later.
    if key not in _declared and _derives(key[:2], (base.__module__, base.__qualname__), _MAX_DEPTH):
        _declared.add(key)
    return key in _declared


def _derives(name: _Name, wanted: _Name, depth: int) -> bool:
    if name == wanted:
        return True
    found = _parse_declarations(name[0]) if depth else None
    if found is None:
        return False
    bases, imports = found
    if name[1] in imports:
        return _derives(imports[name[1]], wanted, depth - 1)
    return any(
        _derives(_resolve(base, name[0], imports), wanted, depth - 1) for base in bases.get(name[1], ())
    )


def _resolve(base: str, module: str, imports: dict[str, _Name]) -> _Name:
    """Find where the base of a class is declared. `base` is as written in the class statement, perhaps dotted."""
    first, _, rest = base.partition(".")
    if first not in imports:
        return module, base
    source, name = imports[first]
    if not rest:
        return source, name
    path = [*filter(None, (source, name)), *rest.split(".")]
    # The part before the last dot is a module; nested classes are not resolved.
    return ".".join(path[:-1]), path[-1]


def _parse_declarations(module: str) -> tuple[dict[str, tuple[str, ...]], dict[str, _Name]] | None:
    """The classes of a module with their bases, and its imports. None if its source is not available."""
    source = _read_source(module)
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
                # `import a.b` binds a; `import a.b as c` binds a.b.
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


def _read_source(module: str) -> str | None:
    """The source text of a module. Uses the import finders, but imports nothing, not even its parent packages."""
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
