"""The README keeps its word: its commands and options exist, its code runs, its links lead somewhere."""

import asyncio
import contextlib
import io
import re
import shlex
import subprocess

import pytest
import typer
from source_tree import ROOT
from toy import ScriptedDrafter, toy_draft

from edgedraft_apps.cli import app as edgedraft_app
from edgedraft_cloud.authority import DevelopmentAuthority
from edgedraft_cloud.cli import app as verifier_app

PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "cloud/README.md",
    "docs/what-leaves-the-device.md",
)
COMMANDS = {"edgedraft": edgedraft_app, "edgedraft-verifier": verifier_app}


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text(page), flags=re.DOTALL)


def command_lines() -> list[str]:
    in_blocks = [
        line.removeprefix(".venv/bin/")
        for page in PAGES
        for block in blocks(page, "bash")
        for line in block.splitlines()
    ]
    in_text = re.findall(r"`((?:edgedraft|edgedraft-verifier|make) [^`]+)`", "".join(map(text, PAGES)))
    return in_blocks + in_text


@pytest.mark.parametrize("line", [line for line in command_lines() if line.startswith("edgedraft")])
def test_commands_and_their_options_exist(line):
    program, *words = shlex.split(line)
    command = typer.main.get_command(COMMANDS[program])
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    assert not hasattr(command, "commands") or not words, f"no command {words[0]}"
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    assert {word for word in words if word.startswith("-")} <= known


@pytest.mark.parametrize("line", [line for line in command_lines() if line.startswith("make")])
def test_make_knows_its_targets(line):
    shown = subprocess.run([*shlex.split(line), "--dry-run"], cwd=ROOT, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr


def test_a_prompt_reaches_the_demo_as_it_was_typed(tmp_path):
    """Whatever quotes, dollars and spaces it has; and each variable that the pages name becomes an option."""
    (tmp_path / "bin").mkdir()
    for name, body in (("pip", "exit 1"), ("edgedraft", 'printf "%s\\n" "$@"')):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / ".demo").touch()  # what it needs is installed
    prompt = """it's "$HOME" for $5 & `more`; $(shell false) #1"""
    variables = {name for line in command_lines() for name in re.findall(r"\b([A-Z_]+)=", line)} - {"PROMPT"}
    given = [f"PROMPT={prompt}", *(f"{name}=7" for name in sorted(variables))]
    shown = subprocess.run(
        ["make", "--silent", "demo", f"VENV={tmp_path}", *given], cwd=ROOT, capture_output=True, text=True
    )
    options = shown.stdout.splitlines()
    assert options[:3] == ["demo", "--prompt", prompt], shown.stderr
    assert set(options[3::2]) == {"--" + name.lower().replace("_", "-") for name in variables}
    assert set(options[4::2]) == {"7"}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\((?!https?://)([^)#]+)\)", text(page)):
        assert ((ROOT / page).parent / link).is_file(), link


def test_certificates_lie_where_the_readme_says(tmp_path):
    authority = DevelopmentAuthority(tmp_path / "certificates")
    found = {authority.server(), authority.device("dev", "device")}
    said = set(re.findall(r"\./(certificates/\S+)", text("README.md")))
    assert {tmp_path / path for path in said} == found


@pytest.mark.parametrize("code", blocks("docs/what-leaves-the-device.md", "python"))
def test_the_code_of_the_page_on_privacy_runs(code):
    exec(compile(code, "docs/what-leaves-the-device.md", "exec"), {})


@pytest.mark.parametrize("code", blocks("README.md", "python"))
async def test_the_code_runs(code, bench, certificates, model_folder, codec, monkeypatch):
    def load(folder, threads):
        return ScriptedDrafter(toy_draft, vocab_size=codec.vocab_size, tokenizer_fingerprint=codec.fingerprint)

    monkeypatch.setattr("edgedraft.client._load_drafter", load)
    for said, meant in (
        ("./drafter", model_folder),
        ("verifier.example:7443", f"localhost:{bench.server.port}"),
        ("./my-device", certificates.device("acme", "phone-1")),
    ):
        assert said in code
        code = code.replace(said, str(meant))
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        await asyncio.to_thread(exec, compile(code, "README.md", "exec"), {"__name__": "__main__"})
    assert shown.getvalue().strip()
