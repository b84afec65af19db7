"""Sockets of libzmq against the simulated replica: what vLLM's own subscribers are made of."""

import contextlib
import json
import subprocess
import urllib.request

import msgspec
import pytest
import zmq

from gateway import BINARY
from replica import free_port

TOPIC = b"kv@x"
END = b"\xff" * 8
ONE_TOKEN = {"max_tokens": 1}


@contextlib.contextmanager
def engine_sim(*flags):
    """A replica that publishes: its URL, and the endpoints of PUB and ROUTER."""
    publish, replay = free_port(), free_port()
    process = subprocess.Popen(
        [BINARY, "engine-sim", "--listen", "127.0.0.1:0", "--speed", "100", "--block-size", "32",
         "--kv-events", f"127.0.0.1:{publish}", "--kv-events-replay", f"127.0.0.1:{replay}",
         "--kv-events-topic", TOPIC.decode(), *flags],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
    )
    try:
        yield process.stdout.readline().strip(), f"tcp://127.0.0.1:{publish}", f"tcp://127.0.0.1:{replay}"
    finally:
        process.terminate()
        assert process.wait(30) == 0


@contextlib.contextmanager
def connected(kind, endpoint, options=()):
    with zmq.Context() as context, context.socket(kind) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVTIMEO, 20_000)
        for option, value in options:
            socket.setsockopt(option, value)
        socket.connect(endpoint)
        yield socket


def complete(url, first_id, count=100):
    body = {"prompt": list(range(first_id, first_id + count)), **ONE_TOKEN}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.status == 200


def subscribed(subscriber, url):
    """Asks for fresh prompts until one is heard of, and returns what is heard: subscribing takes its time."""
    subscriber.setsockopt(zmq.RCVTIMEO, 200)
    for first_id in range(1_000, 40_000, 1_000):
        complete(url, first_id)
        with contextlib.suppress(zmq.Again):
            frames = subscriber.recv_multipart()
            subscriber.setsockopt(zmq.RCVTIMEO, 20_000)
            return first_id, frames
    raise AssertionError("nothing was heard")


HEARTBEATS = [(zmq.HEARTBEAT_IVL, 50), (zmq.HEARTBEAT_TIMEOUT, 2_000)]


@pytest.mark.parametrize("options", [[], HEARTBEATS], ids=["quiet", "heartbeats"])
def test_a_subscriber_hears_of_every_step(options):
    with engine_sim() as (url, publish, _):
        with connected(zmq.SUB, publish, [(zmq.SUBSCRIBE, b"kv@"), *options]) as subscriber:
            _, (_, first, _) = subscribed(subscriber, url)
            number = int.from_bytes(first, "big")
            for step in range(1, 4):
                complete(url, 50_000 + step * 1_000)
                topic, sequence, payload = subscriber.recv_multipart()
                assert (topic, int.from_bytes(sequence, "big")) == (TOPIC, number + step)
                _, (event,), rank = msgspec.msgpack.decode(payload)
                assert (event["type"], event["block_size"], rank) == ("BlockStored", 32, 0)
                assert event["token_ids"] == list(range(50_000 + step * 1_000, 50_096 + step * 1_000))


@pytest.mark.parametrize(("flags", "frames"), [([], 4), (["--kv-events-encoding", "arrays"], 3)])
def test_a_replay_ends_with_its_mark(flags, frames):
    with engine_sim(*flags) as (url, _, replay):
        for step in range(3):
            complete(url, 1_000 * step)
        with connected(zmq.DEALER, replay) as dealer:
            dealer.send_multipart([b"", (1).to_bytes(8, "big")])
            answers = [dealer.recv_multipart() for _ in range(3)]
            assert [len(answer) for answer in answers] == [frames] * 3
            assert [answer[-2] for answer in answers] == [(1).to_bytes(8, "big"), (2).to_bytes(8, "big"), END]
            assert answers[-1][-1] == b""
        with connected(zmq.REQ, replay) as req:
            req.send((2).to_bytes(8, "big"))
            assert req.recv_multipart()[-2] == (2).to_bytes(8, "big"), "a REQ gets the first answer"


def test_a_subscriber_finds_a_restarted_replica_again():
    with engine_sim() as (url, publish, _):
        with connected(zmq.SUB, publish, [(zmq.SUBSCRIBE, TOPIC)]) as subscriber:
            subscribed(subscriber, url)
            order = urllib.request.Request(f"{url}/fault", b'{"fault":"crash","for_ms":300}')
            with contextlib.suppress(OSError):
                urllib.request.urlopen(order, timeout=20)
            while True:
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"{url}/health", timeout=20)
                    break
            _, (_, sequence, _) = subscribed(subscriber, url)
            assert int.from_bytes(sequence, "big") < 30, "numbers begin again"
