"""Detector of postal addresses: a street in the form of its language, with what follows of flat, postcode and town."""

from __future__ import annotations

import re
from typing import Final

from edgedraft.privacy.detect.registry import Spans

_CAPITAL: Final = r"A-ZÀ-ÖØ-ÞĀĂĄĆČĎĐĒĘĚĞĪİŁŃŇŌŐŘŚŞŠŤŪŮŰŹŻŽА-ЯЁ"
_ABBREVIATED: Final = (
    r"(?:[Ss](?:t|te|ta|to|r|ra|gt|en)|Ntra|Dra?|Prof|Pres|Gen|Gral|Col|Cel|Cap|Maj|Mar|Lt|Adm|Alm|Mgr|Mons|Ks|[Śś]w|Ing"
    r"|Eng|Avv|Rev|Hnos|Marsz|Kard|Bp|Kpt|Płk|Cons|Mtro|Cdte|Cmdte|Com|Brig|Arq|Lic|Des|Dep|Min|Visc|Mt|Ft|Pt"
    r"|Акад?|Адм|Ген|Марш|Проф)\."
)
_WHOLE: Final = rf"[{_CAPITAL}](?:[\w'’-]|\.(?=[\w'’-])){{0,24}}+"
# A full stop ends the sentence, but for that of an abbreviation; of an initial too, where no town ends.
_WORD: Final = rf"(?:{_ABBREVIATED}|[{_CAPITAL}]\.(?!\w)|{_WHOLE})"
_TOWN_WORD: Final = rf"(?:{_ABBREVIATED}|{_WHOLE})"
_GAP: Final = r"(?:[^\S\n\r]|-)"
"""Between words of a name: no end of a line."""
_LINK: Final = (
    r"(?:(?:de|la|las|los|le|les|du|des|da|das|do|dos|della|delle|dei|del|di|der|den|dem|van|von|zum|zur|of|the|y|e)\s"
    r"|[dl]['’])"
)
_NAME: Final = rf"{_LINK}{{0,2}}{_WORD}(?:{_GAP}{_LINK}{{0,2}}{_WORD}){{0,4}}"
_NUMBER: Final = r"\d{1,5}\s?(?:bis\b|ter\b|[A-Za-z]\b)?(?:[/-]\d{1,4}[a-z]?\b)?"
_UNIT: Final = r"(?:,?\s(?:[Aa]pt|[Uu]nit|[Ss]uite|[Ff]lat)\.?\s\w{1,6})?"
_UNIT_NEEDED: Final = _UNIT.removesuffix("?")
_POSTCODE: Final = r"(?:[A-Z]{1,2}-)?\d{4,5}(?:\s[A-Z]{2})?|\d{3}\s\d{2}|\d{2}-\d{3}|\d{5}-\d{3}"
_UK_OR_US: Final = r"[A-Z]{1,2}\d[A-Z\d]?\s?\d[A-Z]{2}|[A-Z]{2}\s\d{5}(?:-\d{4})?"
_TOWN: Final = (
    rf"(?:,\s(?:(?:{_POSTCODE})\s)?{_TOWN_WORD}(?:{_GAP}(?!(?:{_UK_OR_US})\b){_TOWN_WORD}){{0,2}})?"
    rf"(?:,?\s(?:{_UK_OR_US})\b)?"
)
_TOWN_NEEDED: Final = rf",\s(?:{_POSTCODE}|{_WORD}(?:\s{_WORD}){{0,2}},?\s(?:{_UK_OR_US})\b)"
_NUMBER_WORD: Final = r"(?:n[º°.o]\.?\s?|[Nn]o:?\.?\s?|д\.\s?|nr\.?\s)?"

