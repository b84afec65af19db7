"""Through the gateway an answer is what the replica itself answers to the same question."""

import json
import uuid

import openai
import pytest

from answers import gather, plain, strip
from gateway import Gateway, client
from raw import PATHS, ask, events

MESSAGES = [{"role": "system", "content": "You are terse."}, {"role": "user", "content": "Why is the sky blue?"}]
TOOLS = [{
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}]
NAMED = {"type": "function", "function": {"name": "get_weather"}}

# (name, endpoint, what is asked beside model, temperature and seed)
QUESTIONS = [
    ("plain", "chat", {"messages": MESSAGES}),
    ("unicode", "chat", {"messages": [{"role": "user", "content": "Grüße, 世界 🎉 \u2028 \"quoted\" \\ \u0001"}]}),
    ("parts", "chat", {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}),
    ("stop", "chat", {"messages": MESSAGES, "stop": ["e"]}),
    ("max_completion_tokens", "chat", {"messages": MESSAGES, "max_completion_tokens": 3}),
    ("logprobs", "chat", {"messages": MESSAGES, "logprobs": True, "top_logprobs": 3}),
    ("n", "chat", {"messages": MESSAGES, "n": 2, "temperature": 1.0}),
    ("tools none", "chat", {"messages": MESSAGES, "tools": TOOLS, "tool_choice": "none"}),
    ("tools auto", "chat", {"messages": MESSAGES, "tools": TOOLS, "tool_choice": "auto"}),
    ("tools named", "chat", {"messages": MESSAGES, "tools": TOOLS, "tool_choice": NAMED, "max_tokens": 40}),
    ("json object", "chat", {"messages": MESSAGES, "response_format": {"type": "json_object"}, "max_tokens": 20}),
    ("plain", "completions", {"prompt": "Once upon a time"}),
    ("token ids", "completions", {"prompt": [9707, 11, 1879, 0]}),
    ("batch", "completions", {"prompt": ["one", "two"]}),
    ("batch of token ids", "completions", {"prompt": [[9707, 11], [1879, 0]]}),
    ("echo", "completions", {"prompt": "Once upon", "echo": True}),
    ("logprobs", "completions", {"prompt": "Once upon a time", "logprobs": 2}),
    ("n", "completions", {"prompt": "Once upon a time", "n": 2, "temperature": 1.0}),
    ("no max_tokens", "completions", {"prompt": "Once upon a time", "max_tokens": None}),
]
NAMES = [f"{endpoint} {name}" for name, endpoint, _ in QUESTIONS]


def question(endpoint, asked, **more):
    """The request; its salt keeps the answer apart from every other request's cached blocks."""
    body = {"model": "tiny", "temperature": 0, "seed": 11, "max_tokens": 12, **asked, **more}
    body["cache_salt"] = uuid.uuid4().hex
    return {key: value for key, value in body.items() if value is not None}


def by_client(url, endpoint, body):
    stock = client(url)
    create = stock.chat.completions.create if endpoint == "chat" else stock.completions.create
    known = {key: value for key, value in body.items() if key != "cache_salt"}
    return create(**known, extra_body={"cache_salt": body["cache_salt"]})


@pytest.mark.parametrize("name, endpoint, asked", QUESTIONS, ids=NAMES)
def test_a_whole_answer_equals_the_replicas(gateway, replicas, name, endpoint, asked):
    through = plain(by_client(gateway.url, endpoint, question(endpoint, asked)))
    for replica in replicas:
        assert through == plain(by_client(replica.url, endpoint, question(endpoint, asked)))
    assert through["usage"]["completion_tokens"] > 0
    assert {choice["finish_reason"] for choice in through["choices"]} <= {"stop", "length"}


@pytest.mark.parametrize("name, endpoint, asked", QUESTIONS, ids=NAMES)
def test_a_streamed_answer_equals_the_replicas(gateway, replicas, name, endpoint, asked):
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    through = gather(by_client(gateway.url, endpoint, question(endpoint, asked, **streamed)))
    for replica in replicas:
        assert through == gather(by_client(replica.url, endpoint, question(endpoint, asked, **streamed)))
    assert through["usage"]["completion_tokens"] > 0
    assert {choice["finish"] for choice in through["choices"].values()} <= {"stop", "length"}


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_whole_bodies_equal_the_replicas(gateway, replicas, endpoint):
    """Also what a client library does not show: nulls, unknown fields, the order of members."""
    asked = {"messages": MESSAGES} if endpoint == "chat" else {"prompt": "Once upon a time"}
    status, content_type, body = ask(gateway.url, PATHS[endpoint], question(endpoint, asked))
    expected = ask(replicas[0].url, PATHS[endpoint], question(endpoint, asked))
    assert (status, content_type) == expected[:2]
    through, direct = strip(json.loads(body)), strip(json.loads(expected[2]))
    assert through == direct
    assert list(through) == list(direct), "members in another order"


