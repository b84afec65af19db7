"""Plays the golden schedules on vLLM's own scheduler and compares them line by line.

Run it in the Python environment of vLLM 0.32.0, with any small model's folder (only its configuration is read):

    python against_vllm.py MODEL_FOLDER *.txt

Nothing is computed: the scheduler of vLLM plans steps, and is told the tokens that the scripts lay down. A stored
event of vLLM does not say which request it is of, and times are not the scheduler's, so neither is compared. Queue
limits live in vLLM's API server and sleep in its engine core: those files are skipped.
"""

import difflib
import os
import re
import sys

os.environ["VLLM_LOGGING_LEVEL"] = "CRITICAL"

import torch
from vllm.config import CacheConfig, LoRAConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash, maybe_convert_block_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

DEFAULTS = {
    "blocks": 27852,
    "block_size": 4,
    "max_num_seqs": 256,
    "budget": 2048,
    "long_prefill_token_threshold": 0,
    "scheduling": "fcfs",
    "reserve_full_sequence": True,
    "enable_prefix_caching": True,
    "max_loras": None,
    "max_cpu_loras": None,
}
ELSEWHERE = ("max_num_queued", "sleep")
# Texts of which nothing is known get letters of their own, far from the scripts'.
UNKNOWN = 1000


def value_of(text):
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.isdigit() else text


def token(text, place):
    """`A8B` is text A up to token 8, and B from there."""
    cut = re.fullmatch(r"(.)(\d+)(.)", text)
    letter = cut[3] if cut and place >= int(cut[2]) else text[0]
    return ord(letter) * 1000 + place


