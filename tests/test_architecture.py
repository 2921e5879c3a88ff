"""The rooms of the house and the one way through them: who may import whom, and who may let bytes out."""

import ast

import pytest
from source_tree import PACKAGES, ROOT, Module, modules

EVERY = [module for package in PACKAGES for module in modules(package)]
SDK = [module for module in modules("edgedraft") if not module.generated]

# What a package may use of the others; an empty name is everything.
ARROWS = {
    "edgedraft": (),
    "edgedraft_cloud": ("edgedraft.wire", "edgedraft.errors", "edgedraft.runtime", "edgedraft.__version__"),
    "edgedraft_models": ("edgedraft.errors", "edgedraft.runtime", "edgedraft.text"),
    "edgedraft_apps": ("edgedraft", "edgedraft_cloud", "edgedraft_models"),
}
LINES = 500


def within(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


@pytest.mark.parametrize("module", EVERY, ids=lambda module: module.name)
def test_arrows_go_one_way(module: Module):
    package = module.name.split(".")[0]
    ours = {name for name in module.imports() if name.split(".")[0] in PACKAGES}
    assert {name for name in ours if not within(name, (package, *ARROWS[package]))} == set()


@pytest.mark.parametrize("module", EVERY, ids=lambda module: module.name)
def test_a_module_says_what_it_is_for_and_is_short(module: Module):
    if module.generated:
        return
    assert ast.get_docstring(module.tree), "no docstring"
    assert len(module.path.read_text(encoding="utf-8").splitlines()) <= LINES


@pytest.mark.parametrize("module", EVERY, ids=lambda module: module.name)
def test_no_error_is_swallowed_whatever_it_is(module: Module):
    """A handler for everything has a name for the error and uses it, or raises it again."""
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        if node.type is not None and ast.unparse(node.type) not in {"Exception", "BaseException"}:
            continue
        inside = [child for statement in node.body for child in ast.walk(statement)]
        raised = any(isinstance(child, ast.Raise) for child in inside)
        used = any(isinstance(child, ast.Name) and child.id == node.name for child in inside)
        assert raised or used, f"{module.name}, line {node.lineno}"


def test_tests_say_what_they_are_for_too():
    paths = list((ROOT / "tests").rglob("*.py"))
    assert [path for path in paths if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))] == []


NETWORK = ("grpc", "socket", "ssl", "http", "urllib", "requests", "httpx", "asyncio.open_connection")


@pytest.mark.parametrize("module", SDK, ids=lambda module: module.name)
def test_only_the_gate_lets_bytes_out(module: Module):
    """Only it turns frames into bytes and holds a stream; only transports touch the network."""
    gate, transport = module.name == "edgedraft.egress", within(module.name, ("edgedraft.transport",))
    imported = module.imports()
    if not transport:
        assert not {name for name in imported if within(name, NETWORK)}
    if not gate and not transport:
        assert "SerializeToString" not in set(module.calls())
        assert not {name for name in imported if name.endswith(".Stream") and "transport" in name}
    if not gate and not transport and module.name != "edgedraft.client":
        assert not {name for name in imported if within(name, ("edgedraft.transport",))}


def test_the_client_hands_transports_to_the_gate_and_calls_none_itself():
    (client,) = (module for module in SDK if module.name == "edgedraft.client")
    calls = [
        ast.unparse(node.func)
        for node in ast.walk(client.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    ways_out = [call for call in calls if call.rpartition(".")[2] in {"send", "describe", "open_stream"}]
    assert ways_out
    assert {call.rpartition(".")[0] for call in ways_out} == {"self._gate"}


@pytest.mark.parametrize("module", [m for m in SDK if within(m.name, ("edgedraft.core",))], ids=lambda m: m.name)
def test_the_core_does_no_io(module: Module):
    outside = {"asyncio", "threading", "time", "os", "pathlib", "random", "logging", "subprocess", "io", *NETWORK}
    roots = {name.split(".")[0] for name in module.imports()}
    assert roots & outside == set()
    assert "open" not in {node.id for node in ast.walk(module.tree) if isinstance(node, ast.Name)}