@pytest.mark.parametrize("options", [None, {"include_usage": True}, {"include_usage": False}], ids=str)
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_frames_equal_the_replicas(gateway, replicas, endpoint, options):
    """A usage frame comes where it was asked for, and nowhere else; the end is `[DONE]`.

    vLLM puts `system_fingerprint` on its last frame alone. That is the usage frame, which the gateway asks for in any
    case and keeps to itself where the client did not: there the member is missing, and it is all that is."""
    asked = {"messages": MESSAGES} if endpoint == "chat" else {"prompt": "Once upon a time"}
    more = {"stream": True, "stream_options": options}
    through, direct = (
        events(ask(url, PATHS[endpoint], question(endpoint, asked, **more))[2]) for url in (gateway.url, replicas[0].url)
    )
    assert through[-1] == direct[-1] == "[DONE]"
    keys = [{key for frame in frames[:-1] for key in frame} for frames in (through, direct)]
    asked_usage = options == {"include_usage": True}
    assert keys[1] - keys[0] == (set() if asked_usage else {"system_fingerprint"})
    assert keys[0] <= keys[1]
    assert gather(through[:-1]) == gather(direct[:-1])
    with_usage = [frame for frame in through[:-1] if frame.get("usage")]
    assert len(with_usage) == (1 if asked_usage else 0)


def test_an_alias_answers_as_its_pool(gateway):
    asked = {"messages": MESSAGES}
    through = [by_client(gateway.url, "chat", {**question("chat", asked), "model": name}) for name in ("gpt-fast", "tiny")]
    assert through[0].choices == through[1].choices
    stream = by_client(gateway.url, "chat", {**question("chat", asked), "model": "gpt-fast", "stream": True})
    assert gather(stream)["choices"][0]["text"] == through[1].choices[0].message.content


def test_urls_are_configuration_enough(replicas, tmp_path):
    """`expediter serve URL URL`: the model is found by asking."""
    urls = [replica.url for replica in replicas]
    bare = Gateway(tmp_path, urls, zero_config=True)
    try:
        bare.wait_ready(*urls)
        assert [model.id for model in bare.client().models.list()] == ["tiny"]
        answer = bare.client().chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=4)
        assert answer.usage.completion_tokens == 4
    finally:
        assert bare.stop() == 0


def test_the_list_of_models_has_the_pool_and_its_alias(gateway):
    assert {"tiny", "gpt-fast"} == {model.id for model in gateway.client().models.list()}


def test_cached_tokens_reach_the_client_and_the_usage_record(gateway):
    """Two replicas: of three like prompts at least one meets its own blocks."""
    prompt = [1000 + step for step in range(200)]
    answers = [gateway.client().completions.create(model="tiny", prompt=prompt, max_tokens=1) for _ in range(3)]
    cached = [answer.usage.prompt_tokens_details.cached_tokens for answer in answers]
    assert max(cached) == 192, cached
    records = [record for record in gateway.usage() if record["input_tokens"] == 200]
    assert sorted(record["cached_tokens"] for record in records) == sorted(cached)
    assert {(record["outcome"], record["output_tokens"], record["counted"]) for record in records} == {("completed", 1, "engine")}


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_an_unknown_model_is_the_clients_not_found(gateway, endpoint):
    with pytest.raises(openai.NotFoundError) as raised:
        asked = {"messages": MESSAGES} if endpoint == "chat" else {"prompt": "x"}
        by_client(gateway.url, endpoint, {**question(endpoint, asked), "model": "no-such-model"})
    assert raised.value.code == "model_not_found"
    assert "no-such-model" in str(raised.value)


# What the engine refuses, and the gateway has no reason to read.
BAD = [
    ("temperature", {"temperature": 3}),
    ("temperature as a text", {"temperature": "hot"}),
    ("top_p", {"top_p": 2}),
    ("negative max_tokens", {"max_tokens": -1}),
    ("max_tokens too large", {"max_tokens": 100_000}),
    ("n of 0", {"n": 0}),
    ("too many logprobs", {"logprobs": 100}),
    ("prompt too long", {"prompt": [9] * 8193}),
    ("prompt too long, streamed", {"prompt": [9] * 8193, "stream": True}),
    ("token id out of range", {"prompt": [999_999_999]}),
    ("empty prompt", {"prompt": []}),
    ("bad stream_options", {"stream_options": {"include_usage": True}}),
]


@pytest.mark.parametrize("name, bad", BAD, ids=[name for name, _ in BAD])
def test_the_engines_errors_arrive_as_they_are(gateway, replicas, name, bad):
    body = {"model": "tiny", "prompt": "x", "max_tokens": 4, **bad}
    through = ask(gateway.url, PATHS["completions"], body)
    assert through == ask(replicas[0].url, PATHS["completions"], body)
    assert through[0] == 400


def test_the_engines_errors_are_the_clients_exceptions(gateway):
    with pytest.raises(openai.BadRequestError) as raised:
        gateway.client().chat.completions.create(model="tiny", messages=MESSAGES, temperature=3)
    assert "temperature" in str(raised.value)


def test_nothing_is_left_in_flight(gateway, replicas):
    assert gateway.idle()
    assert [replica.busy() for replica in replicas] == [0, 0]
