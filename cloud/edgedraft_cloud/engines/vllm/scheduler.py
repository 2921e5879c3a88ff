"""What goes into a step, in vLLM's process: the works that the gateway handed over, all of them, and pieces of prompts.

A session is in one of four places. *Running*: it has a work, or its prompt is being read. *Waiting*: its prompt (or,
after an eviction, everything settled) is to be read when there is room. *Parked*: nothing to do, its KV is kept.
*Evicted*: nothing to do, its KV was given up; its tokens are still here, so the next work sends it to the waiting ones.
vLLM sees only the first two. Where those are empty its process sleeps.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from vllm.logging_utils import dump_input
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from edgedraft_cloud.engines.prompts import piece
from edgedraft_cloud.engines.vllm.messages import GIVEN, OutcomeMessage, WorkMessage, pack_step

SHARED: Final = 8
"""A step with works reads this part of the prompt tokens that another may, and so does the one after it, which the next
works may have to wait for."""
SETTINGS: Final = "edgedraft"
"""Where in vLLM's additional configuration our settings are."""


class DraftScheduler(Scheduler):
    """vLLM's scheduler, with drafts from outside and sessions that rest.

    The object itself is the mailbox: `EngineCoreClient.call_utility_async` looks a name up on the engine core and calls
    what it finds, and the scheduler is found there.
    """

    running: list[Request]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = self.vllm_config.additional_config[SETTINGS]
        self._prompt_tokens: int = settings["prompt_tokens"]
        self._prompt_slots: int = settings["prompt_slots"]
        self._park_seconds: float = settings["park_seconds"]
        # vLLM fills a resumed request up to this many drafts, with ids that are none.
        self.num_spec_tokens = 0
        # Where a step fails, vLLM logs what went into it, drafts and all.
        dump_input.logger.disabled = True
        self._parked: dict[str, tuple[Request, float]] = {}  # the longest parked first
        self._evicted: dict[str, Request] = {}
        self._given: dict[str, list[bool]] = {}
        self._batch = 0
        self._reported = 0
        self._ended: list[str] = []
        self._started = 0.0
        self._evictions = 0
        self._work_rows = 0
        self._shared = False
        self._allocate = self.kv_cache_manager.allocate_slots
        self.kv_cache_manager.allocate_slots = self._allocate_slots

    # ------------------------------------------------------------ from the gateway

    def __call__(self, batch: int, works: Iterable[WorkMessage]) -> None:
        """Take in a batch of works; they are all in the next step but those whose KV has to be built again first."""
        self._batch = batch
        for session, tokens, given in works:
            if session in self._parked:
                request, _ = self._parked.pop(session)
                request.spec_token_ids = list(tokens)
                if any(given):
                    self._given[session] = list(given)
                self.running.append(request)
            elif session in self._evicted:
                self.waiting.add_request(self._evicted.pop(session))
            else:
                self._ended.append(session)

    def finish_requests(self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus) -> list[Request]:
        """Forget sessions, wherever they are."""
        finished: list[Request] = super().finish_requests(request_ids, finished_status)
        for request in finished:
            self._parked.pop(request.request_id, None)
            self._evicted.pop(request.request_id, None)
        return finished

    # ------------------------------------------------------------ a step

    def has_requests(self) -> bool:
        """Whether there is anything to do, if only to report."""
        return self._batch > self._reported or super().has_requests()

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """Put together a step: all works, then as much of the prompts as a step may read."""
        self._started = time.monotonic()
        self._evictions = 0
        while self._parked:
            session, (_, since) = next(iter(self._parked.items()))
            if self._started <= since + self._park_seconds:
                break
            self._evict(session)
        # Works come first: they have a right to their rows and, if KV is short, to the KV of unread prompts.
        self.running.sort(key=lambda request: request.is_prefill_chunk)
        works = [request for request in self.running if not request.is_prefill_chunk]
        self._work_rows = sum(1 + len(request.spec_token_ids) for request in works)
        shared = bool(works) or self._shared
        self._shared = bool(works)
        room = self._prompt_tokens // (SHARED if shared else 1)
        self.max_num_scheduled_tokens = self._work_rows + room
        self.max_num_active_reqs = len(works) + self._prompt_slots
        self.scheduler_config.long_prefill_token_threshold = self._most_rows(works, room)
        output = super().schedule(throttle_prefills)
        # Beside the drafts, which may have been left out or cut short where room is short.
        drafted = output.scheduled_spec_decode_tokens
        setattr(output, GIVEN, {name: given for name, given in self._given.items() if name in drafted})
        self._given.clear()
        names = {request.request_id for request in works}
        self._work_rows = sum(rows for name, rows in output.num_scheduled_tokens.items() if name in names)
        return output

    def _most_rows(self, works: list[Request], room: int) -> int:
        """Rows that vLLM gives one request at most: what prompts share, and what a work has a right to."""
        prompts = [*self.running[len(works) :], *self.waiting]
        unread = (request.num_tokens - request.num_computed_tokens for request in islice(prompts, self._prompt_slots))
        return max([piece(unread, room), *(1 + len(request.spec_token_ids) for request in works)])

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        """Drafts come from outside; those of vLLM's own proposer, which are none, must not replace them."""

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Park the sessions that got their tokens, and report the step as one message."""
        sampled = model_runner_output.sampled_token_ids
        rows = model_runner_output.req_id_to_index
        # vLLM cuts these lists where a session's room ends.
        lengths = {name: len(sampled[row]) for name, row in rows.items()} if sampled else {}
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        outcomes: list[OutcomeMessage] = []
        for output in (output for client in outputs.values() for output in client.outputs):
            name, tokens = output.request_id, output.new_token_ids
            accepted = min(lengths[name] - 1, len(tokens))
            judged = len(scheduler_output.scheduled_spec_decode_tokens.get(name, ()))
            outcomes.append((name, tokens, accepted, judged))
        self._park({name for name, *_ in outcomes})
        total = scheduler_output.total_num_scheduled_tokens
        if not (total or outcomes or self._batch > self._reported):
            return {}
        report = pack_step(
            batch=self._batch,
            outcomes=outcomes,
            ended=self._ended,
            tokens=total,
            prompt_tokens=total - self._work_rows,
            seconds=time.monotonic() - self._started,
            kv_used=self.kv_cache_manager.usage,
            evicted=self._evictions,
        )
        self._reported, self._ended = self._batch, []
        # The one field of a message that carries whatever it is given.
        return {0: EngineCoreOutputs(outputs=[EngineCoreOutput("", [], kv_transfer_params=report)])}

    # ------------------------------------------------------------ KV

    def _park(self, names: set[str]) -> None:
        now = time.monotonic()
        running = []
        for request in self.running:
            if request.request_id in names:
                self._parked[request.request_id] = (request, now)
            else:
                running.append(request)
        self.running = running

    def _evict(self, session: str) -> None:
        request, _ = self._parked.pop(session)
        self._preempt_request(request, time.monotonic())
        self.waiting.remove_request(request)
        self._evicted[session] = request

    def _preempt_request(self, request: Request, timestamp: float, drop_stale_output: bool = False) -> None:
        super()._preempt_request(request, timestamp, drop_stale_output)
        self._evictions += 1

    def _allocate_slots(self, request: Request, *args: Any, **kwargs: Any) -> KVCacheBlocks | None:
        """Where KV is short, take it from those who rest before vLLM takes it from those who work."""
        while (blocks := self._allocate(request, *args, **kwargs)) is None and self._parked:
            self._evict(next(iter(self._parked)))
        return blocks
