#!/usr/bin/env python3
"""Make a tiny Llama model with random weights that vLLM can load.

usage: make_model.py CONFIG_DIR TOKENIZER_DIR OUT_DIR [--seed S]

CONFIG_DIR holds config.json and generation_config.json (the folder model/ beside this script), TOKENIZER_DIR
tokenizer.json and tokenizer_config.json. Needs torch and safetensors, which the engine's own environment has.
The weights depend only on --seed, so two replicas that load the model answer alike.
"""
import argparse
import json
import pathlib
import shutil

import torch
from safetensors.torch import save_file

ap = argparse.ArgumentParser()
ap.add_argument("config_dir", type=pathlib.Path)
ap.add_argument("tokenizer_dir", type=pathlib.Path)
ap.add_argument("out_dir", type=pathlib.Path)
ap.add_argument("--seed", type=int, default=7)
a = ap.parse_args()

a.out_dir.mkdir(parents=True, exist_ok=True)
for folder, name in (
    (a.config_dir, "config.json"), (a.config_dir, "generation_config.json"),
    (a.tokenizer_dir, "tokenizer.json"), (a.tokenizer_dir, "tokenizer_config.json"),
):
    shutil.copyfile(folder / name, a.out_dir / name)
cfg = json.loads((a.out_dir / "config.json").read_text())

h, inter, vocab = cfg["hidden_size"], cfg["intermediate_size"], cfg["vocab_size"]
q_out = cfg["num_attention_heads"] * cfg["head_dim"]
kv_out = cfg["num_key_value_heads"] * cfg["head_dim"]
gen = torch.Generator().manual_seed(a.seed)


def rnd(*shape, scale):
    return (torch.randn(*shape, generator=gen) * scale).to(torch.bfloat16)


w = {
    "model.embed_tokens.weight": rnd(vocab, h, scale=1.0),
    "lm_head.weight": rnd(vocab, h, scale=0.25),
    "model.norm.weight": torch.ones(h, dtype=torch.bfloat16),
}
shapes = {
    "self_attn.q_proj": (q_out, h), "self_attn.k_proj": (kv_out, h),
    "self_attn.v_proj": (kv_out, h), "self_attn.o_proj": (h, q_out),
    "mlp.gate_proj": (inter, h), "mlp.up_proj": (inter, h), "mlp.down_proj": (h, inter),
}
for layer in range(cfg["num_hidden_layers"]):
    p = f"model.layers.{layer}."
    for name, shape in shapes.items():
        w[p + name + ".weight"] = rnd(*shape, scale=1.5 / shape[1] ** 0.5)
    for norm in ("input_layernorm", "post_attention_layernorm"):
        w[p + norm + ".weight"] = torch.ones(h, dtype=torch.bfloat16)
# Last, and by renaming: where this file is, the model is whole.
save_file(w, str(a.out_dir / "model.part"), metadata={"format": "pt"})
(a.out_dir / "model.part").rename(a.out_dir / "model.safetensors")

print("wrote", a.out_dir)
