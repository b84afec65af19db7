"""Streamed completions with the time of every token: one thread, plain sockets, so that the client costs the engine's
machine as little as it can."""

import asyncio
import dataclasses
import json
import random
import time

# Token ids of ordinary words in the test model's vocabulary; special ones lie above.
VOCABULARY = 150_000


@dataclasses.dataclass
class Answer:
    """Times are `time.monotonic` seconds."""

    sent: float = 0.0
    tokens: list[float] = dataclasses.field(default_factory=list)  # when each token came
    ids: list[int] = dataclasses.field(default_factory=list)  # where they were asked for
    ended: float = 0.0
    prompt: int = 0
    cached: int = 0

    def ttft(self):
        return self.tokens[0] - self.sent

    def tpot(self):
        """None for an answer of one token."""
        return (self.tokens[-1] - self.tokens[0]) / (len(self.tokens) - 1) if len(self.tokens) > 1 else None


async def complete(url, prompt, max_tokens, with_ids=False, answer=None):
    """One streamed completion of exactly `max_tokens` tokens for a prompt of token ids. Whoever wants to watch it
    gives the `answer` that it fills."""
    answer = answer or Answer()
    body = {
        "model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0,
        "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "return_token_ids": with_ids,
    }
    payload = json.dumps(body).encode()
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 22)
    try:
        answer.sent = time.monotonic()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: %b\r\nContent-Type: application/json\r\n"
                     b"Content-Length: %d\r\n\r\n" % (host.encode(), len(payload)) + payload)
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n", 1)[0]:
            raise RuntimeError(f"{head.decode()}{(await reader.read(2000)).decode(errors='replace')}")
        async for event, now in _events(reader):
            _note(answer, event, now)
        answer.ended = time.monotonic()
    finally:
        writer.close()
    if len(answer.tokens) != max_tokens:
        raise RuntimeError(f"{len(answer.tokens)} tokens instead of {max_tokens}")
    return answer


async def _events(reader):
    """The payload of each event of a chunked event stream, and when its chunk came."""
    rest = b""
    while size := int(await reader.readline(), 16):
        rest += await reader.readexactly(size)
        now = time.monotonic()
        await reader.readexactly(2)
        *whole, rest = rest.split(b"\n\n")
        for event in whole:
            if event != b"data: [DONE]":
                yield json.loads(event.removeprefix(b"data: ")), now


def _note(answer, event, now):
    if "error" in event:
        raise RuntimeError(str(event["error"]))
    usage = event.get("usage") or {}
    # An event may carry several tokens where the server is late.
    answer.tokens += [now] * (usage.get("completion_tokens", 0) - len(answer.tokens))
    answer.prompt = usage.get("prompt_tokens", answer.prompt)
    details = usage.get("prompt_tokens_details") or {}
    answer.cached = details.get("cached_tokens") or answer.cached
    for choice in event["choices"]:
        answer.ids += choice.get("token_ids") or []


def fresh(rng: random.Random, tokens):
    """A prompt that shares no block with any other."""
    return [rng.randrange(VOCABULARY) for _ in range(tokens)]


def load_average():
    """Of the last minute."""
    with open("/proc/loadavg") as file:
        return float(file.read().split()[0])


def quantile(values, share):
    """By linear interpolation between the closest ranks."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
