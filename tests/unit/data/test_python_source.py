import ast
import sysconfig
from collections import Counter
from pathlib import Path

import pytest
import torch

from joma.data.python_source import parse, parse_files, read

STDLIB = Path(sysconfig.get_path("stdlib"))
MODULES = ["bisect.py", "abc.py", "contextlib.py", "heapq.py", "textwrap.py"]

SOURCE = '''
@cached(size=2)
def area(r, pi=3):  # a comment
    """Doc."""
    return pi * r ** 2

print(area(1), [x for x in "é"], y)
'''


@pytest.fixture(scope="module")
def source():
    return parse(SOURCE)


def path(source, word, occurrence=0):
    token = [i for i, other in enumerate(source.words) if other == word][occurrence]
    return source.path(token)


@pytest.mark.parametrize(
    ("word", "occurrence", "expected"),
    [
        ("def", 0, ["FunctionDef"]),
        ("size", 0, ["FunctionDef", "Call", "keyword"]),
        ("pi", 0, ["FunctionDef", "arguments", "arg"]),
        ("3", 0, ["FunctionDef", "arguments", "Constant"]),
        ("return", 0, ["FunctionDef", "Return"]),
        ("**", 0, ["FunctionDef", "Return", "BinOp", "BinOp"]),
        ("r", 1, ["FunctionDef", "Return", "BinOp", "BinOp", "Name"]),
        ("in", 0, ["Expr", "Call", "ListComp", "comprehension"]),
        ("y", 0, ["Expr", "Call", "Name"]),  # after a character of two bytes on its line
    ],
)
def test_a_token_knows_its_path(source, word, occurrence, expected):
    assert path(source, word, occurrence) == ["Module", *expected]


def test_comments_go_and_layout_stays(source):
    assert "# a comment" not in source.words
    assert Counter(source.words)["<indent>"] == Counter(source.words)["<dedent>"] == 1


def test_close_tokens_share_a_deep_ancestor(source):
    words = source.words
    power, factor = words.index("**"), words.index("*")
    assert source.common_depth(power, power + 1) == 4
    assert source.common_depth(power, factor) == 3
    assert source.common_depth(power, words.index("print")) == 0


def test_parents_come_first_and_depth_counts_them():
    for file in parse_files(STDLIB / name for name in MODULES).files:
        above, depth = file.parent[1:], file.depth
        assert file.parent[0] == -1 and file.types[0] == "Module"
        assert (above < torch.arange(1, len(file.types))).all()
        assert torch.equal(depth[1:], depth[above] + 1)


@pytest.mark.parametrize("name", MODULES)
def test_names_of_the_tree_are_the_tokens_found_there(name):
    text = (STDLIB / name).read_text(encoding="utf-8")
    found = parse(text)
    words = zip(found.words, found.node.tolist(), strict=True)
    marked = Counter(word for word, node in words if found.types[node] == "Name")
    tree = list(ast.walk(ast.parse(text)))
    f_strings = [node for node in tree if isinstance(node, ast.JoinedStr)]
    hidden = {id(inner) for node in f_strings for inner in ast.walk(node)}
    names = [node for node in tree if isinstance(node, ast.Name) and id(node) not in hidden]
    assert marked == Counter(node.id for node in names)


def test_a_dedent_belongs_to_the_block_it_returns_to():
    found = parse("class A:\n  def f(): pass\n  def g():\n    if x:\n      y\n    z\nw")
    dedents = [i for i, word in enumerate(found.words) if word == "<dedent>"]
    paths = [found.path(i) for i in dedents]
    assert paths == [["Module", "ClassDef", "FunctionDef"], ["Module"], ["Module"]]


def test_f_strings_are_leaves():
    found = parse('f"{a + b}" + c')
    assert "FormattedValue" not in found.types and found.path(0)[-1] == "JoinedStr"


def test_files_that_do_not_parse_are_listed_and_the_rest_is_kept(tmp_path):
    (tmp_path / "a.py").write_text("print 'old'\n")
    (tmp_path / "b.py").write_text("x = 1\n")
    (tmp_path / "c.py").write_bytes(b"x = '\xff'\n")
    (tmp_path / "d.py").write_bytes(b"x = 1\0\n")
    (tmp_path / "e.py").write_text(r"x = '\d'" + "\n")  # warns when parsed; no news to us
    (tmp_path / "f.py").write_text("")
    found = read(tmp_path)
    assert [p.name for p, _ in found.skipped] == ["a.py", "c.py", "d.py"]
    assert "SyntaxError" in found.skipped[0][1]
    assert [len(file.words) for file in found.files] == [4, 4, 0]


def test_line_ends_of_any_kind_give_the_same_tokens():
    unix = parse(SOURCE)
    for end in ("\r\n", "\r"):
        other = parse(SOURCE.replace("\n", end))
        assert other.words == unix.words and torch.equal(other.node, unix.node)


def test_the_limit_takes_the_first_files(tmp_path):
    for name in "cab":
        (tmp_path / f"{name}.py").write_text(name)
    assert [file.words[0] for file in read(tmp_path, limit=2).files] == ["a", "b"]


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(ValueError, match="nowhere is none"):
        read(tmp_path / "nowhere")
