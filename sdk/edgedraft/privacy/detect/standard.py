"""The detectors that come with Edgedraft, most certain first."""

from __future__ import annotations

from typing import Final

from edgedraft.privacy.detect.credentials import api_key, password
from edgedraft.privacy.detect.dates import birth_date
from edgedraft.privacy.detect.network import email, ip_address, mac_address, secret_url
from edgedraft.privacy.detect.numbers import bank_account, card, national_id, phone, wallet
from edgedraft.privacy.detect.people import person
from edgedraft.privacy.detect.places import postal_address
from edgedraft.privacy.detect.registry import Detector

STANDARD: Final[tuple[tuple[str, Detector], ...]] = (
    ("URL", secret_url),
    ("EMAIL", email),
    ("BANK_ACCOUNT", bank_account),
    ("CARD", card),
    ("MAC", mac_address),
    ("IP", ip_address),
    ("CRYPTO_WALLET", wallet),
    ("BIRTH_DATE", birth_date),
    ("API_KEY", api_key),
    ("NATIONAL_ID", national_id),
    ("PASSWORD", password),
    ("PHONE", phone),
    ("ADDRESS", postal_address),
    ("PERSON", person),
)
