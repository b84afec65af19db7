"""A replica that dies, stops or freezes under load: no request fails but streams that had begun, and those end with
an error event; nothing cut looks whole. The replica is back in service once it is well."""

import signal
import time

import pytest

from gateway import Gateway
from load import Load
from replica import Replica
from waiting import eventually

# A frozen replica shows by silence alone: limits short enough for a test, and far above what a busy engine needs.
LIMITS = {"limits.gap_ms": 4000, "limits.first_output_ms": 20_000, "breaker.trial_ms": 2000, "probe.interval_ms": 500}

BEFORE_SECONDS = 4
AFTER_SECONDS = 8


@pytest.fixture(scope="module")
def faulty(replicas, tmp_path_factory):
    gateway = Gateway(tmp_path_factory.mktemp("faulty"), [replica.url for replica in replicas], **LIMITS)
    try:
        gateway.wait_ready(*[replica.url for replica in replicas])
        yield gateway
    finally:
        assert gateway.stop() == 0, gateway.log.read_text()[-4000:]


def under_load(gateway, victim, fault):
    """Runs the load, and `fault` in the middle of it; checks what became of every request."""
    recorded = len(gateway.usage())
    with Load(gateway.url) as load:
        time.sleep(BEFORE_SECONDS)
        eventually(lambda: gateway.replicas()[victim.url]["in_flight"] >= 2, 30, "the victim has work to lose")
        at = time.monotonic()
        fault()
        time.sleep(AFTER_SECONDS)
    load.retried = sum(len(record["attempts"]) > 1 for record in gateway.usage()[recorded:])
    print(f"{load.count('whole')} whole, {load.count('cut')} cut, {load.retried} retried, of {len(load.results)}")
    wrong = load.wrong()
    assert not wrong, "\n".join(map(str, wrong)) + f"\n\nof {len(load.results)}"
    # Each client loses at most the stream it was reading.
    assert load.count("cut") <= 4, [result for result in load.results if result.verdict == "cut"]
    assert load.count("whole", since=at) >= 8, "the other replica answers on"
    eventually(gateway.idle, 30, "the gateway counts nothing in flight")
    return load


def serves_again(gateway, victim):
    gateway.wait_ready(victim.url, seconds=90)
    before = victim.gauge("generation_tokens_total")
    with Load(gateway.url) as load:
        eventually(lambda: victim.gauge("generation_tokens_total") > before + 50, 60, "it has work again", every=0.2)
    assert not load.wrong(), load.wrong()
    assert load.count("cut") == 0


def test_drained(faulty, replicas):
    """Not a fault: what runs ends, nothing new comes, nobody notices."""
    victim = replicas[0]
    load = under_load(faulty, victim, lambda: faulty.act(victim.url, "drain"))
    assert load.count("cut") == 0
    assert (faulty.state(victim.url), victim.busy()) == ("draining", 0)
    faulty.act(victim.url, "undrain")
    serves_again(faulty, victim)


@pytest.mark.parametrize("freeze", [Replica.freeze, Replica.freeze_core], ids=["whole", "core"])
def test_frozen(faulty, replicas, freeze):
    victim = replicas[0]
    try:
        load = under_load(faulty, victim, lambda: freeze(victim))
        assert load.retried + load.count("cut") >= 1
        assert faulty.state(victim.url) != "ready"
    finally:
        victim.thaw()
    eventually(lambda: victim.busy() == 0, 30, "what was cut is off the thawed replica")
    serves_again(faulty, victim)


# The second replica comes back with the flag that the last test is about.
@pytest.mark.parametrize(
    "which, number, flags",
    [(0, signal.SIGTERM, []), (1, signal.SIGKILL, ["--shutdown-timeout", "20"])], ids=["SIGTERM", "SIGKILL"])
def test_signalled(faulty, replicas, which, number, flags):
    victim = replicas[which]
    load = under_load(faulty, victim, lambda: victim.signal(number))
    assert load.retried + load.count("cut") >= 1
    assert faulty.state(victim.url) != "ready"
    victim.restart(*flags)
    serves_again(faulty, victim)


def test_an_engine_that_drains_itself(faulty, replicas):
    """With `--shutdown-timeout` a stopped engine ends what it has. All the while it answers /health with 200, refuses
    new texts with a 500 and lets new token ids hang."""
    load = under_load(faulty, replicas[1], lambda: replicas[1].signal(signal.SIGTERM))
    assert load.count("cut") == 0


def test_nothing_ended_by_abort_reached_a_usage_record_as_completed(faulty):
    outcomes = {record["outcome"] for record in faulty.usage()}
    assert outcomes <= {"completed", "upstream_failure"}, outcomes
