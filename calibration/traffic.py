"""The requests that a real and a simulated engine are compared with, fixed by a seed.

Three parts, each with a demand of its own on the cached tokens of every request:

- `sequential`: one after the other. What is cached, and what was evicted for it, follows from the order alone.
- `open`: at times of a Poisson process, several at once. Every prompt begins with one of four prefixes, warmed before,
  that come around so often that none is the least recently used; all else is fresh. So each finds its prefix and no
  more, whichever request is a little faster; evictions go on all the while.
- `burst`: the same, all sent at once: the queue is longer than the batch.

They fit an engine of 256 blocks of 32 tokens and 16 sequences. The four prefixes take 80 blocks, 16 tails with their
answers at most 96: nothing is preempted. From the last use of a prefix to the next at most 6 requests are admitted, which
with what the others grow take fewer blocks than are free and older.
"""

import dataclasses
import random

from streams import fresh

BLOCK = 32
# Tokens of the four prefixes: 8, 16, 24 and 32 blocks.
WARM = [256, 512, 768, 1024]
# Tokens that a prompt of its own may have; over a warm prefix at most 6 blocks with the answer.
TAIL_MAX = 280
WARM_TAIL_MAX = 150
OUTPUT_MAX = 40


@dataclasses.dataclass
class Request:
    prompt: list[int]
    output: int
    kind: str
    # Sent this long after the part began; 0 in the sequential part.
    at: float = 0.0
    # The place of an earlier request of the part whose prompt and answer come first.
    after: int | None = None
    # Whether a later one comes `after` this.
    is_continued: bool = False


def traffic(seed, requests, rate):
    """The parts by name, `requests` in all: two in five sequential, two in five open, the rest as a burst."""
    rng = random.Random(seed)
    two_fifths = requests * 2 // 5
    warm = [fresh(rng, tokens) for tokens in WARM]
    return {
        "sequential": sequential(rng, two_fifths - len(warm)) + [Request(prompt, 1, "warm") for prompt in warm],
        "open": shared(rng, warm, two_fifths, rate),
        "burst": shared(rng, warm, requests - 2 * two_fifths, None),
    }


def sequential(rng, count):
    prefixes = [fresh(rng, tokens) for tokens in (96, 100, 256, 333, 512, 640, 1000, 1024, 1500)]
    requests = []
    for _ in range(count):
        # Some time ago, so that some of it may be gone, but not always.
        back = min(len(requests), 1 + int(rng.expovariate(1 / 6)))
        request = one(rng, prefixes, requests, len(requests) - back if requests else None)
        requests.append(request)
    return requests


def one(rng, prefixes, requests, earlier):
    output = 1 + rng.randrange(OUTPUT_MAX)
    tail = fresh(rng, 1 + rng.randrange(TAIL_MAX))
    kinds = {"prefix": 6, "blocks": 2, "short": 1, "long": 1}
    if earlier is not None:
        kinds |= {"repeat": 2, "cut": 3, "turn": 4}
    kind = rng.choices(list(kinds), kinds.values())[0]
    if kind == "prefix":
        return Request(rng.choice(prefixes) + tail, output, kind)
    if kind == "blocks":  # whole blocks: when repeated, the last of them is computed again
        return Request(fresh(rng, BLOCK * (1 + rng.randrange(20))), output, kind)
    if kind == "short":
        return Request(fresh(rng, 1 + rng.randrange(BLOCK + 1)), output, kind)
    if kind == "long":  # more than a step computes, and a good part of the cache
        return Request(fresh(rng, 2048 + rng.randrange(1500)), output, kind)
    before = requests[earlier]
    if kind == "turn" and len(before.prompt) < 2500 and before.after is None:
        before.is_continued = True
        return Request(tail, output, kind, after=earlier)
    if kind == "cut" and len(before.prompt) > 1:
        return Request(before.prompt[:rng.randrange(1, len(before.prompt))] + tail, output, kind)
    return Request(before.prompt, output, "repeat", after=before.after)


def shared(rng, warm, count, rate):
    """Prompts over warm prefixes, each of the four once before any comes again."""
    requests, at, turn = [], 0.0, []
    for _ in range(count):
        turn = turn or rng.sample(warm, len(warm))
        tail = fresh(rng, 1 + rng.randrange(WARM_TAIL_MAX))
        requests.append(Request(turn.pop() + tail, 1 + rng.randrange(OUTPUT_MAX), "warm prefix", at))
        at += rng.expovariate(rate) if rate else 0.0
    return requests
