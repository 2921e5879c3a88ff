"""Text on the device: chat templates, tokens to bytes and back, streaming, stop strings."""

from edgedraft.text.codec import TextCodec
from edgedraft.text.stops import StopMatcher
from edgedraft.text.stream import StreamDecoder
from edgedraft.text.template import ChatTemplate

__all__ = ["ChatTemplate", "StopMatcher", "StreamDecoder", "TextCodec"]
