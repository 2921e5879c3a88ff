"""Detectors of addresses in networks: e-mail, IP, MAC, and URLs that carry credentials."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from edgedraft.privacy.detect.registry import Spans

_LETTER: Final = "A-Za-z\u00c0-\u024f\u0370-\u052f"  # of scripts that put spaces between words: Latin, Greek, Cyrillic
_LABEL: Final = rf"[{_LETTER}0-9-]{{1,63}}+"
_EMAIL: Final = re.compile(
    rf"(?<![{_LETTER}0-9.%+_'-])'?+([{_LETTER}0-9.%+_'-]{{1,64}}+)"
    rf"(?:@{_LABEL}(?:\.{_LABEL})++"
    rf"|\s{{0,2}}[(\[]\s?at\s?[)\]]\s{{0,2}}{_LABEL}(?:\s{{0,2}}[(\[]\s?dot\s?[)\]]\s{{0,2}}{_LABEL})++)"
)
_REMOTE_USERS: Final = {"git", "hg", "svn"}
_REMOTE: Final = re.compile(r"(?:github|gitlab|bitbucket|codeberg)\.(?:com|org)$|[:/][\w.~/-]", re.IGNORECASE)
"""A host of repositories, or a path behind any host: `git@github.com:psf/requests.git` takes no mail."""
_IPV4: Final = re.compile(r"(?<![A-Za-z0-9_.])(?:\d{1,3}+\.){3}\d{1,3}+(?:/\d{1,2}+)?(?![A-Za-z0-9_]|\.\d)")
_VERSION: Final = re.compile(r"\b(?:v|ver|versions?|release|build|upgrade(?: to)?)[ .]?$", re.IGNORECASE)
_IPV6: Final = re.compile(r"(?<![A-Za-z0-9_:.])[0-9A-Fa-f:]{2,39}+(?:/\d{1,3}+)?(?![A-Za-z0-9_])")
_IPV6_START: Final = re.compile(r"[23][0-9a-f]{3}|f[cde][0-9a-f]{2}", re.IGNORECASE)
_FEW_GROUPS: Final = 4
_MAC: Final = re.compile(
    r"(?<![A-Za-z0-9:.-])(?:[0-9A-Fa-f]{2}(?:(?::[0-9A-Fa-f]{2}){5}|(?:-[0-9A-Fa-f]{2}){5})"
    r"|[0-9A-Fa-f]{4}(?:\.[0-9A-Fa-f]{4}){2})(?![A-Za-z0-9:-])"
)
_BARE_MAC: Final = re.compile(r"(?<![A-Za-z0-9])[0-9A-Fa-f]{12}(?![A-Za-z0-9])")
_MAC_WORD: Final = re.compile(r"\bmac\b|ethernet|bssid", re.IGNORECASE)
_URL: Final = re.compile(
    r"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]{1,20}+://[!#$%&'()*+,./0-9:;=?@A-Z\[\]_a-z~-]{3,2048}+"
)
_LOGIN: Final = re.compile(r"[^/?#@:]{0,256}:[^/?#@]{1,256}@")
_SECRET_PARAMETER: Final = re.compile(
    r"[?&#;](?:[a-z_-]{0,24}(?:token|secret|password|signature)|api[_-]?key|key|passw?d?|pwd|sig|code|auth"
    r"|jwt|session(?:id)?|sid)"
    r"=([^&#]{6,})",
    re.IGNORECASE,
)
_PLACEHOLDER: Final = re.compile(
    r"(?:YOUR|INSERT|REPLACE|ENTER|EXAMPLE)[A-Z_-]*|(?:MY|ADD)[_-][A-Z_-]*"
    r"|(?:[A-Z]+[_-])*(?:API)?(?:KEY|TOKEN|SECRET|PASSWORD|SIGNATURE|CODE|VALUE|HERE)(?:[_-][A-Z]+)*"
    r"|your[_-]?[a-z_-]*(?:key|token|secret|password|signature|code|here)|[$%][A-Za-z_]+%?"
    r"|(?:[A-Za-z]{2,8}[_-]){0,3}[xX*.]{4,256}|[<{\[].*"
)
"""What manuals put in the place of a key."""


def email(text: str) -> Spans:
    """E-mail addresses, also `name (at) example (dot) org`."""
    if "@" not in text and "at" not in text:
        return
    for match in _EMAIL.finditer(text):
        last = re.split(r"[.\s)\]]", match.group())[-1]
        if len(last) >= 2 and last.isalpha() and not _is_remote(text, match):
            yield match.start(1), match.end()


def ip_address(text: str) -> Spans:
    """IPv4 and IPv6 addresses and networks, but for those that mean no machine (0.0.0.0) or this one (127.0.0.1)."""
    for match in _IPV4.finditer(text):
        if _VERSION.search(text[max(0, match.start() - 12) : match.start()]) is None and _is_host(match.group()):
            yield match.span()
    for match in _IPV6.finditer(text):
        value = match.group() if match.group().endswith("::") else match.group().rstrip(":")
        groups = [group for group in re.split("[:/]", value) if group]
        # A few letters between colons may be code; an address of few groups starts with a usual one.
        plausible = len(groups) >= _FEW_GROUPS or (groups and _IPV6_START.fullmatch(groups[0]))
        if plausible and value.count(":") >= 2 and _is_host(value):
            yield match.start(), match.start() + len(value)


def mac_address(text: str) -> Spans:
    """MAC addresses in pairs or fours, or bare ones beside the word."""
    for match in _MAC.finditer(text):
        yield match.span()
    for match in _BARE_MAC.finditer(text):
        if _MAC_WORD.search(text[max(0, match.start() - 24) : match.end() + 12]):
            yield match.span()


def secret_url(text: str) -> Spans:
    """URLs with a password, a token or a signature in them."""
    for match in _URL.finditer(text):
        url = match.group().rstrip(".,;:!?'")
        while url.endswith(")") and url.count("(") < url.count(")"):
            url = url[:-1]
        rest = url.partition("://")[2]
        secrets = (parameter.group(1) for parameter in _SECRET_PARAMETER.finditer(rest))
        if _LOGIN.match(rest) or not all(map(_PLACEHOLDER.fullmatch, secrets)):
            yield match.start(), match.start() + len(url)


def _is_remote(text: str, match: re.Match[str]) -> bool:
    """Whether it is where a repository lies, by the user's name and what stands behind."""
    host = match.group().rpartition("@")[2]
    if match.group(1) not in _REMOTE_USERS or not host:
        return False
    return _REMOTE.match(host) is not None or _REMOTE.match(text, match.end()) is not None


def _is_host(value: str) -> bool:
    try:
        address = ipaddress.ip_interface(value).ip
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified or address.is_multicast)
