"""Every name of vLLM that the engine rests on without a promise that it stays, and a check that says what moved."""


def check() -> None:
    """Placeholder."""
    import vllm
