"""A plain install is enough for a device: no torch, no transformers, no vLLM, nothing of the extras."""

import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement
from source_tree import PACKAGES, ROOT, modules

import edgedraft

# Import names of the distributions that a device gets.
DEVICE = {
    "apache-tvm": {"tvm", "tvm_ffi"},
    "cryptography": {"cryptography"},
    "googleapis-common-protos": {"google"},
    "grpcio": {"grpc"},
    "jinja2": {"jinja2"},
    "numpy": {"numpy"},
    "phonenumbers": {"phonenumbers"},
    "platformdirs": {"platformdirs"},
    "protobuf": {"google"},
    "python-stdnum": {"stdnum"},
    "rich": {"rich"},
    "tenacity": {"tenacity"},
    "tokenizers": {"tokenizers"},
    "typer": {"typer"},
}
# What one module of the SDK uses where the app has it; the module can be imported without.
OPTIONAL = {"edgedraft.privacy.detect.presidio": {"presidio_analyzer"}}
NOT_ON_A_DEVICE = [
    "grpc_health",
    "grpc_tools",
    "gguf",
    "huggingface_hub",
    "kivy",
    "opentelemetry",
    "presidio_analyzer",
    "prometheus_client",
    "ray",
    "safetensors",
    "scipy",
    "sklearn",
    "torch",
    "transformers",
    "vllm",
]
PLAIN_INSTALL = f"""
import importlib.abc, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in {NOT_ON_A_DEVICE!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)


def test_the_table_above_is_what_pyproject_says():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {Requirement(text).name for text in project["dependencies"]} == set(DEVICE)


@pytest.mark.parametrize("module", modules("edgedraft"), ids=lambda module: module.name)
def test_the_sdk_imports_only_what_a_device_has(module):
    allowed = set.union(*DEVICE.values(), OPTIONAL.get(module.name, set()), PACKAGES, sys.stdlib_module_names)
    assert {name.split(".")[0] for name in module.imports()} - allowed == set()


def test_every_module_of_the_sdk_can_be_imported_in_a_plain_install():
    names = [module.name for module in modules("edgedraft")]
    run = python(f"{PLAIN_INSTALL}\nimport importlib\nfor name in {names!r}: importlib.import_module(name)")
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("arguments", [("models", "list"), ("demo", "--help"), ("generate", "--help")])
def test_the_command_line_works_in_a_plain_install(arguments, tmp_path):
    run = python(f"{PLAIN_INSTALL}\nfrom edgedraft_apps.cli import main\nmain()", "--home", str(tmp_path), *arguments)
    assert run.returncode == 0, run.stderr


def test_what_an_extra_brings_is_asked_for_by_name(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    asked = ("--home", str(tmp_path / "home"), "models", "build", str(tmp_path / "model.gguf"))
    run = python(f"{PLAIN_INSTALL}\nfrom edgedraft_apps.cli import main\nmain()", *asked)
    assert run.returncode == 1
    assert "pip install 'edgedraft[models]'" in run.stderr


@pytest.mark.parametrize("module", ["edgedraft", "edgedraft.client", "edgedraft.sync"])
def test_neither_tvm_nor_grpc_is_loaded_before_it_is_needed(module):
    run = python(f"import sys, {module}\nprint(sorted({{'tvm', 'tvm_ffi', 'grpc'}} & set(sys.modules)))")
    assert run.stdout.strip() == "[]", run.stderr


def test_the_package_itself_loads_only_its_errors():
    run = python("import sys, edgedraft\nprint(*sorted(name for name in sys.modules if name.startswith('edgedraft')))")
    assert run.stdout.split() == ["edgedraft", "edgedraft._version", "edgedraft.errors"], run.stderr


def test_the_flat_namespace_is_whole_and_the_same_for_type_checkers():
    (root,) = (module for module in modules("edgedraft") if module.name == "edgedraft")
    written = {name.rpartition(".")[2] for name in root.imports()} - {
        "annotations",
        "import_module",
        "TYPE_CHECKING",
        "Any",
    }
    assert written == set(edgedraft.__all__)
    for name in edgedraft.__all__:
        assert getattr(edgedraft, name) is not None
    with pytest.raises(AttributeError, match="unheard_of"):
        _ = edgedraft.unheard_of
