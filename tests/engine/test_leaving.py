"""A client that leaves takes its work off the replica, in whatever stage it was.

An idle engine lets go 30 to 40 ms after its own client has left, a busy one after up to 0.3 s."""

import contextlib
import random

import pytest

from raw import PATHS, Leaver
from replica import MAX_NUM_SEQS
from waiting import eventually

LIMIT_SECONDS = 2
LONG = {"model": "tiny", "max_tokens": 6000, "ignore_eos": True, "temperature": 1}


def fresh_prompt(tokens):
    """Token ids that no replica has cached."""
    start = random.randrange(1000, 100_000)
    return [start + step % 5000 for step in range(tokens)]


def running(replicas):
    return sum(replica.gauge("num_requests_running") for replica in replicas)


def waiting(replicas):
    return sum(replica.gauge("num_requests_waiting") for replica in replicas)


def busy(replicas):
    return running(replicas) + waiting(replicas)


def cancelled(gateway):
    return sum(record["outcome"] == "cancelled" for record in gateway.usage())


@pytest.fixture(autouse=True)
def idle(gateway, replicas):
    """Idle replicas before and after; and each client that left is on record as one that did."""
    eventually(lambda: busy(replicas) == 0, 30, "the replicas are idle at the start")
    before = cancelled(gateway)
    yield
    eventually(lambda: busy(replicas) == 0, 30, "the replicas are idle at the end")
    eventually(gateway.idle, 5, "the gateway counts nothing in flight")
    eventually(lambda: cancelled(gateway) > before, 5, "the usage record says cancelled")


def let_go(replicas, left=0):
    eventually(lambda: busy(replicas) <= left, LIMIT_SECONDS, f"the replicas have at most {left} requests")


@pytest.mark.parametrize("how", ["fin", "rst"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_in_prefill(gateway, replicas, stream, how):
    leaver = Leaver(gateway.url, PATHS["completions"], {**LONG, "prompt": fresh_prompt(8000), "max_tokens": 100, "stream": stream})
    eventually(lambda: busy(replicas) >= 1, 10, "the prompt is being computed", every=0)
    leaver.leave(how)
    let_go(replicas)


@pytest.mark.parametrize("how", ["fin", "rst"])
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_in_decode(gateway, replicas, endpoint, how):
    asked = {"messages": [{"role": "user", "content": "Count."}]} if endpoint == "chat" else {"prompt": "Count."}
    leaver = Leaver(gateway.url, PATHS[endpoint], {**LONG, **asked, "stream": True})
    leaver.read_events(5)
    assert running(replicas) == 1
    leaver.leave(how)
    let_go(replicas)


@pytest.mark.parametrize("how", ["fin", "rst"])
def test_in_an_answer_that_is_not_streamed(gateway, replicas, how):
    leaver = Leaver(gateway.url, PATHS["completions"], {**LONG, "prompt": "Count."})
    eventually(lambda: running(replicas) == 1, 10, "the answer is being computed")
    leaver.leave(how)
    let_go(replicas)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_in_the_engines_queue(gateway, replicas, stream):
    full = MAX_NUM_SEQS * len(replicas)
    with contextlib.ExitStack() as clients:

        def ask(stream):
            leaver = Leaver(gateway.url, PATHS["completions"], {**LONG, "prompt": fresh_prompt(8), "stream": stream})
            clients.callback(leaver.leave, "fin")
            return leaver

        for _ in range(full):
            ask(True)
        eventually(lambda: running(replicas) == full, 30, "every batch is full")
        queued = [ask(stream) for _ in range(4)]
        eventually(lambda: waiting(replicas) == 4, 10, "four requests wait in the engines")
        for leaver in queued:
            leaver.leave("fin")
        eventually(lambda: waiting(replicas) == 0, LIMIT_SECONDS, "none waits")
        assert running(replicas) == full
    let_go(replicas)


def test_by_the_stock_client(gateway, replicas):
    stream = gateway.client().completions.create(**{key: LONG[key] for key in ("model", "max_tokens")}, prompt="Count.", stream=True)
    next(iter(stream))
    stream.close()
    let_go(replicas)
