"""The functions and classes of a source file, found in its syntax tree.

Rows count from 0 and ends are inclusive. A definition begins with the comments, attributes and decorators right above
it. A file with mistakes is read as far as the parser gets: what it cannot name stays in the file's rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tree_sitter import Node

from afterrun.sources.languages import Grammar, parser

_ASSIGNED: Final = frozenset(("arrow_function", "function_expression", "generator_function"))
_ASSIGNMENTS: Final = frozenset(
    ("variable_declarator", "assignment_expression", "field_definition", "public_field_definition")
)
_DECLARATIONS: Final = frozenset(("lexical_declaration", "variable_declaration"))
_ABOVE: Final = frozenset(("attribute_item", "decorator", "marker_annotation", "annotation"))
_IDENTIFIERS: Final = frozenset(("identifier", "shorthand_property_identifier_pattern", "shorthand_field_identifier"))
_NAME_FIELDS: Final = ("name", "property", "left")
_GO_METHOD: Final = "method_declaration"
_NOBODY: Final = frozenset(("self", "cls", "this", "_"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Definition:
    """A function or a class: its symbol with its scopes, its rows, and of a class the definitions inside.

    `body` is the first row of the body, where the language has one; `parameters` are names alone.
    """

    symbol: str
    kind: str
    start: int
    end: int
    body: int
    parameters: tuple[str, ...] = ()
    members: tuple[Definition, ...] = ()


def definitions(grammar: Grammar, text: bytes) -> list[Definition]:
    """The outermost definitions of a file, in their order."""
    return list(_inside(grammar, parser(grammar).parse(text).root_node, ()))


def _inside(grammar: Grammar, node: Node, scope: tuple[str, ...]) -> Iterator[Definition]:
    above: int | None = None
    last = -1
    for child in node.named_children:
        start, end = child.start_point.row, _end_row(child)
        if "comment" in child.type or child.type in _ABOVE:
            # A comment behind code belongs to that code, and one with a blank line below it to none.
            follows_on = above is not None and start <= last + 1
            above = above if follows_on else start if start > last else None
            last = end
            continue
        first = above if above is not None and start <= last + 1 else start
        yield from _definition(grammar, child, scope, first)
        above, last = None, end


def _definition(grammar: Grammar, node: Node, scope: tuple[str, ...], start: int) -> Iterator[Definition]:
    inner = _unwrapped(grammar, node)
    if inner is None:
        return
    if inner.type in grammar.containers:
        name = "" if inner.type.startswith("preproc") else _name(inner)
        yield from _inside(grammar, inner, (*scope, name) if name else scope)
    elif inner.type in grammar.classes:
        yield from _class(grammar, node, inner, scope, start)
    else:
        yield _function(node, inner, scope, start)


def _unwrapped(grammar: Grammar, node: Node) -> Node | None:
    """The definition or container that a node is or wraps; a function assigned to a name stands as its assignment."""
    if node.type in _ASSIGNMENTS:
        value = _value(node)
        return node if value is not None and value.type in _ASSIGNED else None
    if node.type in grammar.wrappers or node.type in _DECLARATIONS:
        return next((inner for child in node.named_children if (inner := _unwrapped(grammar, child))), None)
    known = node.type in grammar.functions or node.type in grammar.classes or node.type in grammar.containers
    return node if known else None


def _function(outer: Node, inner: Node, scope: tuple[str, ...], start: int) -> Definition:
    value = (_value(inner) if inner.type in _ASSIGNMENTS else None) or inner
    return Definition(
        symbol=_symbol((*scope, *_receiver(inner)), _name(inner)),
        kind="function",
        start=start,
        end=_end_row(outer),
        body=_body_row(value, outer),
        parameters=_parameters(value),
    )


def _class(grammar: Grammar, outer: Node, inner: Node, scope: tuple[str, ...], start: int) -> Iterator[Definition]:
    name, end = _name(inner), _end_row(outer)
    body = inner.child_by_field_name("body")
    members = tuple(_inside(grammar, body, (*scope, name))) if body is not None else ()
    # What stands on one line says little by itself, and reads better among its neighbours.
    if members or end > outer.start_point.row:
        symbol = _symbol(scope, name)
        body_row = _body_row(inner, outer)
        yield Definition(symbol=symbol, kind="class", start=start, end=end, body=body_row, members=members)


def _value(node: Node) -> Node | None:
    return node.child_by_field_name("value") or node.child_by_field_name("right")


def _end_row(node: Node) -> int:
    # A node that takes in its line break ends at the beginning of the next row.
    point = node.end_point
    return point.row - 1 if point.column == 0 and point.row > node.start_point.row else point.row


def _body_row(node: Node, outer: Node) -> int:
    body = node.child_by_field_name("body")
    return body.start_point.row if body is not None else outer.start_point.row + 1


def _symbol(scope: Sequence[str], name: str) -> str:
    return ".".join((*scope, name or "default"))


def _name(node: Node) -> str:
    """The node's own name, found in one of the ways in which grammars give names; empty for what has none."""
    if node.type in _ASSIGNMENTS:
        named = next((found for field in _NAME_FIELDS if (found := node.child_by_field_name(field))), None)
        return _text(named).rpartition(".")[2]
    named = node.child_by_field_name("name") or node.child_by_field_name("declarator")
    if named is None and node.type == "impl_item":
        named = node.child_by_field_name("type")
    if named is None and node.type == "type_declaration":
        named = next((spec.child_by_field_name("name") for spec in node.named_children), None)
    while named is not None and (inner := named.child_by_field_name("declarator")):
        named = inner
    return _text(named).partition("<")[0].replace("::", ".")


def _receiver(node: Node) -> tuple[str, ...]:
    """The type that a Go method belongs to."""
    receiver = node.child_by_field_name("receiver")
    found = (
        _first(receiver, frozenset(("type_identifier",))) if receiver is not None and node.type == _GO_METHOD else None
    )
    return (_text(found),) if found is not None else ()


def _parameters(node: Node) -> tuple[str, ...]:
    held: Node | None = node
    listed = None
    while held is not None and listed is None:
        listed = held.child_by_field_name("parameters")
        held = held.child_by_field_name("declarator")
    found = (_first(child, _IDENTIFIERS) for child in listed.named_children) if listed is not None else ()
    names = (_text(name) for name in found if name is not None)
    return tuple(name for name in names if name not in _NOBODY)


def _first(node: Node, types: frozenset[str]) -> Node | None:
    if node.type in types:
        return node
    return next((found for child in node.named_children if (found := _first(child, types))), None)


def _text(node: Node | None) -> str:
    return (node.text or b"").decode("utf-8", "replace") if node is not None else ""