_FORMS: Final = tuple(
    re.compile(form)
    for form in (
        # 221B Baker Street, London NW1 6XE
        rf"(?<![\w.-])(?:(?:Flat|Apt|Unit"
        rf"|Suite)\s\w{{1,5}},?\s)?\d{{1,5}}[A-Za-z]?\s(?:[NSEW]\.?\s)?{_WORD}(?:\s{_WORD}){{0,3}}?\s"
        r"(?:Street|St|Avenue|Ave|Road|Rd|Lane|Ln|Drive|Dr|Boulevard|Blvd|Way|Court|Ct|Place|Pl|Square|Sq"
        r"|Terrace|Crescent|Close"
        rf"|Highway|Hwy|Parkway|Gardens|Grove|Row)\b\.?{_UNIT}{_TOWN}",
        # 9 Mill Crest, Springfield, IL 62704: words of nature are streets where a town follows, or a flat
        rf"(?<![\w.-])(?:(?:Flat|Apt|Unit"
        rf"|Suite)\s\w{{1,5}},?\s)?\d{{1,5}}[A-Za-z]?\s{_WORD}(?:\s{_WORD}){{0,2}}?\s(?:Alley|Bend|Bridge"
        r"|Circle|Cove|Creek|Crest|Crossing|Field|Garden|Green|Heights|Hill|Junction|Landing|Loop|Manor"
        r"|Meadow|Mews|Mill|Mount|Orchard"
        rf"|Park|Path|Plaza|Point|Ridge|Run|Trail|Valley|View|Village|Vista|Walk)s?\b(?:{_UNIT_NEEDED}"
        rf"|(?={_TOWN_NEEDED})){_TOWN}",
        rf"\bP\.?\s?O\.?\s?Box\s\d{{1,6}}{_TOWN}",
        # 14 rue de la Paix, 75002 Paris
        rf"(?<![\w.-])\d{{1,4}}(?:\s?(?:bis|ter))?,?\s(?:rue|avenue|av\.|boulevard|bd|place|chemin|allée"
        rf"|impasse|quai|cours|route)"
        rf"\s{_NAME}{_TOWN}",
        # Via Garibaldi 23, 20121 Milano
        r"\b(?:[Cc]alle|C/|Callejón|Glorieta|Ronda|Cuesta|Pasaje|Carretera|Vial|Urbanización|Avda\.?|Avenida"
        r"|Plaza|Paseo|Camino|Carrera|[Vv]ia|[Vv]iale|[Pp]iazza|[Cc]orso"
        r"|[Ll]argo|[Vv]icolo|[Ss]trada|Borgo|Contrada|[Rr]ua|Av\.|Travessa|Ladeira"
        rf"|Praça|Alameda|Estrada|[Uu]l\.|[Uu]lica|[Aa]l\.|[Aa]leja|[Pp]l\.|[Pp]lac|[Oo]s\.|[Уу]л\.|[Уу]лица"
        rf"|[Пп]р\.|[Пп]роспект"
        rf"|[Пп]ер\.)\s?{_NAME},?\s{_NUMBER_WORD}"
        rf"{_NUMBER}(?:,?\s(?:кв|корп|стр)\.\s?\d{{1,4}}){{0,2}}{_TOWN}",
        # Hauptstraße 17, 50667 Köln; Keizersgracht 123, 1015 CJ Amsterdam; Storgatan 5, 111 51 Stockholm
        rf"(?<!\w)(?:{_WORD}[\s-]){{0,2}}[{_CAPITAL}][\w-]{{1,24}}?(?:straße|strasse|str\.|weg|platz|allee"
        rf"|gasse|ufer|damm|markt|straat|gracht"
        rf"|laan|plein|kade|dijk|singel|steeg|pad|gatan|vägen|stigen|gränd|torget|vej|gade|veien|katu"
        rf"|tie)\s{_NUMBER}{_TOWN}",
        # Am Alten Markt 3a, 14467 Potsdam
        rf"\b(?:Am|An\sder|Auf\sdem|Im|In\sder|Zum|Zur|Unter\sden)\s{_NAME}\s{_NUMBER},\s\d{{5}}\s{_WORD}",
        # Atatürk Caddesi No: 15, Kadıköy
        rf"(?<!\w){_WORD}(?:\s{_WORD}){{0,2}}\s(?:Caddesi|Cad\.|Sokağı|Sokak|Sok\.|Bulvarı"
        rf"|Mahallesi)\s{_NUMBER_WORD}{_NUMBER}{_TOWN}",
        # Atomic: else it tries all ways to cut text that is full of these signs.
        r"(?:(?>[\u4e00-\u9fff]{2,8}?[省市区县縣])){1,3}[\u4e00-\u9fff]{1,12}?[路街道巷]\d{1,5}[号號](?:[\d\u4e00-\u9fff]{1,8}[室楼樓])?",
        r"[\u4e00-\u9fff]{1,3}[都道府県][\u4e00-\u9fff]{1,6}?[市区町村][\u3040-\u30ff\u4e00-\u9fff]{1,10}\d{1,4}(?:[-−‐丁目番地号]{1,2}\d{1,4}){0,3}号?",
    )
)


def postal_address(text: str) -> Spans:
    """Postal addresses with a street and a number, or with a P.O. box."""
    for form in _FORMS:
        for match in form.finditer(text):
            yield match.start(), match.start() + len(match.group().rstrip(".,"))
