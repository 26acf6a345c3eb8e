"""Every test of the transports runs on both event loops."""

import asyncio

import pytest
import uvloop
from support.asking import Run


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine, once on each event loop."""
    return asyncio.run if request.param == "asyncio" else uvloop.run
