"""Answers of vLLM 0.16.0, replayed: the stock client gets through the gateway what it gets without it."""

import openai
import pytest

from answers import gather, strip
from gateway import Gateway, client
from raw import PATHS, ask, events
from replay import Replay, capture

WHOLE = [
    "chat_plain", "chat_logprobs", "chat_tools_choice_none", "chat_cached_2", "comp_plain", "comp_n2", "comp_batch",
    "comp_echo_logprobs_0", "comp_unicode_out", "comp_token_ids",
]
STREAMED = [
    "chat_stream", "chat_stream_usage", "chat_stream_usage_continuous", "chat_n2_stream", "chat_logprobs_stream",
    "chat_one_token_stream", "chat_return_token_ids_stream", "chat_cached_3_stream_usage", "comp_stream",
    "comp_stream_usage", "comp_batch_stream", "comp_logprobs_stream",
]
REFUSED = [
    "chat_tools_auto", "chat_tools_named_stream", "err_malformed_json", "err_temperature_negative",
    "err_prompt_too_long", "err_max_tokens_too_big", "err_missing_messages", "err_top_p_2",
]
# All at once; in pieces that cut every line, chunk and character somewhere.
PIECES = [0, 1, 7]


@pytest.fixture(scope="module")
def replays():
    pair = [Replay(), Replay()]
    yield pair
    for replay in pair:
        replay.close()


@pytest.fixture(scope="module")
def old(replays, tmp_path_factory):
    gateway = Gateway(tmp_path_factory.mktemp("old"), [replay.url for replay in replays])
    try:
        gateway.wait_ready(*[replay.url for replay in replays])
        yield gateway
    finally:
        assert gateway.stop() == 0, gateway.log.read_text()[-4000:]


def question(name, piece, **more):
    text = f"replay {name} {piece}"
    asked = {"messages": [{"role": "user", "content": text}]} if name.startswith(("chat", "err")) else {"prompt": text}
    endpoint = "chat" if "messages" in asked else "completions"
    return endpoint, {"model": "tiny", **asked, **more}


def by_client(url, name, piece, **more):
    endpoint, body = question(name, piece, **more)
    stock = client(url)
    return (stock.chat.completions if endpoint == "chat" else stock.completions).create(**body)


def usage_options(name):
    """What the client had asked for when the answer was captured."""
    return {"stream_options": {"include_usage": True}} if b'"usage":{' in capture(name) else {}


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("name", WHOLE)
def test_whole(old, replays, name, piece):
    through = by_client(old.url, name, piece)
    assert through == by_client(replays[0].url, name, 0)
    assert through.choices[0].finish_reason in ("stop", "length")
    endpoint, body = question(name, piece)
    assert ask(old.url, PATHS[endpoint], body)[2] == capture(name).split(b"\r\n\r\n", 1)[1]


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("name", STREAMED)
def test_streamed(old, replays, name, piece):
    more = {"stream": True, **usage_options(name)}
    through = list(by_client(old.url, name, piece, **more))
    assert gather(through) == gather(by_client(replays[0].url, name, 0, **more))
    endpoint, body = question(name, piece, **more)
    frames = events(ask(old.url, PATHS[endpoint], body)[2])
    assert strip(frames) == strip(events(ask(replays[0].url, PATHS[endpoint], body)[2]))
    assert frames[-1] == "[DONE]"


@pytest.mark.parametrize("name", ["chat_stream", "comp_stream"])
def test_a_usage_frame_that_was_not_asked_for_stays_here(old, name):
    """The gateway asks the engine for the usage of every stream; its record has it, the client does not."""
    endpoint, body = question(name, 0, stream=True)
    frames = events(ask(old.url, PATHS[endpoint], body)[2])
    assert not any(frame.get("usage") for frame in frames[:-1])
    record = old.usage()[-1]
    assert (record["counted"], record["outcome"]) == ("engine", "completed")
    expected = events(without_chunks(capture(f"{name}_usage")))[-2]["usage"]
    assert (record["input_tokens"], record["output_tokens"]) == (expected["prompt_tokens"], expected["completion_tokens"])


def without_chunks(answer):
    """The body of a chunked answer."""
    rest, body = answer.split(b"\r\n\r\n", 1)[1], b""
    while rest:
        size, rest = rest.split(b"\r\n", 1)
        body, rest = body + rest[:int(size, 16)], rest[int(size, 16) + 2:]
    return body


@pytest.mark.parametrize("name", REFUSED)
def test_refused(old, name):
    endpoint, body = question(name, 0)
    status, _, answer = ask(old.url, PATHS[endpoint], body)
    assert status == 400
    assert answer == capture(name).split(b"\r\n\r\n", 1)[1]
    with pytest.raises(openai.BadRequestError):
        by_client(old.url, name, 0)


@pytest.mark.parametrize("name", ["err_prompt_token_negative", "err_json_array"])
def test_a_failed_replica_is_no_answer(old, replays, name):
    """0.16.0 dies of a negative token id and says so in a 200: no client may take that for an answer. Both replicas
    are asked, and the client gets an error that its library raises."""
    for replay in replays:
        replay.asked.clear()
    endpoint, body = question(name, 0)
    status, _, answer = ask(old.url, PATHS[endpoint], body)
    assert status >= 500, answer
    assert sum(replay.asked.count(name) for replay in replays) >= 1
    with pytest.raises(openai.InternalServerError):
        by_client(old.url, name, 0)


def test_models(old):
    assert {model.id for model in old.client().models.list()} == {"tiny", "lora-0", "gpt-fast"}
