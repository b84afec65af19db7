#!/usr/bin/env python3
"""Fits the step time of a running engine, seen through its API, and writes a coefficient set.

usage: fit.py URL [--name NAME] [--out FILE] [--rounds N]

The engine must be idle, with blocks of 32 tokens or a divisor of it, max_num_seqs >= 16, max_num_batched_tokens 2048
and max_model_len >= 3600. The file is one that `expediter engine-sim --profiles` reads. What is measured, and how good
the fit is: README.md and docs/calibration.md.
"""

import argparse
import asyncio
import random
import re
import urllib.request

from nnls import nnls
from streams import Answer, complete, fresh, load_average, quantile

# What engine-sim adds to every step beside the coefficients; a stream does not tell it from `c0`.
HOST_OVERHEAD_MS = 0.5
# Tokens of a step at most, as the engine was started.
BUDGET = 2048
# Knees of the roofline that are tried; above the last there is none.
KNEES = [32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, BUDGET]


class Work:
    """What some steps compute together, in the terms of the model."""

    def __init__(self, what):
        self.what = what
        self.steps = []  # tokens of each step
        self.area = self.context = self.decodes = self.chunks = 0
        self.requests = 0  # 1 where the time is one from request to token, not from token to token

    def step(self, chunks=(), contexts=()):
        """Adds a step: (new, computed before) of each prefill chunk, and the context of each decode."""
        self.steps.append(sum(new for new, _ in chunks) + len(contexts))
        self.area += sum(new * before + new * new / 2 for new, before in chunks)
        self.context += sum(contexts)
        self.decodes += len(contexts)
        self.chunks += len(chunks)
        return self

    def prompt(self, tokens, cached=0):
        """Adds the steps of one prompt on an idle engine."""
        while cached < tokens:
            new = min(BUDGET, tokens - cached)
            self.step([(new, cached)])
            cached += new
        self.requests = 1
        return self

    def features(self, knee):
        beyond = sum(max(0, tokens - knee) for tokens in self.steps)
        return [len(self.steps), sum(self.steps), beyond, self.area, self.context, self.decodes, self.chunks, self.requests]


async def measure(url, rng):
    """One round: (work, seconds) of everything once, in an order of its own."""
    probes = [(cold, n) for n in (32, 64, 128, 256, 512, 768, 1024, 1536, 2048, 2560, 3500)]
    probes += [(cached, (c, q)) for c in (512, 1536, 3072) for q in (32, 256)]
    probes += [(decode, (b, n)) for b in (1, 2, 4, 8) for n in (64, 768)] + [(decode, (16, 64)), (decode, (16, 352))]
    probes += [(mixed, (b, q)) for b in (2, 6, 12) for q in (64, 256, 1024)]
    rng.shuffle(probes)
    rows = []
    for probe, size in probes:
        rows.append(await probe(url, rng, size))
    return rows


async def cold(url, rng, tokens):
    answer = await complete(url, fresh(rng, tokens), 2)
    return Work(f"prompt of {tokens}").prompt(tokens), answer.ttft()


async def cached(url, rng, size):
    before, new = size
    prefix = fresh(rng, before)
    await complete(url, prefix + fresh(rng, 32), 1)
    answer = await complete(url, prefix + fresh(rng, new), 2)
    assert answer.cached == before, f"{answer.cached} cached of {before}: is the cache on?"
    return Work(f"{new} after {before} cached").prompt(before + new, before), answer.ttft()


