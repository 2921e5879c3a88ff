"""Detectors of credentials: API keys and tokens by shape and entropy, and passwords by the word before them."""

from __future__ import annotations

import math
import re
from collections import Counter
from itertools import pairwise
from typing import Final

from edgedraft.privacy.detect.context import behind
from edgedraft.privacy.detect.registry import Spans

_KNOWN: Final = re.compile(
    r"(?<![A-Za-z0-9_])(?:"
    r"(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}"  # AWS
    r"|AIza[\w-]{35}|ya29\.[\w-]{20,256}"  # Google
    r"|gh[opsur]_\w{36,255}|github_pat_\w{22,255}|glpat-[\w-]{20,255}"
    r"|sk-[\w-]{20,255}|(?:sk|pk|rk)_(?:live|test)_\w{10,255}"  # OpenAI, Anthropic; Stripe
    r"|xox[abeprs]-[\w-]{10,255}|SG\.[\w-]{16,64}\.[\w-]{16,128}|hf_\w{30,64}|npm_\w{36}|dop_v1_[0-9a-f]{64}"
    r"|pypi-[\w-]{32,255}"
    r"|eyJ[\w-]{8,2048}\.[\w-]{8,4096}(?:\.[\w-]{8,2048})?"  # JSON Web Token
    r")(?![A-Za-z0-9_])"
)
_KEY_BLOCK: Final = re.compile(r"-----BEGIN [A-Z ]{0,24}PRIVATE KEY-----\s?([A-Za-z0-9+/=\s]{16,8192}+)")
_KEY_WORD: Final = re.compile(
    r"(?:api[ _-]?|access[ _-]?|secret[ _-]?|auth[ _-]?|private[ _-]?|license[ _-]?)(?:key|token|schlüssel)\b"
    r"|_(?:key|token|secret)\b"
    r"|\b(?:apikey|secret|token|bearer|key|jeton|llave|chiave)\b|\b(?:client|shared|app)[ _-]?secret\b"
    r"|cl[ée] (?:d['’]\s?)?(?:api|secrète|privée)|clave (?:secreta|privada|de api)|schlüssel|chave (?:de api"
    r"|secreta)|sleutel"
    r"|密钥|秘钥|apiキー|キー|トークン|키|토큰|ключ|токен",
    re.IGNORECASE,
)
_TOKEN: Final = re.compile(r"(?<![A-Za-z0-9_./+~-])[A-Za-z0-9_+][A-Za-z0-9_./+~-]{15,512}+={0,2}")
_ALONE: Final = re.compile(r"(?<![A-Za-z0-9_./+=@:,~-])[A-Za-z0-9_-]{24,128}+(?![A-Za-z0-9_./+=@~-])")
_VERSION_PARTS: Final = re.compile(r"[a-z]{2,16}(?:[-_./](?:[a-z]{2,16}|v?\d{1,4}[a-z]?)){1,12}")
_TOLD_BITS: Final = 3.0
_ALONE_BITS: Final = 4.0
"""Bits of entropy a character, by the frequencies within the token: words have less than keys."""

_PASSWORD_WORD: Final = re.compile(
    r"(?<![A-Za-z])(?:pass(?:word|wd|phrase|code)?|pwd|pw|pin|kennwort|mot de passe|contraseña|clave|senha"
    r"|wachtwoord|hasło|lösenord|adgangskode|passord|salasana|şifre|parola?)(?![A-Za-z])"
    r"|_(?:password|passwd|pwd|pass)(?![A-Za-z])|passwort|пароль|パスワード|暗証番号|密码|密碼|비밀번호|पासवर्ड",
    re.IGNORECASE,
)
_VALUE: Final = r"[!#-&(-+\x2d-;=?-~\u00c0-\u024f\u0400-\u04ff]"
_ASSIGNED: Final = re.compile(rf"\s{{0,3}}[\"']?\s{{0,2}}[:=：]\s{{0,3}}[\"']?({_VALUE}{{4,64}}+)")
_STATED: Final = re.compile(
    rf"\s{{1,3}}(?:is|ist|lautet|war|was|est|es|è|é|jest|är|to)\s{{1,3}}[\"']?({_VALUE}{{4,64}}+)"
)
_STATED_CJK: Final = re.compile(rf"\s?(?:は|是|为|는|은)\s?[「\"']?({_VALUE}{{4,64}}+)")
_BARE: Final = re.compile(rf"[ =]({_VALUE}{{4,64}}+)")
_NO_PASSWORD: Final = re.compile(
    r"(?:none|null|nil|true|false|required|optional|string|str|text|hidden|empty|unknown|changeme\?|[*•x.]+"
    r"|[<${(%\[].*)",
    re.IGNORECASE,
)


def api_key(text: str) -> Spans:
    """API keys, tokens and private keys."""
    for match in _KNOWN.finditer(text):
        yield match.span()
    for match in _KEY_BLOCK.finditer(text):
        yield match.span(1)
    for match in behind(_KEY_WORD, _TOKEN, text, 24):
        value = match.group().rstrip(".,")
        told = "://" not in value and _has_digits_and_letters(value) and _bits(value) >= _TOLD_BITS
        if told and not _names_a_version(value):
            yield match.start(), match.start() + len(value)
    for match in _ALONE.finditer(text):
        value = match.group()
        if _is_mixed(value) and _bits(value) >= _ALONE_BITS:
            yield match.span()


def password(text: str) -> Spans:
    """Passwords, PINs and passphrases."""
    for word in _PASSWORD_WORD.finditer(text):
        assigned = _ASSIGNED.match(text, word.end())
        stated = _STATED.match(text, word.end()) or _STATED_CJK.match(text, word.end()) or _BARE.match(text, word.end())
        match = assigned or stated
        if match is None:
            continue
        value = match.group(1).rstrip(".,;)")
        told = value and not _NO_PASSWORD.fullmatch(value)
        if told and (assigned or _has_digits_and_letters(value) or value.isdecimal()):
            yield match.start(1), match.start(1) + len(value)


def _bits(value: str) -> float:
    """Shannon entropy of a character of a text, in bits."""
    return -sum(count / len(value) * math.log2(count / len(value)) for count in Counter(value).values())


def _has_digits_and_letters(value: str) -> bool:
    return any(map(str.isdecimal, value)) and any(map(str.isalpha, value))


def _names_a_version(value: str) -> bool:
    """Whether small words, short numbers and the like stand between hyphens, as in `gpt-4o-mini-2024-07-18`."""
    return _VERSION_PARTS.fullmatch(value) is not None


def _is_mixed(value: str) -> bool:
    """Small and capital letters and digits, in disorder."""
    kinds = "".join("d" if char.isdecimal() else "u" if char.isupper() else "l" for char in value if char.isalnum())
    changes = sum(a != b for a, b in pairwise(kinds))
    return min(map(kinds.count, "dul")) >= 3 and changes >= len(kinds) / 3
