#!/usr/bin/env python3
"""Makes a fixture: a tiny checkpoint with random weights, and the results that HF transformers computes with it.

    tools/make-fixture.py OUT --arch llama --set num_key_value_heads=1 --set rope_parameters.rope_type=linear ...
    tools/make-fixture.py OUT --config config.json
    tools/make-fixture.py OUTDIR --list tests/data/arch-extra/fixtures.list [--only NAME ...]

needs torch, transformers and safetensors. OUT gets config.json, the weights in safetensors and expected.safetensors:
    input_ids  I32 [48]
    logits     F32 [48, n_vocab]  one pass over all of them in float32, positions 0..47, no BOS added
    greedy     I32 [16]           what greedy decoding with a cache appends to the first 16, end of text ignored

Every weight is random, norms and biases too, so that a wrong or forgotten one is noticed. Seeds are tried until no
greedy token is near a tie, and not all are the same. A list holds one fixture a line, "NAME options", '#' comments.

Some options make checkpoints of older styles: --old-keys writes config.json in the style before
transformers 5, --drop leaves keys out, --rename changes tensors' names, --buffer adds tensors that old files
carry and nobody reads. `internlm2` is not in transformers: its checkpoint is written from a Llama of the same
shape, whose mathematics it shares, with InternLM2's names and grouped wqkv."""

import argparse
import json
import os
import re
import shlex
import shutil
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import logging as hf_logging

N_TOKEN, N_PROMPT, N_GREEDY = 48, 16, 16

# Small shapes; n_vocab is no multiple of 64 so that padding shows.
COMMON = dict(vocab_size=104, hidden_size=32, intermediate_size=72, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=0)
GPT2_LIKE = dict(vocab_size=104, n_embd=32, n_layer=2, n_head=4, n_positions=128, bos_token_id=1, eos_token_id=2)
SMALL = {
    "bloom": dict(vocab_size=104, hidden_size=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2),
    "mpt": dict(vocab_size=104, d_model=32, n_heads=4, n_layers=2, max_seq_len=128),
    "gpt2": GPT2_LIKE,
    "gptj": dict(GPT2_LIKE, rotary_dim=4),
    "opt": dict(vocab_size=104, hidden_size=32, ffn_dim=72, num_hidden_layers=2, num_attention_heads=4,
                max_position_embeddings=128, word_embed_proj_dim=32),
    "falcon": dict(vocab_size=104, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                   bos_token_id=1, eos_token_id=2),
}
NO_HEAD_DIM = set(SMALL) | {"phi", "phi3", "gpt_neox", "stablelm", "qwen2", "starcoder2", "olmo", "olmo2",
                            "granite", "cohere", "cohere2", "smollm3", "internlm2", "llama", "olmo3",
                            "deepseek_v2", "deepseek_v3", "glm4_moe_lite"}


def parse_value(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


def assign(tree, dotted, value):
    keys = dotted.split(".")
    for k in keys[:-1]:
        if not isinstance(tree.get(k), dict):
            tree[k] = {}
        tree = tree[k]
    tree[keys[-1]] = value


def make_config(args):
    """The configuration and the model_type that is written (internlm2 computes as llama)."""
    if args.config:
        with open(args.config, encoding="utf-8") as f:
            values = json.load(f)
        name = args.arch or values["model_type"]
    else:
        name = args.arch
        values = dict(SMALL.get(name, COMMON))
        if name not in NO_HEAD_DIM:
            values["head_dim"] = 8
    for item in args.set or []:
        key, _, value = item.partition("=")
        assign(values, key, parse_value(value))
    values.pop("model_type", None)
    hf_name = "llama" if name == "internlm2" else {"gemma3": "gemma3_text"}.get(name, name)
    if name == "internlm2":
        values["attention_bias"] = values.pop("bias", False)
    return CONFIG_MAPPING[hf_name](**values), name


def randomize(model, generator):
    """Everything random: matrices so that sums keep their size, norms around what they start from."""

    def normal(p, mean, std):
        p.copy_(mean + std * torch.randn(p.shape, generator=generator))

    with torch.no_grad():
        for name, p in model.named_parameters():
            leaf = name.rsplit(".", 1)[-1]
            owner = model.get_submodule(name.rsplit(".", 1)[0])
            if isinstance(owner, torch.nn.Embedding):
                # small where it is the head too, or every token would predict itself
                normal(p, 0.0, 0.2 if model.config.tie_word_embeddings else 0.5)
            elif leaf == "bias":
                normal(p, 0.0, 0.1)
            elif "norm" in type(owner).__name__.lower():
                normal(p, float(p.flatten()[0]), 0.2)  # ones, or zeros where the family adds one itself
            else:
                fan_in = p.shape[0] if type(owner).__name__ == "Conv1D" else p.shape[-1]
                head = name.startswith(("lm_head", "embed_out"))
                normal(p, 0.0, (0.96 if head else 1.3) / fan_in**0.5)


def load(folder):
    # Only "eager" has soft caps; Falcon's adds the ALiBi bias twice.
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        kind = "sdpa" if json.load(f)["model_type"] == "falcon" else "eager"
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=kind).eval()


