"""Clients that keep asking, and what became of each request."""

import dataclasses
import itertools
import threading
import time

import openai

from gateway import client
from raw import PATHS, ask, events

MAX_TOKENS = 40
WHOLE = {"stop", "length"}


@dataclasses.dataclass
class Result:
    kind: str
    verdict: str  # "whole", "cut" (a stream that began, and ended with an error event), or what went wrong
    started: float
    seconds: float


class Load:
    """`clients` threads, each with one request at a time until `stop`; every kind of request in turn."""

    def __init__(self, url, clients=8):
        self.url = url
        self.results = []
        self._stop = threading.Event()
        kinds = itertools.cycle([streamed, whole, streamed_raw, whole_chat])
        self._threads = [threading.Thread(target=self._keep_asking, args=(number, next(kinds))) for number in range(clients)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _keep_asking(self, number, kind):
        for turn in itertools.count():
            if self._stop.is_set():
                return
            start = time.monotonic()
            try:
                verdict = kind(self.url, f"client {number}, turn {turn}")
            except Exception as error:  # whatever the client library raises is what its user sees
                verdict = f"failed: {error!r}"
            self.results.append(Result(kind.__name__, verdict, start, time.monotonic() - start))

    def wrong(self):
        return [result for result in self.results if result.verdict not in ("whole", "cut")]

    def count(self, verdict, since=0.0):
        return sum(result.verdict == verdict and result.started >= since for result in self.results)


def whole(url, prompt):
    """By token ids: a draining engine refuses texts at once, and lets these hang."""
    answer = client(url).completions.create(model="tiny", prompt=list(prompt.encode()), max_tokens=MAX_TOKENS)
    finish = answer.choices[0].finish_reason
    return "whole" if finish in WHOLE else f"ended by {finish}"


def whole_chat(url, prompt):
    answer = client(url).chat.completions.create(
        model="gpt-fast", messages=[{"role": "user", "content": prompt}], max_tokens=MAX_TOKENS)
    finish = answer.choices[0].finish_reason
    return "whole" if finish in WHOLE else f"ended by {finish}"


def streamed(url, prompt):
    stream = client(url).chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": prompt}], max_tokens=MAX_TOKENS, stream=True)
    chunks, finish = 0, None
    try:
        for chunk in stream:
            chunks += 1
            for choice in chunk.choices:
                finish = choice.finish_reason or finish
    except openai.APIError as error:
        if isinstance(error, openai.APIConnectionError):
            return f"cut without an error event: {error!r}"
        return "cut" if chunks else f"failed before its first token: {error!r}"
    return "whole" if finish in WHOLE else f"looked whole and ended by {finish}"


def streamed_raw(url, prompt):
    """The same on the wire: whole is a finish reason and `[DONE]`; cut is an error event, and no `[DONE]` after it."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": MAX_TOKENS, "stream": True}
    status, _, answer = ask(url, PATHS["completions"], body)
    if status != 200:
        return f"failed with {status}: {answer[:300]!r}"
    payloads = events(answer)
    finishes = [choice["finish_reason"] for payload in payloads if payload != "[DONE]" for choice in payload.get("choices", [])]
    if payloads[-1] == "[DONE]":
        return "whole" if set(finishes) & WHOLE else f"[DONE] after {finishes[-1:]}"
    if "error" in payloads[-1]:
        return "cut" if len(payloads) > 1 and not any(finishes) else f"error event after {len(payloads) - 1} events"
    return f"ended without [DONE] or error: {payloads[-1]}"
