"""An orchestrator over a scripted engine, for tests that speak to it as a server does; the command, in this process."""

import pytest
from devices import RecordingEngine, engine_info
from typer.testing import CliRunner

from edgedraft_cloud import cli, gather
from edgedraft_cloud.orchestrator import Orchestrator


@pytest.fixture
def engine() -> RecordingEngine:
    return RecordingEngine(engine_info())


@pytest.fixture
async def make(engine, monkeypatch):
    """Starts orchestrators in which the cloud waits for drafts, unless a test says otherwise."""
    monkeypatch.setattr(gather, "MOMENT", 0.0)
    made: list[Orchestrator] = []

    async def start(**settings) -> Orchestrator:
        orchestrator = Orchestrator(engine, **{"window": 8, "run_ahead": 0, **settings})
        made.append(orchestrator)
        await orchestrator.start()
        return orchestrator

    yield start
    for orchestrator in made:
        await orchestrator.close()


@pytest.fixture
def invoke(monkeypatch):
    monkeypatch.setattr(cli.logs, "configure", lambda level: None)
    return lambda *arguments: CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
