"""Finds calls that an exercise must not make, without running anything.

A rule is a dotted name, `torch.softmax`; one with a star for any letters, `torch.nn.Transformer*`;
or a method of any tensor, `torch.Tensor.softmax`, which means `.softmax` on whatever is no module.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from grader import source

METHOD = "torch.Tensor."


@dataclass(frozen=True)
class ForbiddenCall:
    rule: str
    written: str  # as it stands in the file, `F.softmax`
    line: int


def forbidden_calls(
    tree: ast.Module, exercise: str, rules: tuple[str, ...], others: frozenset[str] = frozenset()
) -> list[ForbiddenCall]:
    """Uses of what the rules forbid, in the exercise and in the file's own functions it uses.

    `others` are the chapter's other exercises: each answers for itself.
    """
    if not rules:
        return []
    own = dict(source.functions(tree))
    aliases = _aliases(tree)
    found, seen, todo = [], set(others), [exercise]
    while todo:
        name = todo.pop()
        if name in seen or name not in own:
            continue
        seen.add(name)
        owner = name.rpartition(".")[0]
        for node in _outermost(own[name]):
            written = ast.unparse(node)
            rule = next((rule for rule in rules if _breaks(rule, node, aliases)), None)
            if rule:
                found.append(ForbiddenCall(rule, written, node.lineno))
            todo.append(written.replace("self.", f"{owner}.") if owner else written)
    return found


def _breaks(rule: str, node: ast.Name | ast.Attribute, aliases: dict[str, str]) -> bool:
    full = _full_name(node, aliases)
    if full is not None:
        return fnmatchcase(full, rule)
    if not (isinstance(node, ast.Attribute) and rule.startswith(METHOD)):
        return False
    own = isinstance(node.value, ast.Name) and node.value.id == "self"
    return not own and node.attr == rule.removeprefix(METHOD)


def _full_name(node: ast.expr, aliases: dict[str, str]) -> str | None:
    """`torch.nn.functional.softmax` for `F.softmax`; None for what starts at no import."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id)
    if isinstance(node, ast.Attribute):
        base = _full_name(node.value, aliases)
        return base and f"{base}.{node.attr}"
    return None


def _aliases(tree: ast.Module) -> dict[str, str]:
    """What the file's names mean: imports, and names assigned from them."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                aliases[alias.asname or root] = alias.name if alias.asname else root
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            full = _full_name(node.value, aliases)
            if full:
                aliases[node.targets[0].id] = full
    for node in tree.body:  # the file's own functions are not the library's, whatever their names
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            aliases.pop(node.name, None)
    return aliases


def _outermost(node: ast.AST) -> Iterator[ast.Name | ast.Attribute]:
    """Names and attribute chains, each chain once, and what stands inside a chain's calls."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Attribute):
            yield child
            base = child.value
            while isinstance(base, ast.Attribute):
                base = base.value
            if not isinstance(base, ast.Name):
                yield from _outermost(ast.Expr(base))
        elif isinstance(child, ast.Name):
            yield child
        else:
            yield from _outermost(child)
