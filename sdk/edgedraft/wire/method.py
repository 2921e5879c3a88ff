"""Names and sizes that both ends of the wire agree on."""

import re
from typing import Final

PROTOCOL_VERSION: Final = 1
SERVICE_NAME: Final = "edgedraft.v1.Verifier"
VERIFY_METHOD: Final = f"/{SERVICE_NAME}/Verify"
DESCRIBE_METHOD: Final = f"/{SERVICE_NAME}/Describe"

# An `Open` with a prompt of 128k tokens of three bytes each fits; nothing else comes near.
MAX_FRAME_BYTES: Final = 512 * 1024

DEVICE_URI: Final = re.compile(
    r"spiffe://edgedraft/tenant/(?P<tenant>[A-Za-z0-9][A-Za-z0-9._-]{0,62})"
    r"/device/(?P<device>[A-Za-z0-9][A-Za-z0-9._-]{0,62})"
)
"""How a device's certificate names it, in its SAN."""
