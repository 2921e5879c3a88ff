"""The registry: what comes with the package, a user's own file, and references that need no registry."""

from pathlib import Path

import pytest

from edgedraft.errors import InvalidInput, ModelNotFound
from edgedraft_models.registry import Registry, load_registry
from edgedraft_models.sources import HubSource, LocalSource, WheelSource

SHA = "0" * 64
WHEELS = (
    'kind = "wheels"\nrequirement = "p{part}==1"\nmember = "p/{part:02}"\nparts = 2\n'
    f'file = "f"\nsize = 9\nsha256 = "{SHA}"'
)
MODEL = '[models.mine]\nlicence = "MIT"\narchitecture = "llama"\n[[models.mine.sources]]\n'
PAIR = (
    '[pairs.own]\ndrafter = { model = "mine", quantization = "q4f16_1" }\n'
    'target = { model = "smollm2-135m-instruct", quantization = "q0f16" }\n'
)


@pytest.fixture
def registry() -> Registry:
    return load_registry()


def test_default_pair_is_one_model_in_two_precisions(registry: Registry) -> None:
    pair = registry.pair()
    assert pair.name == "smollm2"
    assert pair.drafter.model is pair.target.model is registry.models["smollm2-135m-instruct"]
    assert (pair.drafter.quantization, pair.target.quantization) == ("q4f16_1", "q0f16")
    assert isinstance(pair.drafter.model.source(), WheelSource)
    assert pair.drafter.model.licence == "Apache-2.0"


def test_real_pair_comes_from_the_hub_unless_wheels_are_asked_for(registry: Registry) -> None:
    pair = registry.pair("qwen2.5-coder")
    for build in (pair.drafter, pair.target):
        assert isinstance(build.model.source(), HubSource)
        wheels = build.model.source("wheels")
        assert isinstance(wheels, WheelSource)
        assert wheels.member.format(part=3).endswith("part03.bin")
    assert (pair.drafter.quantization, pair.target.quantization) == ("q4f16_1", "q0f16")


def test_unknown_pair_lists_the_known_ones(registry: Registry) -> None:
    with pytest.raises(ModelNotFound, match=r"'x' is not in the registry; it has smollm2, qwen2\.5-coder"):
        registry.pair("x")


def test_unknown_source_lists_the_known_ones(registry: Registry) -> None:
    with pytest.raises(InvalidInput, match="cannot be had from 'ftp'; take one of: wheels, hub"):
        registry.model("smollm2-135m-instruct").source("ftp")


def test_path_to_a_file_or_directory_is_a_model(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "My Model.Q4.gguf").touch()
    (tmp_path / "dir").mkdir()
    file, folder = registry.model(str(tmp_path / "My Model.Q4.gguf")), registry.model(str(tmp_path / "dir"))
    assert file.sources == (LocalSource(tmp_path / "My Model.Q4.gguf"),)
    assert file.name.startswith("my-model.q4-")
    assert folder.name.startswith("dir-")


def test_directories_of_one_name_are_two_models(registry: Registry, tmp_path: Path) -> None:
    for parent in ("a", "b"):
        (tmp_path / parent / "final").mkdir(parents=True)
    first, second = (registry.model(str(tmp_path / parent / "final")).name for parent in ("a", "b"))
    assert first != second


def test_hub_id_is_a_model(registry: Registry) -> None:
    model = registry.model("Some-Owner/Model-1.5B")
    assert model.name == "some-owner--model-1.5b"
    assert model.sources == (HubSource("Some-Owner/Model-1.5B"),)


@pytest.mark.parametrize("reference", ["", "no-such-model", "owner/model.gguf", "a/b/c", "/no/such/dir", "../x"])
def test_anything_else_says_what_would_do(registry: Registry, reference: str) -> None:
    with pytest.raises(ModelNotFound, match=r"no model of the registry \(smollm2-135m-instruct"):
        registry.model(reference)


def test_own_pair_needs_no_registry(registry: Registry, tmp_path: Path) -> None:
    pair = registry.own_pair(str(tmp_path), "owner/big")
    assert (pair.drafter.quantization, pair.target.quantization) == ("q4f16_1", "q0f16")
    assert pair.target.model.sources == (HubSource("owner/big"),)


def test_own_file_adds_to_the_registry(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(f'default_pair = "own"\n{MODEL}{WHEELS}\n{PAIR}')
    registry = load_registry(own)
    assert set(registry.pairs) == {"smollm2", "qwen2.5-coder", "own"}
    assert registry.pair().drafter.model.name == "mine"
    assert registry.model("mine").sources == (WheelSource("p{part}==1", "p/{part:02}", 2, "f", 9, SHA),)


def test_own_file_replaces_a_model_in_built_in_pairs(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(
        '[models.smollm2-135m-instruct]\nlicence = "MIT"\narchitecture = "llama"\n'
        '[[models.smollm2-135m-instruct.sources]]\nkind = "local"\npath = "/models/x.gguf"\n'
    )
    assert load_registry(own).pair("smollm2").drafter.model.sources == (LocalSource(Path("/models/x.gguf")),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models = 3", r"own.toml: models: is 3; make it a table"),
        ("x = ", r"own.toml: cannot be read as TOML"),
        ('default_pair = "z"', r"default_pair: is 'z'; take one of smollm2"),
        ("[models.Mine]", r"models.Mine: has a name that cannot be a folder's"),
        ('[models."../x"]', r"has a name that cannot be a folder's"),
        ("[models]\nmine = 3", r"models.mine: is 3; make it a table"),
        ('[models.mine]\narchitecture = "llama"', r"models.mine: sources: is None; give at least one"),
        (MODEL.replace("llama", "gemma") + WHEELS, r"architecture: is 'gemma'; take one of llama, qwen2"),
        (MODEL.replace('"MIT"', "3") + WHEELS, r"licence: is 3; give a str"),
        (MODEL + 'kind = "ftp"', r"sources\[0\]: kind: is 'ftp'; take one of wheels, hub, local"),
        (MODEL + 'kind = "hub"', r"sources\[0\]: repository: is None; give a str"),
        (MODEL + WHEELS.replace("parts = 2", "parts = 0"), r"has 0 parts and 9 bytes"),
        (MODEL + WHEELS.replace("parts = 2", "parts = true"), r"parts: is True; give a int"),
        (MODEL + WHEELS.replace(SHA, "abc"), r"sha256: is 'abc'; give 64 lowercase hex"),
        (MODEL + WHEELS.replace('"f"', '"../f"'), r"file: is '../f'; give a plain file name"),
        (MODEL + WHEELS.replace('"p{part}==1"', '"--index-url=x"'), r"requirement: is '--index-url=x'"),
        (MODEL + WHEELS.replace("{part:02}", "{number}"), r"member: is 'p/{number}'; use {part}"),
        (MODEL + WHEELS + "\n" + PAIR.replace('"mine"', '"yours"'), r"own.drafter: model: is 'yours'"),
        (MODEL + WHEELS + "\n" + PAIR.replace("q4f16_1", "q3"), r"own.drafter: quantization: is 'q3'"),
        ('[pairs.own]\ndrafter = "mine"', r"pairs.own: drafter: is 'mine'; make it a table"),
    ],
)
def test_own_file_that_is_wrong_names_the_field(tmp_path: Path, text: str, message: str) -> None:
    own = tmp_path / "own.toml"
    own.write_text(text)
    with pytest.raises(InvalidInput, match=message):
        load_registry(own)


def test_own_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"none\.toml: cannot be read"):
        load_registry(tmp_path / "none.toml")