async def decode(url, rng, size):
    """The mean step while all sequences decode."""
    sequences, context = size
    tokens, times = 48 + 4 * sequences, []
    while len(times) < 10:  # where the machine was busy with something else
        answers = await asyncio.gather(*[complete(url, fresh(rng, context), tokens) for _ in range(sequences)])
        begin = max(answer.tokens[0] for answer in answers)
        last = min(answers, key=lambda answer: answer.tokens[-1])
        times = [time for time in last.tokens if time >= begin]
    step = (times[-1] - times[0]) / (len(times) - 1)
    return Work(f"{sequences} decodes at {context}").step(contexts=[context + tokens // 2] * sequences), step


async def mixed(url, rng, size):
    """The step in which a prompt comes between decodes: their longest gap meanwhile."""
    sequences, new = size
    context, tokens = 64, 90
    running = [Answer() for _ in range(sequences)]
    streams = [asyncio.create_task(complete(url, fresh(rng, context), tokens, answer=answer)) for answer in running]
    while any(len(answer.tokens) < 10 for answer in running):
        await asyncio.sleep(0.002)
    prompt = await complete(url, fresh(rng, new), 2)
    gaps = []
    for answer in await asyncio.gather(*streams):
        pairs = zip(answer.tokens, answer.tokens[1:])
        gaps.append(max(b - a for a, b in pairs if b > prompt.sent and a < prompt.tokens[1]))
    work = Work(f"prompt of {new} among {sequences} decodes")
    return work.step([(new, 0)], [context + 20] * sequences), quantile(gaps, 0.5)


def fit(rows):
    """Coefficients in milliseconds, by least squares of relative errors, none negative; of all knees the best."""
    best = None
    for knee in KNEES:
        matrix = [[value / (1e3 * seconds) for value in work.features(knee)] for work, seconds in rows]
        solution, error = nnls(matrix, [1.0] * len(rows))
        if best is None or error < best[0]:
            best = (error, knee, solution)
    _, knee, (c0, w1, beyond, a, k, b, pp, request) = best
    coefficients = {"c0": c0, "w1": w1, "g": w1 + beyond, "g0": beyond * knee, "a": a, "k": k, "b": b, "pp": pp}
    return coefficients, request, [predict(work, knee, best[2]) for work, _ in rows]


def predict(work, knee, solution):
    return sum(c * value for c, value in zip(solution, work.features(knee))) / 1e3


def medians(rounds):
    """One row for each kind of work: the median over the rounds, and the spread of their logarithms."""
    kinds = {}
    for work, seconds in (row for rows in rounds for row in rows):
        kinds.setdefault(work.what, (work, []))[1].append(seconds)
    return [(work, quantile(times, 0.5), times) for work, times in kinds.values()]


def describe(rows, predicted, loads):
    """How well the model says again what was measured, a line for each kind of work."""
    lines, errors = [f"{'work':34} {'measured':>9} {'model':>9} {'error':>8} {'quartiles':>10}"], []
    for (work, seconds, times), modelled in sorted(zip(rows, predicted), key=lambda row: row[0][0].what):
        errors.append(abs(modelled / seconds - 1))
        spread = quantile(times, 0.75) / quantile(times, 0.25) - 1
        lines.append(f"{work.what:34} {1e3 * seconds:6.2f} ms {1e3 * modelled:6.2f} ms {100 * (modelled / seconds - 1):+6.1f} %"
                     f" {100 * spread:8.1f} %")
    lines.append(f"mean error {100 * sum(errors) / len(errors):.1f} %, largest {100 * max(errors):.1f} %, of medians of "
                 f"{len(rows[0][2])} rounds; load average {min(loads):.2f} to {max(loads):.2f}")
    return lines


def table(name, coefficients, blocks, block_bytes, notes):
    """One calibration in the format of engine-sim's table."""
    values = " ".join(f"{coefficients[key]:.6g}" for key in ("c0", "w1", "g", "g0", "a", "k", "b", "pp"))
    comments = "".join(f"# {note}\n" for note in notes)
    return f"{comments}# name c0 w1 g g0 a k b pp blocks block_bytes\n{name} {values} {blocks} {block_bytes}\n"


def kv_blocks(url):
    """KV blocks of 16 tokens that the engine reports."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        info = re.search(r"vllm:cache_config_info\{(.*)\}", answer.read().decode())[1]
    of = {key: int(re.search(rf'\b{key}="(\d+)"', info)[1]) for key in ("num_gpu_blocks", "block_size")}
    return of["num_gpu_blocks"] * of["block_size"] // 16


async def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--name", default="measured", help="of the calibration")
    parser.add_argument("--out", help="the table to write")
    parser.add_argument("--block-bytes", type=int, default=16384,
                        help="of 16 tokens: 2 * layers * KV heads * head_dim * bytes * 16; default: calibration/model")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    await measure(arguments.url, rng)  # what runs for the first time takes longer
    loads, rounds = [], []
    for _ in range(arguments.rounds):
        loads.append(load_average())
        rounds.append(await measure(arguments.url, rng))
    rows = medians(rounds)
    coefficients, request, predicted = fit([(work, seconds) for work, seconds, _ in rows])
    coefficients["c0"] = max(0.0, coefficients["c0"] - HOST_OVERHEAD_MS)
    lines = describe(rows, predicted, loads)
    lines.append(f"between client and engine, a request: {request:.2f} ms, which no coefficient stands for")
    text = table(arguments.name, coefficients, kv_blocks(arguments.url), arguments.block_bytes, lines)
    print(text, end="")
    if arguments.out:
        with open(arguments.out, "w") as file:
            file.write(text)


if __name__ == "__main__":
    asyncio.run(main())
