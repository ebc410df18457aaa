"""What the grammars call functions and classes, language by language.

A grammar is a wheel of its own with the parser in it: nothing is downloaded, and it is loaded when a file needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Final

from tree_sitter import Language, Parser


@dataclass(frozen=True, kw_only=True, slots=True)
class Grammar:
    """Node types of one language.

    `functions` and `classes` become parts, `containers` (namespaces, Rust's impl, …) are looked into, and `wrappers`
    (decorators, export, template) belong to the definition that they hold.
    """

    name: str
    module: str
    function: str = "language"
    functions: frozenset[str]
    classes: frozenset[str] = frozenset()
    containers: frozenset[str] = frozenset()
    wrappers: frozenset[str] = frozenset()


def _grammar(name: str, module: str, function: str = "language", **types: str) -> Grammar:
    sets = {kind: frozenset(names.split()) for kind, names in types.items()}
    return Grammar(name=name, module=module, function=function, **{"functions": frozenset(), **sets})


_SCRIPT: Final = {
    "functions": "function_declaration generator_function_declaration method_definition",
    "classes": "class_declaration abstract_class_declaration interface_declaration",
    "containers": "internal_module module statement_block",
    "wrappers": "export_statement ambient_declaration expression_statement",
}
_C_CONTAINERS: Final = "preproc_if preproc_ifdef preproc_elif preproc_else linkage_specification declaration_list"

PYTHON: Final = _grammar(
    "python",
    "tree_sitter_python",
    functions="function_definition",
    classes="class_definition",
    containers="if_statement try_statement block else_clause except_clause",
    wrappers="decorated_definition",
)
JAVASCRIPT: Final = _grammar("javascript", "tree_sitter_javascript", **_SCRIPT)
TYPESCRIPT: Final = _grammar("typescript", "tree_sitter_typescript", "language_typescript", **_SCRIPT)
TSX: Final = _grammar("typescript", "tree_sitter_typescript", "language_tsx", **_SCRIPT)
GO: Final = _grammar(
    "go", "tree_sitter_go", functions="function_declaration method_declaration", classes="type_declaration"
)
RUST: Final = _grammar(
    "rust",
    "tree_sitter_rust",
    functions="function_item macro_definition",
    classes="struct_item enum_item union_item trait_item",
    containers="impl_item mod_item declaration_list foreign_mod_item",
)
JAVA: Final = _grammar(
    "java",
    "tree_sitter_java",
    functions="method_declaration constructor_declaration compact_constructor_declaration",
    classes="class_declaration interface_declaration enum_declaration record_declaration annotation_type_declaration",
    containers="enum_body_declarations",
)
C: Final = _grammar(
    "c",
    "tree_sitter_c",
    functions="function_definition",
    classes="struct_specifier union_specifier enum_specifier type_definition",
    containers=_C_CONTAINERS,
)
CPP: Final = _grammar(
    "cpp",
    "tree_sitter_cpp",
    functions="function_definition",
    classes="class_specifier struct_specifier union_specifier enum_specifier",
    containers=f"{_C_CONTAINERS} namespace_definition",
    wrappers="template_declaration",
)
RUBY: Final = _grammar(
    "ruby",
    "tree_sitter_ruby",
    functions="method singleton_method",
    classes="class",
    containers="module body_statement singleton_class",
)

SUFFIXES: Final[Mapping[str, Grammar]] = {
    **dict.fromkeys((".py", ".pyi", ".pyw"), PYTHON),
    **dict.fromkeys((".js", ".jsx", ".mjs", ".cjs"), JAVASCRIPT),
    **dict.fromkeys((".ts", ".mts", ".cts"), TYPESCRIPT),
    ".tsx": TSX,
    ".go": GO,
    ".rs": RUST,
    ".java": JAVA,
    **dict.fromkeys((".c", ".h"), C),
    **dict.fromkeys((".cc", ".cpp", ".cxx", ".hh", ".hpp", ".hxx", ".ipp"), CPP),
    **dict.fromkeys((".rb", ".rake"), RUBY),
}
"""The grammar of a file by its suffix."""


def parser(grammar: Grammar) -> Parser:
    """A parser of a grammar; one is for one thread."""
    return Parser(_language(grammar))


@cache
def _language(grammar: Grammar) -> Language:
    return Language(getattr(import_module(grammar.module), grammar.function)())
