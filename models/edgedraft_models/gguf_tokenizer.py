"""Rebuild a model's tokenizer exactly from the fields of a GGUF file.

A GGUF holds the vocabulary, the merges, each token's type and the *name* of the rule that splits text into words
before merging; the rules behind the names are those of the models' own tokenizers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from edgedraft.errors import ModelFormatError

_QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class _TokenType(IntEnum):
    """GGUF's token types, as far as byte-pair vocabularies use them."""

    NORMAL = 1
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5


def _smollm(tokenizer: Tokenizer) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )


def _qwen2(tokenizer: Tokenizer) -> None:
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN2_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


_WORD_RULES: Mapping[str, Callable[[Tokenizer], None]] = {"smollm": _smollm, "qwen2": _qwen2}


@dataclass(frozen=True)
class GgufTokenizer:
    """The tokenizer fields of a GGUF file.

    Attributes:
        rule: Name of the word-splitting rule (`tokenizer.ggml.pre`).
        tokens: Texts by id; normal tokens in byte-level spelling, the others as they are.
        types: Type of each token, see `_TokenType`.
        merges: Pairs joined by a space, most frequent first.
        special_ids: The ids named `bos`, `eos`, `unknown` and `padding`, where the file has them.
        chat_template: Jinja text, or None.
    """

    rule: str
    tokens: Sequence[str]
    types: Sequence[int]
    merges: Sequence[str]
    special_ids: Mapping[str, int]
    chat_template: str | None

    @classmethod
    def read(cls, fields: Mapping[str, Any], origin: Path) -> GgufTokenizer:
        """Take the tokenizer out of a GGUF's metadata.

        Args:
            fields: Metadata by key.
            origin: The file, for messages.

        Raises:
            ModelFormatError: The file has no byte-pair tokenizer, or one whose rule is not known here.
        """
        kind, rule = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
        if kind != "gpt2" or not isinstance(rule, str) or rule not in _WORD_RULES:
            raise ModelFormatError(
                f"{origin}: tokenizer {kind!r} with rule {rule!r} cannot be rebuilt (known: 'gpt2' with "
                f"{', '.join(map(repr, _WORD_RULES))}); take the model as safetensors, which bring their tokenizer.json"
            )
        missing = [name for name in ("tokens", "token_type", "merges") if f"tokenizer.ggml.{name}" not in fields]
        if missing:
            raise ModelFormatError(f"{origin}: tokenizer.ggml.{missing[0]} is missing; fetch the file again")
        named = {name: fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "unknown", "padding")}
        tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
        if len(tokens) != len(types):
            raise ModelFormatError(f"{origin}: {len(tokens)} tokens have {len(types)} types; fetch the file again")
        known = set(tokens)
        for merge in fields["tokenizer.ggml.merges"]:
            left, _, right = merge.partition(" ")
            if not known.issuperset((left, right, left + right)):
                raise ModelFormatError(f"{origin}: merge {merge!r} makes no token of the list; fetch the file again")
        for name, token_id in named.items():
            if token_id is not None and not 0 <= token_id < len(tokens):
                raise ModelFormatError(f"{origin}: {name} token {token_id} lies outside the {len(tokens)} tokens")
        if named["eos"] is None:
            raise ModelFormatError(f"{origin}: tokenizer.ggml.eos_token_id is missing, so no text would ever end")
        return cls(
            rule=rule,
            tokens=tokens,
            types=types,
            merges=fields["tokenizer.ggml.merges"],
            special_ids={name: token_id for name, token_id in named.items() if token_id is not None},
            chat_template=fields.get("tokenizer.chat_template"),
        )

    def eos_token_ids(self) -> tuple[int, ...]:
        """The token that ends a turn and, where it is another, the one that ends a text: a model may emit either."""
        eos = self.special_ids["eos"]
        others = (
            token_id
            for token_id, (text, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if kind == _TokenType.CONTROL and text in ("<|endoftext|>", "<|end_of_text|>") and token_id != eos
        )
        return (eos, *others)

    def build(self) -> Tokenizer:
        """Make the tokenizer."""
        used = {
            text: token_id
            for token_id, (text, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if kind != _TokenType.UNUSED
        }
        merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in self.merges)]
        tokenizer = Tokenizer(models.BPE(vocab=used, merges=merges))
        _WORD_RULES[self.rule](tokenizer)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_tokens([AddedToken(text, normalized=False) for text in self._of_type(_TokenType.USER_DEFINED)])
        tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in self._of_type(_TokenType.CONTROL)])
        return tokenizer

    def save(self, folder: Path, context: int) -> None:
        """Write tokenizer.json and tokenizer_config.json.

        Args:
            folder: An existing folder.
            context: Tokens that the model can take.
        """
        self.build().save(str(folder / "tokenizer.json"))
        roles = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
        config: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": context,
            "clean_up_tokenization_spaces": False,
            **{roles[name]: self.tokens[token_id] for name, token_id in self.special_ids.items()},
        }
        if self.chat_template is not None:
            config["chat_template"] = self.chat_template
        text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
        (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")

    def _of_type(self, wanted: _TokenType) -> list[str]:
        return [text for text, kind in zip(self.tokens, self.types, strict=True) if kind == wanted]