def longrope_switch(config):
    rope = getattr(config, "rope_parameters", None) or {}
    return rope["original_max_position_embeddings"] if rope.get("rope_type") == "longrope" else -1


@torch.no_grad()
def compute(folder, ids):
    """Logits of one pass, greedy tokens with a cache, and how clear the closest greedy choice was."""
    logits = load(folder)(ids[None], use_cache=False).logits[0].float()
    model = load(folder)  # a new model: dynamic rope remembers the longest length that it saw
    step, cache, greedy, margin = ids[None, :N_PROMPT], None, [], 1e9
    switch = longrope_switch(model.config)
    for i in range(N_GREEDY):
        if N_PROMPT + i == switch + 1:  # as in Phi-3's generate(): everything is computed again with the long factors
            step, cache = torch.cat((ids[:N_PROMPT], torch.tensor(greedy)))[None], None
        mask = torch.ones((1, N_PROMPT + i), dtype=torch.long)
        out = model(step, past_key_values=cache, attention_mask=mask, use_cache=True)
        cache = out.past_key_values
        top = out.logits[0, -1].float().topk(2)
        margin = min(margin, float(top.values[0] - top.values[1]) / float(logits.std()))
        greedy.append(int(top.indices[0]))
        step = top.indices[None, :1]
    return logits, greedy, margin


OLD_DROP = {"layer_types": {"gemma2", "gemma3", "qwen2", "qwen3", "smollm3", "cohere2"}, "no_rope_layers": {"smollm3"}}


def old_keys(config, name):
    """config.json in the form of transformers 4 and earlier."""
    rope = config.pop("rope_parameters", None) or {}
    if "dtype" in config:
        config["torch_dtype"] = config.pop("dtype")
    local = None
    if "full_attention" in rope:
        rope, local = rope["full_attention"], rope["sliding_attention"]
    if "rope_theta" in rope:
        config["rotary_emb_base" if name == "gpt_neox" else "rope_theta"] = rope["rope_theta"]
    if local:
        config["rope_local_base_freq"] = local["rope_theta"]
    if "partial_rotary_factor" in rope:
        config["rotary_pct" if name == "gpt_neox" else "partial_rotary_factor"] = rope["partial_rotary_factor"]
    kind = rope.get("rope_type", "default")
    if kind != "default":
        scaling = {k: v for k, v in rope.items() if k not in ("rope_theta", "rope_type", "partial_rotary_factor")}
        scaling["rope_type" if kind == "llama3" or name == "gemma3" else "type"] = kind
        if name == "phi3":
            scaling.pop("original_max_position_embeddings", None)
        config["rope_scaling"] = scaling
    else:
        config["rope_scaling"] = None
    if name in ("opt", "bloom", "mpt", "gpt2", "gptj"):
        for key in ("rope_theta", "rope_scaling"):
            config.pop(key, None)
    for key, families in OLD_DROP.items():
        if name in families:
            config.pop(key, None)
    if name == "gemma3" and "_sliding_window_pattern" in config:
        config["sliding_window_pattern"] = config.pop("_sliding_window_pattern")
    config["transformers_version"] = "4.40.0"


def edit_config(folder, args, name):
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as f:
        config = json.load(f)
    if name == "internlm2":
        config.update(model_type="internlm2", architectures=["InternLM2ForCausalLM"],
                      bias=config.pop("attention_bias"))
        config.pop("mlp_bias", None)
        config.pop("head_dim", None)
    if args.old_keys:
        old_keys(config, name)
    for key in args.drop or []:
        config.pop(key, None)
    with open(path, "w", encoding="utf-8") as f:
        json.dump(config, f, indent=1, sort_keys=True)
        f.write("\n")
    return config


INTERN_NAMES = [("model.embed_tokens.", "model.tok_embeddings."), ("lm_head.", "output."), (".self_attn.", ".attention."),
                (".o_proj.", ".wo."), (".mlp.gate_proj.", ".feed_forward.w1."), (".mlp.up_proj.", ".feed_forward.w3."),
                (".mlp.down_proj.", ".feed_forward.w2."), (".input_layernorm.", ".attention_norm."),
                (".post_attention_layernorm.", ".ffn_norm.")]


