"""Detectors of numbers: bank accounts, cards, phones, national numbers and wallets, by their checksums."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Final

import phonenumbers
from stdnum import bitcoin, iban, luhn
from stdnum.be import nn as belgium
from stdnum.br import cpf
from stdnum.ch import ssn as switzerland
from stdnum.cl import rut
from stdnum.cn import ric
from stdnum.es import dni, nie
from stdnum.fi import hetu
from stdnum.fr import nir
from stdnum.in_ import pan
from stdnum.it import codicefiscale
from stdnum.kr import rrn
from stdnum.mx import curp
from stdnum.se import personnummer
from stdnum.us import ssn

from edgedraft.privacy.detect.context import behind, near_before
from edgedraft.privacy.detect.registry import Spans

# ---------------------------------------------------------------- bank accounts

_IBAN: Final = re.compile(r"(?<![A-Za-z0-9])[A-Za-z]{2}\d{2}(?:[ \u00a0-]?[A-Za-z0-9]){11,30}+")
_IBAN_LENGTHS: Final = range(34, 14, -1)
_ACCOUNT_WORD: Final = re.compile(
    r"\b(?:account (?:no\b|number|nr)|acct\.? ?(?:no|number)|kontonummer|konto-?nr|num[ée]ro de (?:compte"
    r"|cuenta)|rekeningnummer"
    r"|numero (?:di |del )?conto|n[úu]mero da conta|numer konta)|账号|口座番号|계좌번호|номер сч[её]та",
    re.IGNORECASE,
)
_ACCOUNT: Final = re.compile(r"(?<![A-Za-z0-9_-])\d(?:[ -]?\d){5,17}(?![A-Za-z0-9_-])")


def bank_account(text: str) -> Spans:
    """IBANs, and other account numbers that are said to be such."""
    for match in _IBAN.finditer(text):
        ends = [place + 1 for place in range(match.start(), match.end()) if text[place].isalnum()]
        compact = "".join(filter(str.isalnum, match.group())).upper()
        for length in _IBAN_LENGTHS:
            # The remainder first: it is cheap and rules out nearly all.
            if length <= len(compact) and _is_iban(compact[:length]):
                yield match.start(), ends[length - 1]
                break
    for match in behind(_ACCOUNT_WORD, _ACCOUNT, text, 12):
        yield match.span()


def _is_iban(number: str) -> bool:
    digits = "".join(str(int(char, 36)) for char in number[4:] + number[:4])
    return int(digits) % 97 == 1 and iban.is_valid(number, check_country=False)


# ---------------------------------------------------------------- cards

_DIGITS: Final = re.compile(r"(?<![A-Za-z0-9_.])\d(?:[ .\u00a0\u2010-\u2015-]?\d){12,60}(?![A-Za-z0-9_])")
_CARD: Final = re.compile(
    r"4\d{15}(?:\d{3})?|(?:5[1-5]\d{2}|222[1-9]|22[3-9]\d|2[3-6]\d{2}|27[01]\d|2720)\d{12}|3[47]\d{13}"
    r"|(?:6011|64[4-9]\d|65\d{2})\d{12}|3(?:0[0-5]|[689]\d)\d{11}|35(?:2[89]|[3-8]\d)\d{12}|62\d{14,17}"
    r"|(?:50|5[6-9]|6[37]|60)\d{14}"
)


def card(text: str) -> Spans:
    """Payment cards: a known prefix and length, and the Luhn digit."""
    for match in _DIGITS.finditer(text):
        start = match.start()
        ends = [place + 1 for place in range(start, match.end()) if text[place].isdecimal()]
        compact = "".join(filter(str.isdecimal, match.group()))
        for length in (19, 18, 17, 16, 15, 14):
            # It ends where a group of digits does.
            whole = length <= len(ends) and not text[ends[length - 1] : ends[length - 1] + 1].isdecimal()
            if whole and _CARD.fullmatch(compact[:length]) and luhn.is_valid(compact[:length]):
                yield start, ends[length - 1]
                break


# ---------------------------------------------------------------- phones

_PHONE_WORD: Final = re.compile(
    r"\b(?:tel|t[ée]l[ée]?(?:phone)?|phone|telephone|call|ring|cell|mobiles?|mobil|handy|fax|text|sms"
    r"|whatsapp|telegram|signal"
    r"|dial|telefon\w*|numéro"
    r"|appelez|portable|ll[aá]ma\w*|tel[eé]fono|m[oó]vil|celular|cellulare|telefone|bel|gsm|kom[oó]rka"
    r"|ruf|anruf\w*|dzwo[nń]\w*|cep)\b"
    r"|电话|手机|電話|携帯|휴대폰|전화|телефон|звоните|मोबाइल|फ़ोन",
    re.IGNORECASE,
)
_PHONE: Final = re.compile(
    r"(?<![A-Za-z0-9_.,/:-])(?:\+|\(\+?)?\d(?:[ ().\u00a0/-]{0,3}\d){6,16}(?:\s?(?:x"
    r"|ext\.?)\s?\d{1,5})?+(?![A-Za-z0-9_]|[-./:,][A-Za-z0-9_])"
)
_SEPARATED: Final = re.compile(r"\(\d+\)|\d[ .-]\d")
_NORTH_AMERICA: Final = re.compile(r"(?:1[ .-]?)?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}")
_BRAZIL: Final = re.compile(r"\(\d{2}\) ?9?\d{4}-\d{4}")
_RUSSIA: Final = re.compile(r"8 \(\d{3}\) ?\d{3}-\d{2}-\d{2}")
_TRUNK_ZERO: Final = ("GB", "DE", "FR", "NL", "SE", "AU", "IT", "CH", "BE", "TR", "JP", "KR", "AT", "IN")
_OTHERS: Final = ("US", "ES", "PT", "PL", "BR", "CN", "RU", "NO", "DK", "MX")


_ARGUMENT: Final = re.compile(r"(\w{1,64})\($")
_LIST: Final = re.compile(r"[1-9]\d*(?:[ \u00a0]\d+){4,}")
_MANY_GROUPS: Final = re.compile(r"[1-9](?:\s\d\d){4}|8\s\d{3}\s\d{3}\s\d\d\s\d\d")  # France, Russia


def phone(text: str) -> Spans:
    """Phone numbers: with a country code, written as in North America, behind a trunk zero, or said to be such."""
    for match in _PHONE.finditer(text):
        told = near_before(_PHONE_WORD, text, match.start(), 24) and not _is_argument(text, match)
        if _is_phone(match.group(), told):
            yield match.span()


@lru_cache(maxsize=1024)
def _is_phone(value: str, told: bool) -> bool:
    """Whether it is a number that exists or, where it is said to be a phone's, one that could."""
    if value.lstrip("(").startswith(("+", "00")):
        international = "+" + value.replace("(0)", "").lstrip("(+0")
        return _parses(international, None, phonenumbers.is_possible_number)
    if told and _SEPARATED.search(value):
        return not _is_list(value)
    for form, region in ((_NORTH_AMERICA, "US"), (_BRAZIL, "BR"), (_RUSSIA, "RU")):
        if form.fullmatch(value):
            return _parses(value, region, phonenumbers.is_valid_number)
    check = phonenumbers.is_possible_number if told else phonenumbers.is_valid_number
    if value.startswith(("0", "(0")) and (told or _SEPARATED.search(value)):
        return any(_parses(value, region, check) for region in _TRUNK_ZERO)
    return told and any(_parses(value, region, check) for region in _OTHERS)


