"""The vLLM engine: a large target on a GPU (or a CPU), its KV paged, its steps made of other people's drafts.

`engine` is the part in the gateway's process; `launch` starts vLLM's own processes with the settings it needs there.
In them, `scheduler` decides what goes into a step and `worker` stands in for a draft model. Neither patches vLLM's
source, but both rest on names that vLLM does not promise: `hooks` holds every one of them, and says what moved.
"""

from edgedraft_cloud.engines.vllm.engine import VllmEngine

__all__ = ["VllmEngine"]
