"""Source files of every language into functions, classes and the rest."""

from __future__ import annotations

import ast
import asyncio.base_events
from collections.abc import Iterable
from pathlib import Path

import pytest

from afterrun.sources.code import BLOCK_LINES, WHOLE_CLASS_LINES, code_parts
from afterrun.sources.parts import Part


def named(path: str, text: str) -> dict[str, Part]:
    return {part.place: part for part in code_parts(path, text) if part.place}


EXAMPLES: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    "go": (
        "package shop\n\n// Run serves.\n"
        "func (s *Server) Run(ctx context.Context, port int) error {\n\treturn nil\n}\n\n"
        "type Server struct {\n\tname string\n}\n\nfunc New[T any](name string) *Server { return nil }\n",
        {"Server.Run": ("ctx", "port"), "Server": (), "New": ("name",)},
    ),
    "rs": (
        "#[derive(Debug)]\npub struct Cart {\n    items: Vec<u8>,\n}\n\nimpl<T> Store for Cart<T> {\n"
        "    /// Adds.\n    pub fn add(&mut self, item: usize) -> u8 { 1 }\n}\n\nmod inner {\n    fn deep() {}\n}\n",
        {"Cart": (), "Cart.add": ("item",), "inner.deep": ()},
    ),
    "java": (
        "package shop;\n\n/** A cart. */\npublic class Cart {\n  private int size;\n"
        + "  // more\n" * WHOLE_CLASS_LINES
        + "  @Override\n  public int add(String item, int... counts) { return 1; }\n  Cart(int size) {}\n}\n",
        {"Cart": (), "Cart.add": ("item", "counts"), "Cart.Cart": ("size",)},
    ),
    "c": (
        "#include <stdio.h>\n\nstruct cart {\n  int size;\n};\n\n#ifdef FAST\n/* Adds. */\n"
        "static int *add(int argc, char **argv)\n"
        "{\n  return 0;\n}\n#endif\n",
        {"cart": (), "add": ("argc", "argv")},
    ),
    "cpp": (
        "namespace shop {\ntemplate <class T>\nclass Cart {\n  int size(const T& item) const { return 1; }\n};\n}\n"
        'int shop::Cart::add(int item) {\n  return item;\n}\nextern "C" {\nint plain(void) { return 0; }\n}\n',
        {"shop.Cart": (), "shop.Cart.add": ("item",), "plain": ()},
    ),
    "rb": (
        "module Shop\n  class Cart < Base\n    def add(item, count: 1)\n      item\n    end\n"
        "  end\n\n  def self.open(path)\n  end\nend\n",
        {"Shop.Cart": (), "Shop.open": ("path",)},
    ),
    "ts": (
        "export class Cart {\n  size = 1\n}\n\n"
        "export const add = async (item: string, count = 1) => {\n  return 1\n}\n\n"
        "export default function main(): void {}\n\nnamespace Shop {\n  export function open(path?: string) {}\n}\n\n"
        "module.exports.close = function (path) {}\n\nexport interface Item {\n  name: string\n}\n",
        {"Cart": (), "add": ("item", "count"), "main": (), "Shop.open": ("path",), "close": ("path",), "Item": ()},
    ),
    "js": (
        "/** Adds. */\nfunction add(item, { count }) {}\n\nconst open = path => path\n\n"
        "class Cart {\n  add(item) {}\n}\n",
        {"add": ("item", "count"), "open": (), "Cart": ()},
    ),
    "tsx": (
        "export const View = ({ item }: Props) => {\n  return <b>{item}</b>\n}\n",
        {"View": ("item",)},
    ),
}


@pytest.mark.parametrize("suffix", EXAMPLES)
def test_functions_and_classes_are_found_with_their_symbols_and_parameters(suffix: str) -> None:
    text, expected = EXAMPLES[suffix]
    found = named(f"src/shop.{suffix}", text)
    parameters = {name: part.details.get("parameters", []) for name, part in found.items()}
    assert parameters == {name: list(names) for name, names in expected.items()}
    for part in found.values():
        lines = text.split("\n")[part.start_line - 1 : part.end_line]
        assert part.text.split("\n")[0].strip() == lines[0].strip()