def _is_argument(text: str, match: re.Match[str]) -> bool:
    """Whether it is given to a function, as in `call foo(1234567, 890)`."""
    called = _ARGUMENT.search(text, max(0, match.start() - 66), match.start())
    return called is not None and ")" not in match.group() and not _PHONE_WORD.fullmatch(called.group(1))


def _is_list(value: str) -> bool:
    """Whether it reads as numbers one after the other, as in `Signal 10 20 30 40 50 60`."""
    if not _LIST.fullmatch(value):
        return False
    groups = value.split()
    if len({int(after) - int(before) for before, after in pairwise(groups)}) == 1:  # of even steps
        return True
    # A phone number may be told digit by digit, or without the sign or the zero before it.
    if all(len(group) == 1 for group in groups) or _MANY_GROUPS.fullmatch(value):
        return False
    return not _parses(f"+{value}", None, phonenumbers.is_valid_number)


def _parses(value: str, region: str | None, check: Callable[[phonenumbers.PhoneNumber], bool]) -> bool:
    try:
        return check(phonenumbers.parse(value, region))
    except phonenumbers.NumberParseException:
        return False


# ---------------------------------------------------------------- national numbers

_NATIONAL: Final[tuple[tuple[str, Callable[[str], bool]], ...]] = (
    (r"\d{3}-\d{2}-\d{4}", ssn.is_valid),
    (r"\d{8}[ -]?[A-Za-z]", dni.is_valid),
    (r"[XYZxyz][ -]?\d{7}[ -]?[A-Za-z]", nie.is_valid),
    (r"[A-Za-z]{6}\d{2}[A-Za-z]\d{2}[A-Za-z]\d{3}[A-Za-z]", codicefiscale.is_valid),
    (r"[12][ .]?\d{2}[ .]?\d{2}[ .]?\d[\dAB][ .]?\d{3}[ .]?\d{3}[ .]?\d{2}", nir.is_valid),
    (r"\d{3}\.\d{3}\.\d{3}-\d{2}", cpf.is_valid),
    (r"756[. ]?\d{4}[. ]?\d{4}[. ]?\d{2}", switzerland.is_valid),
    (r"\d{17}[\dXx]", ric.is_valid),
    (r"\d{6}-[1-8]\d{6}", rrn.is_valid),
    (r"\d{6}[-+A-FU-Yu-y]\d{3}[A-Za-z0-9]", hetu.is_valid),
    (r"(?:\d{2})?\d{6}[-+]\d{4}", personnummer.is_valid),
    (r"\d{2}\.\d{2}\.\d{2}-\d{3}\.\d{2}", belgium.is_valid),
    (r"[A-Z]{3}[PCHFATBLJG][A-Z]\d{4}[A-Z]", pan.is_valid),
    (r"[A-Z]{4}\d{6}[HM][A-Z]{5}[A-Z0-9]\d", curp.is_valid),
    (r"\d{1,2}\.\d{3}\.\d{3}-[\dKk]", rut.is_valid),
)
"""Forms of national numbers that tell themselves, each with its checksum."""
_NATIONAL_FORMS: Final = tuple(
    (re.compile(rf"(?<![A-Za-z0-9.+-]){form}(?![A-Za-z0-9]|[-.]\d)"), check) for form, check in _NATIONAL
)
_ID_WORD: Final = re.compile(
    r"\b(?:ssn|social security|sin|nino?|national (?:id|insurance|identi\w+)|nhs|tfn|tax (?:id|file)\w*|tin|itin|ppsn?"
    r"|aadhaar|pan card|passport|passeport|pasaporte|passaporto|reisepass\w*|paszport\w*|paspoort\w*|personalausweis\w*"
    r"|steuer-?(?:id\w*|nummer)|ahv\w*|sozialversicherung\w*|(?:sécurité|securite) sociale|registre national"
    r"|nir|carte d'identité"
    r"|dni|nie|nif|rut|curp|c[óo]digo fiscal|codice fiscale|c\.f\.|cpf|bsn|burgerservicenummer"
    r"|rijksregister\w*|pesel|cnp|egn"
    r"|rodn[ée] č[íi]slo|amka|oib|personnummer\w*|cpr\w*|fødselsnummer\w*|hetu|henkilötunnus|kimlik|tckn"
    r"|driver'?s licen[cs]e"
    r"|licen[cs]e (?:no|number)|id (?:card|number|no)|identity (?:card|number))\b"
    r"|паспорт|инн|снилс|身份证|护照|主民|주민등록번호|여권|マイナンバー|パスポート|आधार",
    re.IGNORECASE,
)
_ID: Final = re.compile(r"(?<![A-Za-z0-9])(?=[A-Za-z./ -]{0,8}\d)[A-Za-z0-9](?:[ ./-]?[A-Z0-9]){5,21}(?![A-Za-z0-9])")


