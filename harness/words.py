"""Checks the words of code and documentation: `python -m harness.words [path …]`, a part of `make lint`.

Fails on words that only this project used for a thing that has a standard name, and on a docstring that begins with neither a
verb nor a noun phrase. Docstrings, comments, messages and names are read from Python's own tokens; pages as text.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PLACES = (
    "src/lakegate",
    "harness",
    "tests",
    "benchmarks",
    "examples",
    "docs",
    "README.md",
    "CONTRIBUTING.md",
    "changes",
)

RETIRED = {
    r"anew": "again, or a verb with re-",
    r"beside": "concurrently with, next to",
    r"winners?": "winning commits",
    r"(?:los(?:e|es|t|ing)|won?|wins) (?:a|its|the|no) races?": "lose an optimistic commit",
    r"told": "reported, recorded, named",
    r"whoever": "the process that, any session that",
    r"set apart": "quarantined",
    r"vacates?d?": "release",
    r"(?:stand|stands|stood|standing) in line": "queue",
    r"(?:hold|holds|held|holding)(?: \w+)? up": "block",
    r"fores(?:ee|ees|een|aw)": "rebase speculatively, expect",
    r"doomed": "leads to an erased key",
    r"deeds?": "maintenance event",
    r"rows? that (?:come|comes|came|entered)": "new matching rows",
    r"in the clothes of": "as",
    r"(?:is|are|was|were) nothing to": "is irrelevant to",
    r"made up for": "completed later",
    r"in its place": "instead",
    r"unsettled": "applied without a recorded outcome",
}
"""Regular expressions of retired words, and what to write instead."""

OWN = ("words.py", "test_words.py")
"""Files that hold the retired words."""

BEGINNINGS = {
    "what", "who", "whose", "whoever", "whom", "which", "whether", "where", "when", "why", "how", "it", "its", "that", "this",
    "these", "those", "they", "he", "she", "one", "ones", "as", "so", "of", "with", "without", "beside", "if", "though",
    "but", "and", "or", "there", "then", "thus", "nothing", "nobody", "somebody", "something", "such", "let",
}  # fmt: skip
"""Words with which a docstring does not begin: it begins with a verb (Returns, Commits) or a noun phrase (A commit of Delta)."""

_WORDS = re.compile(
    r"(?<![\w.-])(?:" + "|".join(f"(?P<w{n}>{one})" for n, one in enumerate(RETIRED)) + r")(?![\w-])", re.I
)
_ADVICE = list(RETIRED.values())
_NAMES = re.compile(r"(?:^|_)(anew|beside|winners?|told|whoever|doomed|deeds?|foresee|foreseen|unsettled)(?=_|$)", re.I)
_FIXED = re.compile(r"`[^`]*`|https?://\S+|\{[^{}]*\}")
"""Code, addresses and placeholders within a text: names that stay as they are."""


def _of_text(text: str, line: int) -> Iterator[tuple[int, str]]:
    text = _FIXED.sub(lambda found: re.sub(r"[^\n]", "_", found[0]), text)
    for found in _WORDS.finditer(text):
        advice = _ADVICE[int((found.lastgroup or "w0")[1:])]
        yield line + text.count("\n", 0, found.start()), f"{found[0]!r}: write {advice}"


def _of_docstring(node: ast.AST) -> Iterator[tuple[int, str]]:
    body = getattr(node, "body", [])
    if (
        body
        and isinstance(body[0], ast.Expr)
        and isinstance(body[0].value, ast.Constant)
        and isinstance(body[0].value.value, str)
    ):
        first = re.match(r"\W*(\w+)", body[0].value.value)
        if first is not None and first[1].lower() in BEGINNINGS:
            yield body[0].lineno, f"a docstring begins with {first[1]!r}: begin with a verb or a noun"


def faults_of_python(text: str, *, is_test: bool = False) -> Iterator[tuple[int, str]]:
    """Yields line and fault of each retired word in strings, comments and names, and of each docstring's beginning.

    The docstring of a test states what holds, in a sentence of any form.
    """
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_text = token.type in (tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)) and " " in token.string
        if is_text or token.type == tokenize.COMMENT:  # a string without a blank is a name or a key
            yield from _of_text(token.string, token.start[0])
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            if found := _NAMES.search(node.name):
                yield node.lineno, f"{node.name}: {found[1]!r} is a retired word"
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and not is_test:
            yield from _of_docstring(node)


def faults(path: Path) -> list[str]:
    """Returns the faults of a file, each as `path:line: what is wrong`."""
    text, is_test = path.read_text(encoding="utf-8"), path.parts[0] == "tests"
    found = faults_of_python(text, is_test=is_test) if path.suffix == ".py" else _of_text(text, 1)
    return [f"{path}:{line}: {fault}" for line, fault in sorted(set(found))]


def main(paths: list[str]) -> int:
    """Prints the faults of the files below these paths; returns 1 if there is one."""
    files = [file for path in map(Path, paths) for file in ([path] if path.is_file() else sorted(path.rglob("*")))]
    read = [file for file in files if file.suffix in (".py", ".md") and file.name not in OWN]
    found = [fault for file in read for fault in faults(file)]
    print("\n".join(found) or "words: no fault")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or [one for one in PLACES if Path(one).exists()]))
