"""What two answers must have in common: all but ids and times."""

import copy

# Differ between any two answers of one engine. `created_cache_tokens` and `cached_tokens` depend on what the replica
# answered before, so requests that are compared carry a salt that nothing shares.
VOLATILE = {"id", "created", "system_fingerprint"}


def plain(answer):
    """An answer (a dict, or a model of the client library) without what differs from one answer to the next."""
    if hasattr(answer, "model_dump"):
        answer = answer.model_dump()
    return strip(copy.deepcopy(answer))


def strip(value):
    if isinstance(value, dict):
        return {key: strip(inner) for key, inner in value.items() if key not in VOLATILE}
    if isinstance(value, (list, tuple)):
        return [strip(inner) for inner in value]
    return value


def gather(chunks):
    """A stream as one value: by choice its text, tool calls, log probabilities and finish reason; and the usage.

    How many tokens share a chunk is a matter of time, so chunks themselves are not compared."""
    choices, usage, roles = {}, None, set()
    for chunk in chunks:
        chunk = chunk if isinstance(chunk, dict) else chunk.model_dump()
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            whole = choices.setdefault(choice["index"], {"text": "", "tools": "", "logprobs": [], "finish": None})
            delta = choice.get("delta") or {}
            if delta.get("role"):
                roles.add(delta["role"])
            whole["text"] += choice.get("text") or delta.get("content") or ""
            for call in delta.get("tool_calls") or []:
                function = call["function"]
                whole["tools"] += (function.get("name") or "") + (function.get("arguments") or "")
            logprobs = choice.get("logprobs") or {}
            whole["logprobs"] += logprobs.get("content") or logprobs.get("token_logprobs") or []
            whole["finish"] = choice.get("finish_reason") or whole["finish"]
    return {"choices": choices, "usage": usage, "roles": roles}