_YEAR: Final = re.compile(r"(?<![A-Za-z0-9])(?:19|20)\d\d(?![A-Za-z0-9])")
_FEWEST_DIGITS: Final = 4


def national_id(text: str) -> Spans:
    """Numbers of persons at the state: those with a form and checksum of their own, and those said to be such."""
    for form, check in _NATIONAL_FORMS:
        for match in form.finditer(text):
            if check(match.group()):
                yield match.span()
    for match in behind(_ID_WORD, _ID, text, 24):
        # `passport form DS-11 2024` has a year in it, and no number of a person.
        if sum(map(str.isdecimal, _YEAR.sub("", match.group()))) >= _FEWEST_DIGITS:
            yield match.span()


# ---------------------------------------------------------------- wallets

_BITCOIN: Final = re.compile(
    r"(?<![A-Za-z0-9])(?:[13][1-9A-HJ-NP-Za-km-z]{25,34}|bc1[02-9ac-hj-np-z]{11,87})(?![A-Za-z0-9])"
)
_ETHEREUM: Final = re.compile(r"(?<![A-Za-z0-9])0x[0-9A-Fa-f]{40}(?![A-Za-z0-9])")
_TAPROOT_LENGTH: Final = 62


def wallet(text: str) -> Spans:
    """Addresses of Bitcoin, by their checksum, and of Ethereum."""
    for match in _BITCOIN.finditer(text):
        value = match.group()
        # Taproot has a checksum of another kind.
        if bitcoin.is_valid(value) or (value.startswith("bc1p") and len(value) == _TAPROOT_LENGTH):
            yield match.span()
    for match in _ETHEREUM.finditer(text):
        yield match.span()
