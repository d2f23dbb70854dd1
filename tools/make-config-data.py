#!/usr/bin/env python3
"""Lists the tensors of published models beside their configurations, for tests/test_arch_configs.c.

    tools/make-config-data.py tests/data/arch-configs [NAME ...]

needs torch and transformers. For each NAME.json writes NAME.tensors: "name dtype AxB" a line, %d standing for each
layer. Models are built without memory (device meta); names are then put as the published files have them."""

import json
import os
import re
import sys

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

DTYPES = {"float16": "F16", "bfloat16": "BF16", "float32": "F32"}


def internlm2(c):
    d, kv = c["hidden_size"], c["num_key_value_heads"] * c["hidden_size"] // c["num_attention_heads"]
    layer = {"attention.wqkv": (d + 2 * kv, d), "attention.wo": (d, d), "feed_forward.w1": (c["intermediate_size"], d),
             "feed_forward.w2": (d, c["intermediate_size"]), "feed_forward.w3": (c["intermediate_size"], d),
             "attention_norm": (d,), "ffn_norm": (d,)}
    out = {"model.tok_embeddings.weight": (c["vocab_size"], d), "model.norm.weight": (d,),
           "output.weight": (c["vocab_size"], d)}
    for i in range(c["num_hidden_layers"]):
        out.update({f"model.layers.{i}.{k}.weight": s for k, s in layer.items()})
    return out


def from_transformers(values):
    if (values.get("rope_scaling") or {}).get("type") == "su":  # the first name of what is longrope now
        values = dict(values, rope_scaling=dict(values["rope_scaling"], type="longrope"))
    config = CONFIG_MAPPING[values["model_type"]](**{k: v for k, v in values.items() if k != "model_type"})
    if config.model_type == "gemma3":
        text = config.text_config
        shapes = from_config(text)
        return {"language_model." + k: s for k, s in shapes.items()} | {
            "multi_modal_projector.mm_input_projection_weight": (1152, text.hidden_size),
            "vision_tower.vision_model.embeddings.patch_embedding.bias": (1152,)}
    return from_config(config)


def from_config(config):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    tied = set(model._tied_weights_keys or {}) if config.tie_word_embeddings else set()
    return {k: tuple(t.shape) for k, t in model.state_dict().items() if k not in tied}


def as_published(name, shapes):
    if name.startswith(("gpt2", "bloom")):
        shapes = {k.removeprefix("transformer."): s for k, s in shapes.items()}
    if name.startswith("gpt2"):
        layers = [k for k in shapes if k.endswith("attn.c_attn.weight")]
        shapes.update({k.replace("c_attn.weight", "bias"): (1, 1, 1024, 1024) for k in layers})
    if name.startswith(("pythia", "gpt-neox")):
        shapes["embed_out.weight"] = shapes.pop("lm_head.weight")
    if name in ("falcon-7b", "falcon-40b"):
        shapes["lm_head.weight"] = shapes["transformer.word_embeddings.weight"]
    if name in ("llama-7b", "llama-2-7b"):
        layers = [k for k in shapes if k.endswith("self_attn.q_proj.weight")]
        shapes.update({k.replace("q_proj.weight", "rotary_emb.inv_freq"): (64,) for k in layers})
    return shapes


def main():
    folder, only = sys.argv[1], sys.argv[2:]
    for file in sorted(os.listdir(folder)):
        name, ext = os.path.splitext(file)
        if ext != ".json" or (only and name not in only):
            continue
        path = os.path.join(folder, file)
        with open(path, encoding="utf-8") as f:
            config = json.load(f)
        shapes = internlm2(config) if config["model_type"] == "internlm2" else from_transformers(config)
        lines = {}
        for tensor, shape in as_published(name, shapes).items():
            pattern = re.sub(r"\.\d+\.", ".%d.", tensor, count=1)
            line = f"{pattern} {DTYPES[config.get('torch_dtype', 'float32')]} {'x'.join(map(str, shape))}"
            lines[line] = lines.get(line, 0) + 1
        with open(os.path.join(folder, name + ".tensors"), "w", encoding="utf-8") as f:
            f.write("\n".join(lines) + "\n")
        print(f"{name:20} {sum(lines.values())} tensors, {len(lines)} lines, counts {sorted(set(lines.values()))}")


if __name__ == "__main__":
    main()