def test_a_header_of_cpp_is_read_as_cpp() -> None:
    assert list(named("a.h", "namespace shop {\nclass Cart {\n  int size();\n};\n}\n")) == ["shop.Cart"]
    assert list(named("a.h", "struct cart {\n  int size;\n};\n")) == ["cart"]


def test_every_function_of_a_python_file_lies_whole_in_one_part() -> None:
    path = Path(asyncio.base_events.__file__)
    text = path.read_text()
    parts = [part for part in code_parts("base_events.py", text) if part.place]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            whole = [p for p in parts if p.start_line <= node.lineno and (node.end_lineno or 0) <= p.end_line]
            assert any(p.kind == "function" or p.end_line - p.start_line < WHOLE_CLASS_LINES for p in whole), node.name


def test_no_line_with_a_word_is_lost() -> None:
    text = Path(asyncio.base_events.__file__).read_text()
    kept = {line.strip() for part in code_parts("base_events.py", text) for line in part.text.split("\n")}
    assert {line.strip() for line in text.split("\n") if any(sign.isalnum() for sign in line)} <= kept


def test_comments_decorators_and_attributes_above_belong_to_the_definition() -> None:
    text = (
        "import os\n\n# About load.\n# More.\n@cache\ndef load():\n    pass\n\n\n"
        "X = 1  # not about save\ndef save():\n    pass\n"
    )
    found = named("a.py", text)
    assert found["load"].text.startswith("# About load.")
    assert found["save"].text.startswith("def save")


def test_a_long_class_comes_as_its_outline_and_its_methods() -> None:
    body = "".join(f"        x{number} = {number}\n" for number in range(WHOLE_CLASS_LINES))
    text = (
        'class Cart:\n    """A cart."""\n\n    size = 1\n\n    def add(self, item):\n'
        f'        """Add."""\n{body}\n    @property\n    def total(self):\n        return 1\n'
    )
    found = named("a.py", text)
    assert found["Cart"].text.split("\n") == [
        "class Cart:",
        '    """A cart."""',
        "",
        "    size = 1",
        "",
        "    def add(self, item):",
        "",
        "    @property",
        "    def total(self):",
    ]
    assert found["Cart.add"].text.startswith("def add(self, item):")
    assert (found["Cart.total"].start_line, found["Cart.total"].text) == (
        29,
        "@property\ndef total(self):\n    return 1",
    )


def test_a_short_class_is_whole() -> None:
    found = named("a.py", "class Cart:\n    def add(self):\n        return 1\n")
    assert list(found) == ["Cart"]


def test_broken_code_is_read_as_far_as_it_goes() -> None:
    found = named("a.py", "def good():\n    return 1\n\n\ndef bad(:\n    return [\n\n\ndef late():\n    return 2\n")
    assert found["good"].text == "def good():\n    return 1"


def test_code_nested_deeper_than_the_stack_comes_in_blocks() -> None:
    text = "".join(f"{' ' * depth}if x:\n" for depth in range(3000)) + " " * 3000 + "pass\n"
    assert {part.kind for part in code_parts("a.py", text)} == {"block"}


def test_other_languages_come_in_blocks_that_end_at_blank_lines() -> None:
    text = "".join(f"key{number}: {number}\n" + ("\n" if number % 50 == 49 else "") for number in range(120))
    parts = list(code_parts("deploy/values.yaml", text))
    assert [(part.start_line, part.end_line) for part in parts] == [(1, 50), (52, 101), (103, 122)]
    assert all(part.end_line - part.start_line < BLOCK_LINES for part in parts)
    assert joined(parts) == [line for line in text.split("\n") if line]


def joined(parts: Iterable[Part]) -> list[str]:
    return [line for part in parts for line in part.text.split("\n") if line]
