from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODE_UNSPECIFIED: _ClassVar[Mode]
    MODE_SEALED: _ClassVar[Mode]
    MODE_CLOAKED: _ClassVar[Mode]
    MODE_OPEN: _ClassVar[Mode]

class ServiceClass(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SERVICE_CLASS_UNSPECIFIED: _ClassVar[ServiceClass]
    SERVICE_CLASS_INTERACTIVE: _ClassVar[ServiceClass]
    SERVICE_CLASS_BACKGROUND: _ClassVar[ServiceClass]
MODE_UNSPECIFIED: Mode
MODE_SEALED: Mode
MODE_CLOAKED: Mode
MODE_OPEN: Mode
SERVICE_CLASS_UNSPECIFIED: ServiceClass
SERVICE_CLASS_INTERACTIVE: ServiceClass
SERVICE_CLASS_BACKGROUND: ServiceClass

class ClientFrame(_message.Message):
    __slots__ = ("open", "draft", "close", "settled", "padding")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    open: Open
    draft: Draft
    close: Close
    settled: int
    padding: bytes
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., draft: _Optional[_Union[Draft, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ..., settled: _Optional[int] = ..., padding: _Optional[bytes] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "seed")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    seed: int
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., seed: _Optional[int] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("max_tokens", "stop_token_ids", "ignore_eos")
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    def __init__(self, max_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: bool = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("protocol", "model", "tokenizer_fingerprint", "mode", "prompt", "sampling", "limits", "service_class", "resume_token", "resume_position", "resume_tokens", "shaping")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    SERVICE_CLASS_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    RESUME_POSITION_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SHAPING_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    model: str
    tokenizer_fingerprint: str
    mode: Mode
    prompt: _containers.RepeatedScalarFieldContainer[int]
    sampling: Sampling
    limits: Limits
    service_class: ServiceClass
    resume_token: bytes
    resume_position: int
    resume_tokens: _containers.RepeatedScalarFieldContainer[int]
    shaping: Shaping
    def __init__(self, protocol: _Optional[int] = ..., model: _Optional[str] = ..., tokenizer_fingerprint: _Optional[str] = ..., mode: _Optional[_Union[Mode, str]] = ..., prompt: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., service_class: _Optional[_Union[ServiceClass, str]] = ..., resume_token: _Optional[bytes] = ..., resume_position: _Optional[int] = ..., resume_tokens: _Optional[_Iterable[int]] = ..., shaping: _Optional[_Union[Shaping, _Mapping]] = ...) -> None: ...

class Shaping(_message.Message):
    __slots__ = ("sizes", "beat_ms", "span_beats")
    SIZES_FIELD_NUMBER: _ClassVar[int]
    BEAT_MS_FIELD_NUMBER: _ClassVar[int]
    SPAN_BEATS_FIELD_NUMBER: _ClassVar[int]
    sizes: _containers.RepeatedScalarFieldContainer[int]
    beat_ms: int
    span_beats: int
    def __init__(self, sizes: _Optional[_Iterable[int]] = ..., beat_ms: _Optional[int] = ..., span_beats: _Optional[int] = ...) -> None: ...

class Draft(_message.Message):
    __slots__ = ("epoch", "position", "block", "tokens", "given", "parent")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    GIVEN_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    position: int
    block: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    given: bytes
    parent: int
    def __init__(self, epoch: _Optional[int] = ..., position: _Optional[int] = ..., block: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., given: _Optional[bytes] = ..., parent: _Optional[int] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ("reason",)
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REASON_UNSPECIFIED: _ClassVar[Close.Reason]
        REASON_CANCELLED: _ClassVar[Close.Reason]
        REASON_STOP_STRING: _ClassVar[Close.Reason]
    REASON_UNSPECIFIED: Close.Reason
    REASON_CANCELLED: Close.Reason
    REASON_STOP_STRING: Close.Reason
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: Close.Reason
    def __init__(self, reason: _Optional[_Union[Close.Reason, str]] = ...) -> None: ...

class ServerFrame(_message.Message):
    __slots__ = ("opened", "verdict", "finished", "go_away", "padding")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    GO_AWAY_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    opened: Opened
    verdict: Verdict
    finished: Finished
    go_away: GoAway
    padding: bytes
    def __init__(self, opened: _Optional[_Union[Opened, _Mapping]] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., go_away: _Optional[_Union[GoAway, _Mapping]] = ..., padding: _Optional[bytes] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("resume_token", "window", "max_block", "settled", "epoch", "last_block")
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    MAX_BLOCK_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LAST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    resume_token: bytes
    window: int
    max_block: int
    settled: int
    epoch: int
    last_block: int
    def __init__(self, resume_token: _Optional[bytes] = ..., window: _Optional[int] = ..., max_block: _Optional[int] = ..., settled: _Optional[int] = ..., epoch: _Optional[int] = ..., last_block: _Optional[int] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("epoch", "block", "position", "tokens", "accepted", "block_used", "window", "queue_us", "verify_us", "held_us", "alternatives")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    BLOCK_USED_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    VERIFY_US_FIELD_NUMBER: _ClassVar[int]
    HELD_US_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    block: int
    position: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    accepted: int
    block_used: bool
    window: int
    queue_us: int
    verify_us: int
    held_us: int
    alternatives: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, epoch: _Optional[int] = ..., block: _Optional[int] = ..., position: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., accepted: _Optional[int] = ..., block_used: bool = ..., window: _Optional[int] = ..., queue_us: _Optional[int] = ..., verify_us: _Optional[int] = ..., held_us: _Optional[int] = ..., alternatives: _Optional[_Iterable[int]] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("reason", "usage")
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REASON_UNSPECIFIED: _ClassVar[Finished.Reason]
        REASON_STOP: _ClassVar[Finished.Reason]
        REASON_LENGTH: _ClassVar[Finished.Reason]
        REASON_CLOSED: _ClassVar[Finished.Reason]
    REASON_UNSPECIFIED: Finished.Reason
    REASON_STOP: Finished.Reason
    REASON_LENGTH: Finished.Reason
    REASON_CLOSED: Finished.Reason
    REASON_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    reason: Finished.Reason
    usage: Usage
    def __init__(self, reason: _Optional[_Union[Finished.Reason, str]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "settled_tokens", "drafted_tokens", "accepted_tokens", "late_tokens", "given_tokens", "steps")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SETTLED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LATE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GIVEN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    settled_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    late_tokens: int
    given_tokens: int
    steps: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., settled_tokens: _Optional[int] = ..., drafted_tokens: _Optional[int] = ..., accepted_tokens: _Optional[int] = ..., late_tokens: _Optional[int] = ..., given_tokens: _Optional[int] = ..., steps: _Optional[int] = ...) -> None: ...

class GoAway(_message.Message):
    __slots__ = ("resume_token", "retry_after_ms")
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    resume_token: bytes
    retry_after_ms: int
    def __init__(self, resume_token: _Optional[bytes] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ("protocol",)
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    def __init__(self, protocol: _Optional[int] = ...) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("protocol", "version", "engine", "models")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    engine: str
    models: _containers.RepeatedCompositeFieldContainer[ModelInfo]
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ..., engine: _Optional[str] = ..., models: _Optional[_Iterable[_Union[ModelInfo, _Mapping]]] = ...) -> None: ...

class ModelInfo(_message.Message):
    __slots__ = ("name", "model_fingerprint", "tokenizer_fingerprint", "vocab_size", "context_length", "max_block", "max_window", "modes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    MAX_BLOCK_FIELD_NUMBER: _ClassVar[int]
    MAX_WINDOW_FIELD_NUMBER: _ClassVar[int]
    MODES_FIELD_NUMBER: _ClassVar[int]
    name: str
    model_fingerprint: str
    tokenizer_fingerprint: str
    vocab_size: int
    context_length: int
    max_block: int
    max_window: int
    modes: _containers.RepeatedScalarFieldContainer[Mode]
    def __init__(self, name: _Optional[str] = ..., model_fingerprint: _Optional[str] = ..., tokenizer_fingerprint: _Optional[str] = ..., vocab_size: _Optional[int] = ..., context_length: _Optional[int] = ..., max_block: _Optional[int] = ..., max_window: _Optional[int] = ..., modes: _Optional[_Iterable[_Union[Mode, str]]] = ...) -> None: ...
