"""All that an operator sees of a verifier, and the check that nothing of a planted text is in it."""

import io
import logging
import re
from dataclasses import dataclass

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import generate_latest

from edgedraft_cloud.logs import JsonFormatter
from edgedraft_cloud.metrics import Metrics
from edgedraft_cloud.tracing import Tracer

RUN = 3
"""So many ids in a row are no accident, however small they are."""
RARE = 100_000
"""An id as large as this is no accident by itself."""


@dataclass(frozen=True)
class Marker:
    """A text that is planted in a prompt, a draft or an answer, and its token ids.

    The text should be one that nothing else says, and have `RUN` tokens at least, or one of `RARE` or more.
    """

    text: str
    tokens: tuple[int, ...]

    def found_in(self, content: str) -> str | None:
        """The form in which it is there, or None."""
        content = _plain(content)
        return next((name for name, pattern in self._forms() if re.search(pattern, content)), None)

    def _forms(self) -> list[tuple[str, str]]:
        forms = [
            ("the text", re.escape(_plain(self.text))),
            ("the text in hex", self.text.encode().hex()),
        ]
        for token in self.tokens:
            if token >= RARE:
                forms.append((f"id {token}", rf"(?<!\d){token}(?!\d)"))
        for start in range(len(self.tokens) - RUN + 1):
            run = self.tokens[start : start + RUN]
            # In a row, or a line each as protobuf shows them.
            numbers = r"[^\w.]{1,4}(?:(?:tokens|prompt)[^\w.]{1,4})?".join(map(str, run))
            forms.append((f"ids {run}", rf"(?<![\w.]){numbers}(?![\w.])"))
            if min(run) >= 0x80:  # fewer bytes might be a word
                packed = b"".join(map(_varint, run))
                forms.append((f"frame bytes of {run}", re.escape(_plain(repr(packed)[2:-1]))))
                forms.append((f"frame bytes of {run} in hex", packed.hex()))
        return forms


def _plain(text: str) -> str:
    """Undo what Python and JSON do to a text to show it, once or many times over, and capitals."""
    while "\\\\" in text:
        text = text.replace("\\\\", "\\")
    text = re.sub(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4}))", lambda code: chr(int(code[1] or code[2], 16)), text)
    return re.sub(
        r"\\([nrt'\"])", lambda code: {"n": "\n", "r": "\r", "t": "\t"}.get(code[1], code[1]), text
    ).casefold()


class Watch:
    """Sees what an operator would see, while it is entered: everything logged, all metrics, all traces.

    Hand `metrics` and `tracer` to the verifier that is watched; look once its sessions have ended and this is left.
    """

    def __init__(self) -> None:
        self.metrics = Metrics()
        self._spans = InMemorySpanExporter()
        self.tracer = Tracer.through(self._spans)
        self._log = io.StringIO()
        self._handler = logging.StreamHandler(self._log)
        self._handler.setFormatter(JsonFormatter())

    def __enter__(self) -> "Watch":
        root = logging.getLogger()
        self._level = root.level
        root.addHandler(self._handler)
        root.setLevel(logging.DEBUG)
        return self

    def __exit__(self, *error: object) -> None:
        root = logging.getLogger()
        root.removeHandler(self._handler)
        root.setLevel(self._level)
        self.tracer.close()

    def seen(self) -> dict[str, str]:
        """What is to be seen, by where."""
        return {
            "the log": self._log.getvalue(),
            "the metrics": generate_latest(self.metrics.registry).decode(),
            "the traces": "\n".join(span.to_json() for span in self._spans.get_finished_spans()),
        }

    def assert_nothing_of(self, *markers: Marker) -> None:
        """Fail where one of them shows; and where no session shows, since that would prove nothing."""
        for place, content in self.seen().items():
            assert re.search(r"session opened|sessions_opened_total\{|edgedraft\.session", content), f"{place}: empty"
            for marker in markers:
                form = marker.found_in(content)
                assert form is None, f"{form} ({marker.text!r}) is in {place}"


def _varint(value: int) -> bytes:
    """As protobuf packs it."""
    packed = bytearray()
    while value > 0x7F:
        packed.append(value & 0x7F | 0x80)
        value >>= 7
    packed.append(value)
    return bytes(packed)
