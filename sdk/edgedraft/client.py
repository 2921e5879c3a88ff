"""The public face: a client that drafts on this device and verifies with one verifier."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from edgedraft.call import WIRE_MODES, Call, Calls, Privacy, PublicView, check_length
from edgedraft.core.log import DraftLog
from edgedraft.deciders import Decider, DeviceDecides, TargetDecides
from edgedraft.drafters.base import Drafter
from edgedraft.egress import Gate
from edgedraft.errors import InvalidInput, ProtocolError
from edgedraft.events import Finished, FinishReason, Verified
from edgedraft.generation import Generation
from edgedraft.identity import Identity
from edgedraft.local import generate_locally
from edgedraft.pipeline import Pipeline
from edgedraft.privacy.detect import Detectors
from edgedraft.privacy.gate import DecisionRule
from edgedraft.privacy.guard import GuardLimits
from edgedraft.privacy.ledger import Ledger
from edgedraft.privacy.policy import Policy
from edgedraft.privacy.sealed_file import ledger_key
from edgedraft.privacy.shaping import Shaping
from edgedraft.prompt import Mode, PromptLike
from edgedraft.report import Meter
from edgedraft.sampling import SamplingParams
from edgedraft.text import TextCodec
from edgedraft.transport.base import Transport
from edgedraft.wire import PROTOCOL_VERSION
from edgedraft.wire import verify_pb2 as pb
from edgedraft.worker import DraftWorker

_PREPARE: Final = "pass a folder made by `edgedraft models build`"


class Client:
    """Generates text with a drafter on this device and a target behind a verifier.

    ```python
    async with Client(drafter, verifier="verifier.example:7443", identity="~/.edgedraft/id") as client:
        print(await client.generate("Why is the sky blue?"))
    ```

    Args:
        drafter: Artifact folder of the drafter, or a drafter of your own (then `codec` is needed).
        verifier: `host:port`, or a transport of your own; not needed for mode `local`.
        identity: Folder with this device's key and certificate, or a loaded identity.
        mode: The privacy mode of calls that name none.
        rule: Who decides a token in mode `sealed`, for calls that name none; None takes the default.
        limits: From which size on a piece of private text may not leave, for calls that name none.
        detectors: What finds secrets in prompts; None takes the standard ones.
        policy: Modes that no call may use.
        model: Target to ask for; empty takes the verifier's only one.
        codec: Tokenizer and chat template; None takes those in the drafter's folder.
        block_size: Draft tokens to gather into a frame while others are in flight.
        resume_seconds: How long a generation looks for a verifier that was lost before it fails; 0: not at all.
        threads: Threads of the drafter; None picks a default.
        shaping: Sizes and times of frames in all modes; None pads frames where the mode withholds something.
        ledger: Takes an entry for every frame. None keeps it in memory; a path of a new file writes it there,
            encrypted under the key that lies beside the identity; a ledger of your own is yours to close.

    Attributes:
        ledger: What left this device, and what came back.

    Raises:
        InvalidInput: Arguments that do not fit together.
        ModelError: The drafter's folder cannot be used.
        IdentityError: The identity cannot be used.
        ForbiddenMode: The policy forbids the mode.
        LedgerError: The ledger file or its key cannot be made.
    """

    def __init__(
        self,
        drafter: Drafter | str | Path,
        *,
        verifier: str | Transport | None = None,
        identity: Identity | str | Path | None = None,
        mode: Mode | str = Mode.SEALED,
        rule: DecisionRule | None = None,
        limits: GuardLimits | None = None,
        detectors: Detectors | None = None,
        policy: Policy | None = None,
        model: str = "",
        codec: TextCodec | None = None,
        block_size: int = 4,
        resume_seconds: float = 30.0,
        threads: int | None = None,
        shaping: Shaping | None = None,
        ledger: Ledger | str | Path | None = None,
    ) -> None:
        chosen = _mode(mode)
        self._privacy = Privacy(chosen, rule or DecisionRule(), limits or GuardLimits(), detectors)
        policy = policy or Policy()
        policy.check(chosen)
        if verifier is None and chosen is not Mode.LOCAL:
            raise InvalidInput("verifier", f"is missing for mode {chosen}", "pass host:port, or use mode local")
        if block_size < 1:
            raise InvalidInput("block_size", f"is {block_size}", "use at least 1")
        if not 0 <= resume_seconds < math.inf:
            raise InvalidInput("resume_seconds", f"is {resume_seconds}", "use 0 (off) or more seconds")
        if isinstance(drafter, Drafter):
            if codec is None:
                raise InvalidInput("codec", "is missing for a drafter of your own", "pass TextCodec.load(folder)")
            self._codec = codec
        else:
            folder = Path(drafter).expanduser()
            self._codec = codec if codec is not None else TextCodec.load(folder)
            drafter = _load_drafter(folder, threads)
        if drafter.info.tokenizer_fingerprint != self._codec.fingerprint:
            raise InvalidInput("codec", "is not the drafter's tokenizer", _PREPARE)
        self._worker = DraftWorker(drafter)
        self._calls = Calls(self._codec, drafter.info, policy, model)
        self._owns_ledger = not isinstance(ledger, Ledger)
        self.ledger = _ledger(ledger, identity, self._codec)
        self._gate = None if verifier is None else Gate(_transport(verifier, identity), self.ledger, shaping)
        self._model = model
        self._block_size = block_size
        self._resume_seconds = resume_seconds
        self._target: pb.ModelInfo | None = None
        self._connecting = asyncio.Lock()
        self._closed = False
        self._running: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def connect(self) -> pb.ModelInfo:
        """Reach the verifier and check that it serves a target for this drafter; `generate` does it by itself.

        Returns:
            What it says of the target.

        Raises:
            VerifierError: It could not be reached or refused this device.
            InvalidInput: It does not serve the model, or its tokenizer is another one; or this client is closed.
            ProtocolError: It speaks another protocol.
        """
        self._check_open()
        async with self._connecting:
            if self._target is None:
                if self._gate is None:
                    raise InvalidInput("verifier", "is missing", "pass host:port to the client")
                self._target = self._choose_target(await self._gate.describe())
            return self._target

    def public_view(self, prompt: PromptLike, mode: Mode | str | None = None) -> PublicView:
        """Exactly what the cloud would see of a prompt; nothing is sent.

        Args:
            prompt: As for `generate`.
            mode: The privacy mode; None takes the client's.

        Raises:
            InvalidInput: The prompt or the mode is wrong.
            PrivacyError: The policy forbids the mode, or public text holds a secret.
        """
        return self._calls.view(prompt, self._chosen(mode, None, None))

    def generate(
        self,
        prompt: PromptLike,
        sampling: SamplingParams | None = None,
        *,
        mode: Mode | str | None = None,
        rule: DecisionRule | None = None,
        limits: GuardLimits | None = None,
        background: bool = False,
    ) -> Generation:
        """Answer a prompt.

        Args:
            prompt: A string (one user message), a `Prompt`, or messages.
            sampling: How to choose tokens and when to stop; None is greedy, up to 256 tokens.
            mode: The privacy mode of this call; None takes the client's.
            rule: Who decides a token of this call in mode `sealed`; None takes the client's.
            limits: From which size on a piece of private text may not leave; None takes the client's.
            background: Nobody waits for it: a busy verifier serves it after those that somebody waits for.

        Returns:
            An async iterator of events that starts with the first look at it.

        Raises:
            InvalidInput: The prompt or a setting is wrong, the prompt does not fit the context, or this client is
                closed.
            PrivacyError: The policy forbids the mode, or something private stands where it would leave.
        """
        self._check_open()
        privacy = self._chosen(mode, rule, limits)
        if self._gate is None and privacy.mode is not Mode.LOCAL:
            raise InvalidInput(
                "mode", f"is {privacy.mode}, but the client has no verifier", "pass one, or use mode local"
            )
        call = self._calls.make(prompt, sampling or SamplingParams(), privacy)

        async def tracked(generation: Generation) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._running.add(task)
            try:
                if call.mode is Mode.LOCAL:
                    await generate_locally(generation, self._worker, self._codec, call)
                else:
                    await self._run(generation, call, background)
            finally:
                self._running.discard(task)

        return Generation(tracked, self.ledger.page(call.mode))

    async def close(self) -> None:
        """Cancel what is running and give back connection, drafter and threads; may be called again."""
        if self._closed:
            return
        self._closed = True
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
        if self._gate is not None:
            await self._gate.close()
        if self._owns_ledger:
            self.ledger.close()
        await self._worker.close()

    # ------------------------------------------------------------ inside

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidInput("client", "is closed", "make another")

    def _chosen(self, mode: Mode | str | None, rule: DecisionRule | None, limits: GuardLimits | None) -> Privacy:
        ours = self._privacy
        chosen = ours.mode if mode is None else _mode(mode)
        return Privacy(chosen, rule or ours.rule, limits or ours.limits, ours.detectors)

    async def _run(self, generation: Generation, call: Call, background: bool) -> None:
        assert self._gate is not None
        loop = asyncio.get_running_loop()
        meter = Meter(started=loop.time(), prompt_tokens=len(call.device_ids))
        target = await self.connect()
        check_length(call.public_ids, target.context_length)
        if WIRE_MODES[call.mode] not in target.modes:
            raise InvalidInput("mode", f"is {call.mode}, which the verifier does not serve", "use another mode")
        decider = await self._decider(call)
        room = self._worker.info.context_length - max(len(call.device_ids), len(call.public_ids))
        max_tokens = min(call.sampling.max_tokens, target.context_length - len(call.public_ids))
        if decider.last_word:
            max_tokens = min(max_tokens, room)
        stops = () if call.sampling.ignore_eos else self._codec.eos_token_ids
        log = DraftLog(
            max_tokens=max_tokens,
            window=target.max_window,
            max_block=min(self._block_size, target.max_block),
            stop_tokens={*stops, *call.sampling.stop_token_ids},
            placeholder=call.placeholder,
            last_word=decider.last_word,
        )
        pipeline = Pipeline(
            opening=self._open_frame(call, max_tokens, background),
            decider=decider,
            log=log,
            gate=self._gate,
            page=generation.ledger,
            guard=call.guard,
            transcript=call.transcript,
            meter=meter,
            emit=generation.push,
            draft_limit=room,
            vocab_size=self._worker.info.vocab_size,
            resume_seconds=self._resume_seconds,
            clock=loop.time,
        )
        try:
            generation.bind_cancel(pipeline.cancel)
            try:
                reason = await pipeline.run()
            finally:
                await decider.close()
            tail = call.transcript.finish()
            if tail:
                generation.push(Verified(len(log.settled), (), tail))
            generation.push(Finished(reason, generation.text, meter.report(loop.time())))
            cancelled = reason is FinishReason.CANCELLED
            await pipeline.leave(pb.Close.REASON_CANCELLED if cancelled else pb.Close.REASON_STOP_STRING)
        finally:
            await pipeline.close()

    async def _decider(self, call: Call) -> Decider:
        if call.mode is not Mode.SEALED:
            return TargetDecides(call.public_ids, await self._worker.context(), call.guard)
        assert call.guard is not None
        views = await self._worker.two_views()
        return DeviceDecides(call.device_ids, call.public_ids, views, call.rule, call.guard, call.sampling)

    def _open_frame(self, call: Call, max_tokens: int, background: bool) -> pb.Open:
        sampling = call.sampling
        return pb.Open(
            protocol=PROTOCOL_VERSION,
            model=self._model,
            tokenizer_fingerprint=self._codec.fingerprint,
            mode=WIRE_MODES[call.mode],
            prompt=call.public_ids,
            sampling=pb.Sampling(
                temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k, seed=sampling.seed
            ),
            limits=pb.Limits(
                max_tokens=max_tokens, stop_token_ids=sampling.stop_token_ids, ignore_eos=sampling.ignore_eos
            ),
            service_class=pb.SERVICE_CLASS_BACKGROUND if background else pb.SERVICE_CLASS_INTERACTIVE,
        )

    def _choose_target(self, description: pb.DescribeResponse) -> pb.ModelInfo:
        names = [model.name for model in description.models]
        chosen = [model for model in description.models if not self._model or model.name == self._model]
        if len(chosen) != 1:
            raise InvalidInput("model", f"is {self._model!r}, the verifier serves {names}", "name one of them")
        (target,) = chosen
        if target.tokenizer_fingerprint != self._codec.fingerprint:
            raise InvalidInput(
                "drafter",
                f"has another tokenizer than the target {target.name!r}",
                "use a drafter of the target's family; `edgedraft models list` shows pairs",
            )
        if min(target.context_length, target.max_block, target.max_window) < 1:
            raise ProtocolError("the verifier's answer to Describe has a limit of 0")
        return target


def _mode(mode: Mode | str) -> Mode:
    try:
        return Mode(mode)
    except ValueError as error:
        known = ", ".join(Mode)
        raise InvalidInput("mode", f"is {mode!r}", f"use one of: {known}") from error


def _load_drafter(folder: Path, threads: int | None) -> Drafter:
    # Only this runtime needs TVM; an app with a drafter of its own does not pay for it.
    from edgedraft.drafters.tvm import TvmDrafter

    return TvmDrafter.load(folder, threads=threads)


def _transport(verifier: str | Transport, identity: Identity | str | Path | None) -> Transport:
    if isinstance(verifier, Transport):
        return verifier
    if identity is None:
        raise InvalidInput("identity", "is missing", "pass the folder with this device's key and certificate")
    if not isinstance(identity, Identity):
        identity = Identity.load(Path(identity).expanduser())
    # Only this transport needs grpcio; an app with a transport of its own does not pay for it.
    from edgedraft.transport.grpcio import GrpcTransport

    return GrpcTransport(verifier, identity)


def _ledger(ledger: Ledger | str | Path | None, identity: Identity | str | Path | None, codec: TextCodec) -> Ledger:
    if isinstance(ledger, str | Path):
        if identity is None or isinstance(identity, Identity):
            raise InvalidInput("ledger", "is a path, but no folder of an identity has its key", "pass a Ledger")
        key = ledger_key(Path(identity).expanduser(), create=True)
        return Ledger(codec.token_bytes, file=Path(ledger).expanduser(), key=key)
    if ledger is None:
        return Ledger(codec.token_bytes)
    if ledger.token_bytes is None:
        ledger.token_bytes = codec.token_bytes
    return ledger