def internlm2_tensors(tensors, config):
    """wqkv: for each key/value head its query heads, then the key head, then the value head."""
    n_kv = config.num_key_value_heads
    out = {}
    for name, t in tensors.items():
        m = re.fullmatch(r"(.*)\.self_attn\.q_proj\.(weight|bias)", name)
        if m:
            parts = [tensors[f"{m[1]}.self_attn.{p}_proj.{m[2]}"] for p in "qkv"]
            parts = [p.reshape(n_kv, -1, *p.shape[1:]) for p in parts]
            out[f"{m[1]}.attention.wqkv.{m[2]}"] = torch.cat(parts, 1).flatten(0, 1).contiguous()
        elif not re.search(r"\.(k|v)_proj\.", name):
            for old, new in INTERN_NAMES:
                name = name.replace(old, new)
            out[name] = t
    return out


def weight_files(folder):
    return sorted(f for f in os.listdir(folder) if f.startswith("model") and f.endswith(".safetensors"))


def edit_tensors(folder, args, name, config):
    if not (args.rename or args.buffer or name == "internlm2"):
        return
    (file,) = weight_files(folder)
    tensors = load_file(os.path.join(folder, file))
    if name == "internlm2":
        tensors = internlm2_tensors(tensors, config)
    for rule in args.rename or []:
        old, _, new = rule.partition("=")
        tensors = {re.sub(old, new, k): t for k, t in tensors.items()}
    for item in args.buffer or []:
        key, dtype, shape = item.split(":")
        tensors[key] = torch.ones([int(n) for n in shape.split("x")]).to(getattr(torch, dtype))
    save_file(tensors, os.path.join(folder, file), metadata={"format": "pt"})


def attempt(folder, args, seed):
    config, name = make_config(args)
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    randomize(model, generator)
    model = model.to(getattr(torch, args.dtype))
    if os.path.isdir(folder):
        shutil.rmtree(folder)
    model.save_pretrained(folder, max_shard_size=args.shard_size)
    junk = os.path.join(folder, "generation_config.json")
    if os.path.exists(junk):
        os.remove(junk)
    ids = torch.randint(0, config.vocab_size, (N_TOKEN,), generator=generator)
    logits, greedy, margin = compute(folder, ids)
    edit_config(folder, args, name)
    edit_tensors(folder, args, name, config)
    if name != "internlm2" and not args.no_check:
        again, greedy2, _ = compute(folder, ids)
        if not torch.equal(again, logits) or greedy2 != greedy:
            raise SystemExit(f"{folder}: transformers reads the edited files otherwise than those it wrote")
    save_file({"input_ids": ids.to(torch.int32), "logits": logits.contiguous(),
               "greedy": torch.tensor(greedy, dtype=torch.int32)}, os.path.join(folder, "expected.safetensors"))
    return logits, greedy, margin


def make(folder, args):
    best_seed, best = args.seed, (-1, 0.0)
    for seed in range(args.seed, args.seed + 30):
        logits, greedy, margin = attempt(folder, args, seed)
        if not torch.isfinite(logits).all():
            raise SystemExit(f"{folder}: logits are not finite")
        score = (min(len(set(greedy)), 4) if margin > 0.02 else 0, margin)
        if score > best:
            best_seed, best = seed, score
        if best[0] >= 4:
            break
    else:
        seed = best_seed
        logits, greedy, margin = attempt(folder, args, seed)
    size = sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder))
    print(f"{os.path.basename(folder):32} seed {seed:3} std {float(logits.std()):8.3f} margin {margin:.3f} "
          f"{len(set(greedy)):2} distinct {size / 1024:7.1f} KiB", flush=True)


def parser():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out")
    p.add_argument("--arch", help="model_type")
    p.add_argument("--config", help="a config.json to start from, in place of the small shape of --arch")
    p.add_argument("--set", action="append", metavar="KEY=VALUE", help="dots go into objects; values are JSON")
    p.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--shard-size", default="1GB", help="several files when smaller than the checkpoint: 30KB")
    p.add_argument("--old-keys", action="store_true")
    p.add_argument("--drop", action="append", metavar="KEY")
    p.add_argument("--rename", action="append", metavar="REGEX=TEXT")
    p.add_argument("--buffer", action="append", metavar="NAME:DTYPE:AxBxC")
    p.add_argument("--no-check", action="store_true", help="do not load the edited files with transformers again")
    p.add_argument("--list", help="make every fixture of this list in the folder OUT")
    p.add_argument("--only", nargs="*")
    return p


def main():
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    args = parser().parse_args()
    if not args.list:
        make(args.out, args)
        return
    with open(args.list, encoding="utf-8") as f:
        lines = [line for line in f if line.strip() and not line.startswith("#")]
    for line in lines:
        words = shlex.split(line)
        if args.only and words[0] not in args.only:
            continue
        folder = os.path.join(args.out, words[0])
        make(folder, parser().parse_args([folder] + words[1:]))


if __name__ == "__main__":
    sys.exit(main())