class Play:
    def __init__(self, model, script):
        self.settings, self.before, self.within = dict(DEFAULTS), {}, {}
        for line in script.splitlines():
            self.read(line)
        self.config = self.vllm_config(model)
        size = self.settings["block_size"]
        spec = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype=torch.float32)
        groups = [KVCacheGroupSpec(["layer"], spec)]
        blocks = self.settings["blocks"] + 1
        self.cache = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups)
        self.hasher = get_request_block_hasher(size, sha256)
        self.names, self.texts, self.arrived, self.lines = {}, {}, 0, []
        self.start()

    def read(self, line):
        if not line or line.startswith("#"):
            return
        if line.startswith("settings: "):
            for setting in line.removeprefix("settings: ").split(", "):
                name, value = setting.split(" ")
                self.settings[name] = value_of(value)
            return
        timed = re.fullmatch(r"(before|in) step (\d+): (.*)", line)
        acts = self.within if timed and timed[1] == "in" else self.before
        acts.setdefault(int(timed[2]) if timed else 1, []).append(timed[3] if timed else line)

    def vllm_config(self, model):
        settings = self.settings
        lora = settings["max_loras"] and LoRAConfig(
            max_loras=settings["max_loras"], max_cpu_loras=settings["max_cpu_loras"], max_lora_rank=8
        )
        config = VllmConfig(
            model_config=ModelConfig(model=model, max_model_len=8192, dtype="float32", seed=0),
            scheduler_config=SchedulerConfig(
                max_num_seqs=settings["max_num_seqs"],
                max_num_batched_tokens=max(settings["budget"], settings["max_num_seqs"]),
                max_model_len=8192,
                long_prefill_token_threshold=settings["long_prefill_token_threshold"],
                is_encoder_decoder=False,
                policy=settings["scheduling"],
                scheduler_reserve_full_isl=settings["reserve_full_sequence"],
                async_scheduling=False,
            ),
            cache_config=CacheConfig(block_size=32, enable_prefix_caching=settings["enable_prefix_caching"]),
            lora_config=lora or None,
        )
        # Past the checks for what a real device can do.
        config.cache_config.block_size = settings["block_size"]
        config.cache_config.num_gpu_blocks = settings["blocks"] + 1
        config.scheduler_config.max_num_batched_tokens = settings["budget"]
        config.scheduler_config.max_num_scheduled_tokens = settings["budget"]
        return config

    def start(self):
        size = self.settings["block_size"]
        structured = StructuredOutputManager(self.config)
        self.scheduler = Scheduler(
            self.config, self.cache, structured, block_size=size, hash_block_size=size, log_stats=True
        )
        self.pool = self.scheduler.kv_cache_manager.block_pool
        self.pool.enable_kv_cache_events = True

    def act(self, act):
        verb, _, rest = act.partition(" ")
        if verb == "abort":
            self.scheduler.finish_requests(rest, RequestStatus.FINISHED_ABORTED)
        elif verb == "restart":
            self.start()
        elif verb == "reset_prefix_cache":
            done = "done" if self.scheduler.reset_prefix_cache() else "not done"
            self.lines.append(f"  reset_prefix_cache: {done}")
        else:
            self.arrive(verb, dict(field.split(" ") for field in rest.split(", ")))

    def arrive(self, name, fields):
        self.arrived += 1
        text = fields["text"] if fields["text"] != "?" else chr(UNKNOWN + self.arrived)
        prompt, output = int(fields["prompt"]), int(fields.get("output", 1))
        adapter, salt = fields.get("adapter"), fields.get("salt")
        params = SamplingParams(max_tokens=output, ignore_eos=True)
        params.update_from_generation_config({}, None)

        def request(length):
            return Request(
                request_id=name,
                prompt_token_ids=[token(text, place) for place in range(length)],
                sampling_params=params,
                pooling_params=None,
                arrival_time=float(self.arrived),
                priority=int(fields.get("priority", 0)),
                cache_salt=salt,
                lora_request=LoRARequest(adapter, int(adapter), "path" + adapter) if adapter else None,
                block_hasher=self.hasher,
            )

        for place, block_hash in enumerate(request(prompt + output).block_hashes):
            block = f"{name}#{place}" if fields["text"] == "?" else f"{text}{place}"
            block += (f"@{adapter}" if adapter else "") + (f"${salt}" if salt else "")
            self.names.setdefault(maybe_convert_block_hash(block_hash), block)
        self.texts[name] = text
        self.scheduler.add_request(request(prompt))

    def memory(self):
        free = self.pool.get_num_free_blocks()
        in_use = self.settings["blocks"] - free
        cached = sum(
            block.ref_cnt == 0 and block.block_hash is not None and not block.is_null
            for block in self.pool.blocks
        )
        return f"free {free}, in use {in_use}, resident {in_use + cached}"

    def waiting(self):
        names = " ".join(request.request_id for request in self.scheduler.waiting) or "-"
        deferred = len(self.scheduler.deferred_waiting)
        return names + (f" ({deferred} deferred)" if deferred else "")

    def event(self, event):
        if isinstance(event, AllBlocksCleared):
            return "cleared"
        names = [self.names[block_hash] for block_hash in event.block_hashes]
        if isinstance(event, BlockRemoved):
            return f"removed {names[0]}"
        text = f"{names[0]} to {names[-1]}" if len(names) > 12 else " ".join(names)
        parent, adapter = event.parent_block_hash, event.lora_name
        after = f" after {self.names[parent]}" if parent is not None else ""
        return f"stored {text}{after}" + (f" by adapter {adapter}" if adapter else "")

    def plan(self, tokens):
        batch, without = [], []
        for request in self.scheduler.running:
            name, new = request.request_id, tokens.get(request.request_id, 0)
            if not new:
                without.append(name)
            elif request.num_output_tokens > 0 and new == 1:
                batch.append(f"{name} decode")
            else:
                batch.append(f"{name} prefill {request.num_computed_tokens - new}+{new}/{request.num_tokens}")
        line = f"{', '.join(batch)} | waiting {self.waiting()} | {self.memory()}"
        return line + (f" | without tokens {' '.join(without)}" if without else "")

    def finish(self, output):
        """Tells the scheduler what the step produced, and returns who ended, in order of the batch."""
        names, sampled = list(output.num_scheduled_tokens), []
        for name in names:
            request = self.scheduler.requests.get(name)
            done = request is not None and request.num_computed_tokens >= request.num_tokens
            sampled.append([token(self.texts[name], request.num_tokens)] if done else [])
        batch = [request.request_id for request in self.scheduler.running]
        indices = {name: index for index, name in enumerate(names)}
        result = ModelRunnerOutput(req_ids=names, req_id_to_index=indices, sampled_token_ids=sampled)
        self.scheduler.update_from_output(output, result)
        return [name for name in batch if name not in self.scheduler.requests]

    def step(self, number):
        """One step; false where there is nothing to compute."""
        output = None
        while self.scheduler.running or self.scheduler.waiting:
            output = self.scheduler.schedule()
            if output.total_num_scheduled_tokens or not self.scheduler.waiting:
                break
        if output is None or not output.total_num_scheduled_tokens:
            return False
        line = f"step {number}: {self.plan(output.num_scheduled_tokens)}"
        events = self.pool.take_events()
        for act in self.within.pop(number, []):
            self.act(act)
        ended = "".join(f" | {name} ends" for name in self.finish(output))
        self.lines.append(line + ended)
        self.lines.extend(f"    {self.event(event)}" for event in events)
        return True

    def run(self):
        for number in range(1, 200):
            for act in self.before.pop(number, []):
                self.act(act)
            if self.step(number):
                continue
            if not self.before:
                break
            self.lines.append(f"step {number}: idle | waiting {self.waiting()} | {self.memory()}")
        return self.lines + [f"end: {self.memory()}"]


def main(model, files):
    init_none_hash(sha256)
    different = 0
    for file in files:
        with open(file) as opened:
            script, expected = opened.read().split("----\n")
        name = os.path.basename(file)
        if any(word in script for word in ELSEWHERE):
            print(f"skipped  {name}")
            continue
        expected = re.sub(r" of r\d+ from \d+| \| \d+ ms", "", expected).splitlines()
        actual = Play(model, script).run()
        print(f"{'same    ' if actual == expected else 'DIFFERS '} {name}")
        if actual != expected:
            different += 1
            print("\n".join(difflib.unified_diff(expected, actual, "golden", "vLLM", lineterm="", n=1)))
    return different


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]) != 0)
