#!/usr/bin/env python3
"""Sends the same requests at the same times to a real engine and to a simulated one, and says how they differ.

usage: compare.py REAL_URL SIMULATED_URL [--requests N] [--rate R] [--rounds N] [--between-ms MS] [--out FILE]

Both need blocks of 32 tokens, 256 of them, max_num_seqs 16, max_num_batched_tokens 2048 and max_model_len >= 3600, and
nothing else to do. Ends with 1 where a request's cached tokens differ; times are only reported.
"""

import argparse
import asyncio
import json
import sys
import time

from streams import complete, load_average, quantile
from traffic import BLOCK, traffic


async def play(url, parts):
    """The answers of each part, in order of its requests."""
    return {
        name: await (one_by_one if name == "sequential" else by_the_clock)(url, requests)
        for name, requests in parts.items()
    }


async def one_by_one(url, requests):
    answers = []
    for request in requests:
        before = []
        if request.after is not None:
            before = requests[request.after].prompt + answers[request.after].ids
        answers.append(await complete(url, before + request.prompt, request.output, with_ids=request.is_continued))
    return answers


async def by_the_clock(url, requests):
    begin = asyncio.get_running_loop().time()

    async def one(request):
        await asyncio.sleep(begin + request.at - asyncio.get_running_loop().time())
        return await complete(url, request.prompt, request.output)

    return await asyncio.gather(*map(one, requests))


def unlimited(requests, answers):
    """The cached tokens of each request, sent one by one, had nothing ever been evicted."""
    stored, cached = set(), []
    for request, answer in zip(requests, answers):
        before = requests[request.after].prompt + answers[request.after].ids if request.after is not None else []
        prompt = before + request.prompt
        blocks = [hash(tuple(prompt[:end])) for end in range(BLOCK, len(prompt) + 1, BLOCK)]
        # The last token is computed in any case.
        found = next((number for number, block in enumerate(blocks) if block not in stored), len(blocks))
        cached.append(min(found, (len(prompt) - 1) // BLOCK) * BLOCK)
        # The last token of an answer is not: it is what the last step brought.
        whole = prompt + answer.ids[:-1]
        stored.update(hash(tuple(whole[:end])) for end in range(BLOCK, len(whole) + 1, BLOCK))
    return cached


def measures(answers):
    """Milliseconds, and output tokens a second from the first request to the last token."""
    ttfts = [1e3 * answer.ttft() for answer in answers]
    tpots = [1e3 * tpot for answer in answers if (tpot := answer.tpot()) is not None]
    seconds = max(answer.tokens[-1] for answer in answers) - min(answer.sent for answer in answers)
    return {
        "TTFT mean": sum(ttfts) / len(ttfts), "TTFT p50": quantile(ttfts, 0.5), "TTFT p90": quantile(ttfts, 0.9),
        "TPOT mean": sum(tpots) / len(tpots), "TPOT p50": quantile(tpots, 0.5), "TPOT p90": quantile(tpots, 0.9),
        "tokens/s": sum(len(answer.tokens) for answer in answers) / seconds,
    }


def differing(parts, real, simulated):
    """Requests whose cached tokens are not equal."""
    found = []
    for name, requests in parts.items():
        for number, (request, here, there) in enumerate(zip(requests, real[name], simulated[name])):
            if (here.prompt, here.cached) != (there.prompt, there.cached):
                found.append({
                    "part": name, "number": number, "kind": request.kind, "prompt": here.prompt,
                    "real": here.cached, "simulated": there.cached,
                })
    return found


async def compare(real_url, simulated_url, seed, requests, rate):
    """One round: both engines in turn, the one that goes first alternating with the seed."""
    parts = traffic(seed, requests, rate)
    sides = [("real", real_url), ("simulated", simulated_url)]
    answers, loads = {}, {}
    for side, url in sides if seed % 2 else sides[::-1]:
        began = load_average()
        answers[side] = await play(url, parts)
        loads[side] = [began, load_average()]
    real, simulated = answers["real"], answers["simulated"]
    kept = unlimited(parts["sequential"], real["sequential"])
    return {
        "seed": seed,
        "requests": sum(map(len, parts.values())),
        "cached": sum(answer.cached for part in real.values() for answer in part),
        "prompts": sum(answer.prompt for part in real.values() for answer in part),
        "evicted": sum(answer.cached < tokens for answer, tokens in zip(real["sequential"], kept)),
        "differing": differing(parts, real, simulated),
        "load average": loads,
        "measures": {name: {"real": measures(real[name]), "simulated": measures(simulated[name])} for name in parts},
    }


def summary(rounds):
    """Of each measure the median over the rounds, on either side, and the difference."""
    rows = []
    for part, measured in rounds[0]["measures"].items():
        for measure in measured["real"]:
            real, simulated = (
                quantile([one["measures"][part][side][measure] for one in rounds], 0.5) for side in ("real", "simulated")
            )
            rows.append((part, measure, real, simulated, simulated / real - 1))
    return rows


def show(rounds, between_ms):
    """`between_ms` is the time between client and engine that the real one has more of: engine-sim lacks it."""
    print(f"{'part':11} {'measure':10} {'real':>9} {'simulated':>9} {'error':>8}   with {between_ms:.2f} ms more")
    for part, measure, real, simulated, error in summary(rounds):
        corrected = ""
        if measure.startswith("TTFT") and between_ms:
            corrected = f"   {100 * ((simulated + between_ms) / real - 1):+6.1f} %"
        print(f"{part:11} {measure:10} {real:9.2f} {simulated:9.2f} {100 * error:+6.1f} %{corrected}")
    for one in rounds:
        share = one["cached"] / one["prompts"]
        print(f"seed {one['seed']}: cached tokens of {one['requests']} requests: {len(one['differing'])} differ; "
              f"{one['cached']} of {one['prompts']} prompt tokens cached ({100 * share:.0f} %), "
              f"{one['evicted']} sequential requests found less than had been there; "
              f"load average {one['load average']}")
        for request in one["differing"][:20]:
            print(f"  {request}")


async def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("real")
    parser.add_argument("simulated")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--rate", type=float, default=8.0, help="requests a second in the open part")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--between-ms", type=float, default=0.0,
                        help="what fit.py found between client and engine, real less simulated")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    rounds = []
    for seed in range(arguments.seed, arguments.seed + arguments.rounds):
        rounds.append(await compare(arguments.real, arguments.simulated, seed, arguments.requests, arguments.rate))
    show(rounds, arguments.between_ms)
    if arguments.out:
        with open(arguments.out, "w") as file:
            json.dump({"date": time.strftime("%Y-%m-%d"), "between_ms": arguments.between_ms, "rounds": rounds}, file, indent=2)
    return 1 if any(one["differing"] for one in rounds) else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
