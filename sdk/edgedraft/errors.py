"""The one tree of errors: everything that Edgedraft raises on purpose.

```
EdgedraftError
├── InvalidInput              a caller's argument is wrong: names the field, the limit and the cure
├── ModelError                something about model files
│   ├── ModelNotFound
│   ├── ModelSourceError      a download or a source failed
│   │   ├── ChecksumMismatch
│   │   └── DiskFull
│   ├── ModelFormatError      a file is damaged, unsupported or of another model
│   └── CompileError
├── CacheFull                 a KV cache has no room for what was asked; nothing was changed
├── DrafterError              the drafter failed on the device
├── IdentityError             keys and certificates of this device
├── PrivacyError              what must stay on the device was about to leave it; never tells the text itself
│   ├── LeakError             a secret, or a run of private text, in something that leaves
│   ├── ForbiddenMode         the app's policy forbids the privacy mode
│   └── LedgerError           the ledger cannot be written, or was cut or changed
├── ProtocolError             the other side broke the wire protocol
└── VerifierError             what a verifier answered, or did not
    ├── VerifierUnavailable   cannot be reached, or went away; `retry_after` may say when to come back
    ├── Unauthenticated       it does not take this certificate (or we do not take its)
    ├── RequestRejected       it found the request invalid
    ├── Overloaded            it is full: `retry_after` says when to come back
    └── Cancelled
```
"""

from __future__ import annotations


class EdgedraftError(Exception):
    """Base of all errors of the project."""


class InvalidInput(EdgedraftError, ValueError):
    """A value at a boundary is wrong.

    Args:
        field: Name of the field or argument, e.g. `draft.position`.
        problem: What is wrong, with the value and the limit.
        cure: What the caller can do about it.
    """

    def __init__(self, field: str, problem: str, cure: str) -> None:
        super().__init__(f"{field}: {problem}; {cure}")
        self.field = field
        self.problem = problem
        self.cure = cure


class ModelError(EdgedraftError):
    """Something about the files of a model."""


class ModelNotFound(ModelError):
    """No model, pair or artifact folder of that name is there."""


class ModelSourceError(ModelError):
    """A source could not be read or downloaded."""


class ChecksumMismatch(ModelSourceError):
    """A file is not the one whose hash is on record."""


class DiskFull(ModelSourceError):
    """There is not enough room for what has to be written."""


class ModelFormatError(ModelError):
    """A file is damaged, of an unsupported kind or belongs to another model."""


class CompileError(ModelError):
    """A model could not be compiled for the target."""


class CacheFull(EdgedraftError):
    """A KV cache has no room for what was asked; nothing was changed."""


class DrafterError(EdgedraftError):
    """The drafter failed on the device."""


class IdentityError(EdgedraftError):
    """The keys or certificates of this device cannot be used."""


class PrivacyError(EdgedraftError):
    """What must stay on the device was about to leave it, or might have.

    Its message names kind and place, and never holds private text.
    """


class LeakError(PrivacyError):
    """A secret or a run of private text stands in something that leaves; it was not sent.

    Args:
        kind: What it is, e.g. `e-mail address` or `private text`.
        place: Where it stands, e.g. `messages[0], characters 12 to 27`.
        cure: What the caller can do about it.
    """

    def __init__(self, kind: str, place: str, cure: str) -> None:
        super().__init__(f"{place}: has {kind}, which must not leave the device; {cure}")
        self.kind = kind
        self.place = place
        self.cure = cure


class ForbiddenMode(PrivacyError):
    """The policy of the app forbids the privacy mode."""


class LedgerError(PrivacyError):
    """The ledger cannot be written, so nothing may leave; or one that is read was cut, changed or is of another key."""


class ProtocolError(EdgedraftError):
    """The other side broke the wire protocol."""


class VerifierError(EdgedraftError):
    """The verifier refused, failed or could not be reached."""


class VerifierUnavailable(VerifierError):
    """The verifier cannot be reached, or the link to it went away.

    Args:
        message: What happened.
        retry_after: Seconds after which to try again, or None if nobody could say.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unauthenticated(VerifierError):
    """The TLS handshake or the identity check failed."""


class RequestRejected(VerifierError):
    """The verifier found the request invalid."""


class Overloaded(VerifierError):
    """The verifier is full.

    Args:
        message: What is full.
        retry_after: Seconds after which to try again, or None if it did not say.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Cancelled(VerifierError):
    """The generation was cancelled."""
