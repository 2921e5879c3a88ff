"""Runs short programs that a model wrote, so that they can be judged and do no harm."""

from __future__ import annotations

import ast
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from tempfile import TemporaryDirectory
from typing import Any, Final

_SECONDS: Final = 5
_MEMORY: Final = 512 << 20
_SQL_STEPS: Final = 1_000_000  # of SQLite's virtual machine; a query of this kind takes hundreds
_MODULES: Final = frozenset(
    {"collections", "dataclasses", "datetime", "decimal", "functools", "itertools", "math", "operator", "re", "typing"}
)
_FORBIDDEN: Final = frozenset(
    {"breakpoint", "compile", "delattr", "eval", "exec", "exit", "getattr", "globals", "help", "input", "locals"}
    | {"memoryview", "open", "quit", "setattr", "vars"}
)
_READING: Final = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION})


def runs_python(code: str, tests: str) -> bool:
    """Whether a program passes some assertions, in an interpreter of its own with bounded time and memory.

    A program that imports more than a few harmless modules, or reaches for files, names with two underscores or
    dynamic code, is not run and does not pass.
    """
    if not _is_harmless(code):
        return False
    with TemporaryDirectory(prefix="edgedraft-sandbox-") as folder:
        try:
            run = subprocess.run(
                [sys.executable, "-I", "-S", "-c", f"{code}\n\n{tests}\n"],
                cwd=folder,
                env={},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                preexec_fn=_bound,
                timeout=2 * _SECONDS,
            )
        except (subprocess.TimeoutExpired, ValueError):  # a NUL character in the program
            return False
    return run.returncode == 0


def sql_gives(query: str, setup: str, rows: Sequence[Sequence[Any]]) -> bool:
    """Whether a query, on a database in memory that `setup` made, only reads and gives these rows in this order."""
    database = sqlite3.connect(":memory:")
    try:
        database.executescript(setup)
        database.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in _READING else sqlite3.SQLITE_DENY)
        database.set_progress_handler(lambda: 1, _SQL_STEPS)
        return [list(row) for row in database.execute(query)] == [list(row) for row in rows]
    except (sqlite3.Error, sqlite3.Warning):
        return False
    finally:
        database.close()


def _is_harmless(code: str) -> bool:
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(map(_node_is_harmless, ast.walk(tree)))


def _node_is_harmless(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return all(name.name in _MODULES for name in node.names)
    if isinstance(node, ast.ImportFrom):
        return node.level == 0 and node.module in _MODULES
    if isinstance(node, ast.Attribute):
        return not node.attr.startswith("__")
    if isinstance(node, ast.Name):
        return node.id not in _FORBIDDEN and (not node.id.startswith("__") or node.id == "__name__")
    return True


def _bound() -> None:
    """In the child, before the program: bound what it may use."""
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
