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
_GIVEN: Final = re.compile(r"(?:[:=：]|(?<!\w)(?:is|ist|lautet|est|es|è|é|jest|är)\s|[は是为])\s{0,3}[\"'`「]?$")
"""Between a key word and a value: the value is the key, as in `token: ...`."""
_DATED: Final = r"(?:19|20)\d{2}(?:[01]\d[0-3]\d)?"
_VERSION: Final = rf"{_DATED}|v\d{{1,3}}|\d{{1,3}}b|\d{{1,2}}\.\d{{1,2}}"
_VERSION_PART: Final = rf"(?:[a-z]{{2,16}}|v?\d{{1,3}}[a-z]?|[01]\d[0-3]\d|{_DATED})"
_NAME_WITH_VERSION: Final = re.compile(
    rf"(?=.{{0,200}}?[-_./](?:{_VERSION})(?![^-_./]))[a-z]{{2,16}}(?:[-_./]{_VERSION_PART}){{1,12}}"
)
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
_TYPE: Final = (
    r"(?:Optional|Union|List|Dict|Annotated|SecretStr|str|string|bytes|bytearray|int|integer|bool|boolean|object|any"
    r"|(?:n?var)?char2?|character varying|varbinary|bytea|text|clob)"
)
_ASSIGNED: Final = re.compile(
    # `password: str = "..."`: the value stands behind the type.
    rf"\s{{0,3}}[\"']?\??\s{{0,2}}(?::\s?&?(?i:{_TYPE})\b(?:\[[\w.,|\[ ]{{0,40}}\]{{0,3}})?(?:\s?\|\s?None)?\s{{0,2}}"
    rf"(?==))?[:=：]\s{{0,3}}[\"']?({_VALUE}{{4,64}}+)"
)
_STATED: Final = re.compile(
    rf"\s{{1,3}}(?:is|ist|lautet|war|was|est|es|è|é|jest|är|to)\s{{1,3}}[\"']?({_VALUE}{{4,64}}+)"
)
_STATED_CJK: Final = re.compile(rf"\s?(?:は|是|为|는|은)\s?[「\"']?({_VALUE}{{4,64}}+)")
_BARE: Final = re.compile(rf"[ =]({_VALUE}{{4,64}}+)")
_NO_PASSWORD: Final = re.compile(
    r"(?:none|null|nil|undefined|true|false|required|optional|string|str|text|hidden|hashed|empty|unknown|changeme\?"
    # What forms, code and instructions have behind the word.
    r"|pass(?:word|wd|phrase|code)?|pwd|input|self|this|await|return|lambda|async"
    r"|must|should|shall|cannot|needs?|minimum|maximum|least|between|please|enter|type|choose|your"
    r"|muss|mindestens|bitte|debe|deve|doit|moet"
    r"|[*•x.]+|[<${(%\[].*|\)[.,:;)].*)",
    re.IGNORECASE,
)
_OF_TYPE: Final = re.compile(rf"&?{_TYPE}(?:[\[(].*)?", re.IGNORECASE)
_CODE: Final = re.compile(
    r"\$?[A-Za-z_]\w*(?:(?:\.|::|->?)\w+)+[(\[].*"  # os.getcwd(), os.environ[
    r"|[A-Za-z_]+\([A-Za-z_][\w.]*(?:\(.*)?\)+"  # hash(pw)
    r"|(?:[a-z]+_|[a-z]+(?=[A-Z]))[A-Za-z_]+\(.*"  # make_password(12)
    r"|[A-Za-z_]+(?:(?:\.|->?)[A-Za-z_]+)*?\.(?i:password|passwd|pwd|passphrase|pass)\)*"  # form.password
)
_CUT_CALL: Final = re.compile(r"[A-Za-z_]+[(\[](?:[^()]*|[A-Za-z_][\w.]*\(.*)")
"""A call up to its first quote or comma, where the search for a value ends."""
_OBJECT: Final = re.compile(
    r"(?:self|this|os|sys|process|env|environ|config|settings|conf|req|request|res|ctx|context|args|params|options|opts"
    r"|data|form|user|account|credentials|creds|secrets|props|state|body|event|input|board)(?:(?:\.|::|->?)[A-Za-z_]+)+"
)
_NAMED_FOR_ONE: Final = re.compile(r"[a-z]+(?:_[a-z]+)*(?:_(?:password|passwd|pwd|passphrase)|(?:Password|Passwd|Pwd))")
"""A variable such as `new_password`; it and attributes count only where it is plain that they stand in code."""
_AMBIGUOUS: Final = re.compile(r"pass|pin|clave", re.IGNORECASE)
"""Mountains have a pass and machines a pin."""
_MEASURE: Final = re.compile(
    r"(?:\d{1,5}(?:[.,]\d{1,3})?\s?)(?:mm|cm|km|m|ft|metres?|meters?|miles?|feet|inch(?:es)?|kg|g|kb|mb|years?|Meter|metros)"
    r"(?![\w-])"
)
_LENGTH: Final = re.compile(
    r"\d{1,3}(?:\s?[-–]\s?\d{1,3})? (?:char(?:acter)?s?|digits?|letters?|symbols?|words?"
    r"|Zeichen|Ziffern|caract\w+)\b"
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
        given = _GIVEN.search(text, max(0, match.start() - 12), match.start())
        # `the token limit of gpt-4o-mini-2024-07-18` names a model.
        if told and (given or not _NAME_WITH_VERSION.fullmatch(value)):
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
        if match is None or _is_none(text, match):
            continue
        value = match.group(1).rstrip(".,;)")
        if not assigned:
            if not (_has_digits_and_letters(value) or value.isdecimal()):
                continue
            if _AMBIGUOUS.fullmatch(word.group()) and _MEASURE.match(text, match.start(1)):
                continue
        yield match.start(1), match.start(1) + len(value)


def _is_none(text: str, match: re.Match[str]) -> bool:
    """Whether what stands in the place of a password is a word of a form, of code or of an instruction."""
    start, value = match.start(1), match.group(1)
    word = value.strip("`").rstrip(".,;:)]}`")
    if not word or _NO_PASSWORD.fullmatch(word) or _NO_PASSWORD.fullmatch(value.rstrip(".,;)")):
        return True
    if _LENGTH.match(text, start):
        return True
    if text[start - 1] in "\"'":  # quoted: a text, not code
        return False
    code = value.strip("`").rstrip(".,;:}")
    if _OF_TYPE.fullmatch(word) or _CODE.fullmatch(code):
        return True
    if _CUT_CALL.fullmatch(code) and text[match.end() : match.end() + 1] in (",", '"', "'"):
        return True
    behind_it = value[len(word) :] + text[match.end() : match.end() + 2].strip()
    in_code = text[max(0, start - 4) : start].rstrip().endswith("=") or behind_it.startswith((",", ")", ";", "}"))
    return in_code and (_NAMED_FOR_ONE.fullmatch(word) or _OBJECT.fullmatch(word)) is not None


def _bits(value: str) -> float:
    """Shannon entropy of a character of a text, in bits."""
    return -sum(count / len(value) * math.log2(count / len(value)) for count in Counter(value).values())


def _has_digits_and_letters(value: str) -> bool:
    return any(map(str.isdecimal, value)) and any(map(str.isalpha, value))


def _is_mixed(value: str) -> bool:
    """Small and capital letters and digits, in disorder."""
    kinds = "".join("d" if char.isdecimal() else "u" if char.isupper() else "l" for char in value if char.isalnum())
    changes = sum(a != b for a, b in pairwise(kinds))
    return min(map(kinds.count, "dul")) >= 3 and changes >= len(kinds) / 3
