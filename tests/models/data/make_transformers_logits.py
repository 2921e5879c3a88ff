"""Make `transformers_logits.json`: what transformers computes on the tiny models, for `test_models_reference.py`.

Needs torch and transformers beside the test requirements, so it is run by hand: `python make_transformers_logits.py`.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
import transformers

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from conftest import tiny_model  # noqa: E402

TOKENS = [5, 17, 256, 99, 311, 42, 42]
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS = {
    "llama": ("llama", {}),
    "llama3": ("llama", {"rope_scaling": LLAMA3, "rope_theta": 500000.0, "tie_word_embeddings": False}),
    "qwen2": ("qwen2", {"rms_norm_eps": 1e-6, "rope_theta": 1000000.0}),
}

cases = {}
for name, (kind, changes) in MODELS.items():
    with tempfile.TemporaryDirectory() as folder:
        tiny_model(kind, **changes).write_hf(Path(folder))
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        with torch.no_grad():
            logits = model(torch.tensor([TOKENS])).logits[0]
    picked = [[round(value, 5) for value in row] for row in logits[:, ::20].tolist()]
    cases[name] = {"model_type": kind, "config": changes, "tokens": TOKENS, "every": 20, "logits": picked}
made_with = f"transformers {transformers.__version__}, torch {torch.__version__}"
(HERE / "transformers_logits.json").write_text(json.dumps({"made_with": made_with, "cases": cases}) + "\n")
