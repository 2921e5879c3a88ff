"""A model's tokenizer and chat template, with special tokens that only the template can write."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

from tokenizers import Tokenizer

from edgedraft.errors import InvalidInput, ModelFormatError, ModelNotFound
from edgedraft.runtime.fingerprint import tokenizer_fingerprint
from edgedraft.text.template import ChatTemplate

TOKENIZER_FILE: Final = "tokenizer.json"
CONFIG_FILE: Final = "tokenizer_config.json"
MODEL_FILE: Final = "mlc-chat-config.json"

# Private-use characters: no text has them by accident, and the random part makes sure of the rest.
_OPEN, _CLOSE = "\ue000", "\ue001"


class TextCodec:
    """Text to token ids and back for one model.

    Args:
        tokenizer: Contents of `tokenizer.json`.
        template: The chat template, or None where the model has none.
        eos_token_ids: Tokens that end a text.
        fingerprint: Of the tokenizer; see `tokenizer_fingerprint`.

    Raises:
        ModelFormatError: The tokenizer is of a kind that cannot be streamed.
    """

    def __init__(
        self,
        tokenizer: Mapping[str, Any],
        template: ChatTemplate | None,
        eos_token_ids: Sequence[int],
        fingerprint: str,
    ) -> None:
        self.eos_token_ids = tuple(eos_token_ids)
        self.fingerprint = fingerprint
        self._template = template
        self._added: dict[str, Mapping[str, Any]] = {
            token["content"]: token for token in tokenizer.get("added_tokens", ()) if token["content"]
        }
        plain = {**tokenizer, "added_tokens": [], "post_processor": None}
        try:
            self._plain = Tokenizer.from_str(json.dumps(plain))
            self._whole = Tokenizer.from_str(json.dumps(dict(tokenizer)))
        except Exception as error:
            raise ModelFormatError(f"{TOKENIZER_FILE} cannot be used: {error}") from error
        self._special_ids = {token["id"] for token in self._added.values() if token["special"]}
        self._added_pattern = re.compile(
            "|".join(map(re.escape, sorted(self._added, key=len, reverse=True))) or r"(?!)"
        )
        self._to_bytes = _bytes_rule(tokenizer.get("decoder") or {})
        self.token_bytes = cache(self._token_bytes)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Load from an artifact folder.

        Raises:
            ModelNotFound: The folder or a file in it is not there.
            ModelFormatError: A file is damaged.
        """
        folder = Path(folder)
        tokenizer = _read(folder / TOKENIZER_FILE)
        config = _read(folder / CONFIG_FILE)
        model = _read(folder / MODEL_FILE)
        names = {
            name: token["content"] if isinstance(token, Mapping) else token
            for name, token in config.items()
            if name.endswith("_token") and isinstance(token, str | Mapping)
        }
        source = config.get("chat_template")
        if isinstance(source, list):  # several named ones
            source = next((entry["template"] for entry in source if entry.get("name") == "default"), None)
        eos = model.get("eos_token_id", [])
        return cls(
            tokenizer,
            ChatTemplate(source, names) if source else None,
            [eos] if isinstance(eos, int) else eos,
            tokenizer_fingerprint(tokenizer),
        )

    @property
    def vocab_size(self) -> int:
        """Number of token ids, added ones included."""
        return int(self._whole.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; what looks like a special token in it stays text.

        Raises:
            InvalidInput: The text is empty or cannot be encoded.
        """
        _check_text("text", text)
        return list(self._plain.encode(text, add_special_tokens=False).ids)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Ids of a chat in the model's template, ready for the assistant's answer.

        Special tokens that the template writes become their ids; the same characters inside a message stay text.

        Raises:
            InvalidInput: The model has no template, or it refuses these messages.
        """
        if self._template is None:
            raise InvalidInput("messages", "need a chat template, and this model has none", "pass a raw prompt")
        nonce = secrets.token_hex(8)
        literals: list[str] = []

        def hide(match: re.Match[str]) -> str:
            literals.append(match.group())
            return f"{_OPEN}{nonce}.{len(literals) - 1}{_CLOSE}"

        hidden = []
        for index, message in enumerate(messages):
            for name, value in message.items():
                _check_text(f"messages[{index}].{name}", value)
            hidden.append({name: self._hide(value, hide) for name, value in message.items()})
        rendered = self._template.render(hidden)
        marker = re.compile(f"{_OPEN}{nonce}\\.(\\d+){_CLOSE}")

        def reveal(text: str) -> str:
            return marker.sub(lambda match: literals[int(match.group(1))], text)

        ids: list[int] = []
        start = 0
        for match in self._added_pattern.finditer(rendered):
            token = self._added[match.group()]
            text = rendered[start : match.start()]
            ids += self._encode_chunk(reveal(text.rstrip() if token.get("lstrip") else text))
            ids.append(token["id"])
            start = match.end()
            if token.get("rstrip"):
                start += len(rendered[start:]) - len(rendered[start:].lstrip())
        return ids + self._encode_chunk(reveal(rendered[start:]))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; special tokens have none."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")

    # ------------------------------------------------------------ inside

    def _hide(self, text: str, hide: Any) -> str:
        """Mark whole added tokens, and what might become one together with the template's text around it."""
        text = self._added_pattern.sub(hide, text)
        head = max((k for token in self._added for k in range(1, len(token)) if text.startswith(token[-k:])), default=0)
        tail = max((k for token in self._added for k in range(1, len(token)) if text.endswith(token[:k])), default=0)
        if head + tail > len(text):
            return re.sub(r"(?s).+", hide, text)
        if tail:
            text = text[:-tail] + re.sub(r"(?s).+", hide, text[-tail:])
        return re.sub(r"(?s).+", hide, text[:head]) + text[head:] if head else text

    def _encode_chunk(self, text: str) -> list[int]:
        return list(self._plain.encode(text, add_special_tokens=False).ids) if text else []

    def _token_bytes(self, token: int) -> bytes:
        if token in self._special_ids:
            return b""
        piece = self._whole.id_to_token(token)
        if piece is None:
            return b""
        return piece.encode() if piece in self._added else self._to_bytes(piece)


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelNotFound(f"{path} is not there; make the folder with `edgedraft models build`") from error
    except (OSError, ValueError) as error:
        raise ModelFormatError(f"{path} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise ModelFormatError(f"{path} holds no JSON object; build the model again")
    return data


def _check_text(field: str, text: str) -> None:
    if not isinstance(text, str):
        raise InvalidInput(field, f"is {type(text).__name__}", "pass a string")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(field, f"has half a surrogate pair at {error.start}", "pass valid Unicode") from error


def _bytes_rule(decoder: Mapping[str, Any]) -> Any:
    """How a token's string becomes bytes, from the tokenizer's own decoder."""
    parts = decoder.get("decoders", [decoder])
    kinds = {part.get("type") for part in parts}
    if "ByteLevel" in kinds:
        return _byte_level
    if "ByteFallback" in kinds or "Metaspace" in kinds:
        return _sentence_piece
    raise ModelFormatError(
        f"{TOKENIZER_FILE} decodes by {sorted(map(str, kinds))}; ByteLevel, Metaspace and ByteFallback can be streamed"
    )


def _byte_level_alphabet() -> dict[str, int]:
    """The printable characters by which byte-level BPE writes bytes, as GPT-2 defined them.

    Bytes that print stand for themselves, the others for the code points from 256 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


_ALPHABET: Final = _byte_level_alphabet()


def _byte_level(piece: str) -> bytes:
    if all(char in _ALPHABET for char in piece):
        return bytes(_ALPHABET[char] for char in piece)
    return piece.encode()  # a token that was put into the vocabulary as plain text


def _sentence_piece(piece: str) -> bytes:
    if re.fullmatch(r"<0x[0-9A-Fa-f]{2}>", piece):
        return bytes([int(piece[3:5], 16)])
    return piece.replace("▁", " ").encode()
