#!/usr/bin/env python3
"""Writes a checkpoint folder (see make-fixture.py) as a GGUF file, the way llama.cpp's converters do.

    tools/make-gguf.py FOLDER OUT.gguf [--type F32|F16|BF16|Q8_0|Q4_0|Q4_1|Q5_0|Q5_1]
    tools/make-gguf.py FOLDER OUT.gguf --compare      loads it with llama_cpp and compares logits
    tools/make-gguf.py ROOT OUTDIR --list FILE        lines "NAME TYPE FOLDER": OUTDIR/NAME.gguf of ROOT/FOLDER

needs numpy, torch, safetensors and gguf (names of tensors and keys are taken from it). The vocabulary written is
a dummy one. What a GGUF file cannot express (a family that llama.cpp has no architecture for, dynamic rope, Qwen2's
window on some layers) is refused with a reason.

Conventions that differ from the checkpoint:
  - Llama-like families whose rotary pairs stand side by side in GGUF: rows of q and k are permuted.
  - Gemma's norm weights have the 1 added; Conv1D is transposed; fused qkv becomes q, k, v one under the other.
  - Llama 3's and longrope's frequency factors are tensors."""

import argparse
import json
import math
import os
import re
import sys

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

ARCH = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma": "gemma", "gemma2": "gemma2",
        "gemma3_text": "gemma3", "phi": "phi2", "phi3": "phi3", "gpt2": "gpt2", "gptj": "gptj", "gpt_neox": "gptneox",
        "falcon": "falcon", "bloom": "bloom", "mpt": "mpt", "stablelm": "stablelm", "starcoder2": "starcoder2",
        "olmo": "olmo", "olmo2": "olmo2", "granite": "granite", "cohere": "command-r", "cohere2": "cohere2",
        "smollm3": "smollm3", "glm": "chatglm", "glm4": "glm4", "internlm2": "internlm2"}
NEEDS_HEAD = {"olmo2", "stablelm", "gptneox"}  # llama.cpp does not take the embedding instead
PERMUTED = {"llama", "mistral", "olmo", "granite", "smollm3", "internlm2"}
RMS = {"llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3", "olmo2", "granite", "smollm3",
       "glm", "glm4", "internlm2"}


class Model:
    def __init__(self, folder):
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
            self.config = json.load(f)
        self.folder = folder
        self.kind = self.config["model_type"]
        if self.kind not in ARCH:
            raise SystemExit(f"{folder}: llama.cpp has no architecture for {self.kind}")
        self.arch = ARCH[self.kind]
        self.tensors = {}
        for name in sorted(os.listdir(folder)):
            if name.startswith("model") and name.endswith(".safetensors"):
                self.tensors.update(load_file(os.path.join(folder, name)))
        self.n_layer = self.get("num_hidden_layers", "n_layer", "n_layers")
        self.d_model = self.get("hidden_size", "n_embd", "d_model")
        self.n_head = self.get("num_attention_heads", "n_head", "n_heads")
        self.n_kv = self.get("num_key_value_heads", default=self.n_head)
        if self.kind == "falcon":
            if self.config.get("new_decoder_architecture"):
                self.n_kv = self.config.get("num_kv_heads") or self.n_head
            else:
                self.n_kv = 1 if self.config.get("multi_query", True) else self.n_head
        elif self.kind in ("gpt_neox", "bloom"):
            self.n_kv = self.n_head
        self.d_head = self.get("head_dim", default=self.d_model // self.n_head)
        self.n_vocab = self.config["vocab_size"]
        rope = dict(self.config.get("rope_parameters") or {})
        self.rope_local = rope.get("sliding_attention")
        rope = dict(rope.get("full_attention", rope))
        scaling = self.config.get("rope_scaling") or {}
        rope.update({k: v for k, v in scaling.items() if k != "type"})
        rope.setdefault("rope_type", scaling.get("type", "default"))
        for key, names in {"rope_theta": ("rope_theta", "rotary_emb_base"),
                           "partial_rotary_factor": ("partial_rotary_factor", "rotary_pct")}.items():
            if key not in rope and self.get(*names) is not None:
                rope[key] = self.get(*names)
        self.rope = rope

    def get(self, *names, default=None):
        for n in names:
            if self.config.get(n) is not None:
                return self.config[n]
        return default


def permute(w, n_head):
    """Rows (i, i + d/2) of each head become neighbours."""
    return w.reshape(n_head, 2, w.shape[0] // n_head // 2, *w.shape[1:]).transpose(1, 2).reshape(w.shape)


def split_grouped(w, n_kv, per_kv):
    """[n_kv, per_kv query heads + key + value, d, ...] -> q, k, v."""
    g = w.reshape(n_kv, per_kv + 2, -1, *w.shape[1:])
    q, k, v = g[:, :per_kv], g[:, per_kv], g[:, per_kv + 1]
    return q.reshape(-1, *w.shape[1:]), k.reshape(-1, *w.shape[1:]), v.reshape(-1, *w.shape[1:])


def rewrite(m):
    """Checkpoint tensors in llama.cpp's order, with names that gguf's map knows."""
    out = {}
    per_head = {}
    for name, t in m.tensors.items():
        t = t.float()
        if re.search(r"(rotary_emb\.inv_freq|\.attn\.(masked_)?bias|\.attention\.bias)$", name):
            continue
        if m.kind.startswith("gemma") and "norm" in name:
            t = t + 1
        if m.kind == "gpt2" and re.search(r"(c_attn|c_proj|c_fc)\.weight$", name):
            t = t.T
        if m.kind in PERMUTED and re.search(r"\.[qk]_proj\.", name):
            t = permute(t, m.n_head if ".q_proj." in name else m.n_kv)
        found = re.match(r"(.*\.(?:self_attn)\.[qk]_layernorm)\.norms\.(\d+)\.weight", name)
        if found:
            per_head.setdefault(found[1] + ".weight", {})[int(found[2])] = t
            continue
        if m.kind == "internlm2" and ".wqkv." in name:
            q, k, v = split_grouped(t, m.n_kv, m.n_head // m.n_kv)
            for part, value in zip(("wq", "wk", "wv"), (permute(q, m.n_head), permute(k, m.n_kv), v)):
                out[name.replace("wqkv", part)] = value
            continue
        if m.kind in ("falcon", "gpt_neox", "bloom") and "query_key_value" in name:
            t = torch.cat(split_grouped(t, m.n_kv, m.n_head // m.n_kv))
        if name == "lm_head.weight" and m.config.get("tie_word_embeddings"):
            continue
        if m.kind == "bloom":
            name = name.removeprefix("transformer.")
        out[name] = t
    if m.arch in NEEDS_HEAD and not any(n in out for n in ("lm_head.weight", "embed_out.weight")):
        out["lm_head.weight"] = next(t for n, t in out.items() if re.search(r"embed_(tokens|in)\.weight$", n))
    for name, parts in per_head.items():
        out[name] = torch.stack([parts[i] for i in range(len(parts))])
    return out


def rope_factors(m):
    """Tensors of the divisors of the inverse frequencies."""
    r = m.rope
    if r["rope_type"] == "longrope":
        return {"rope_factors_long.weight": r["long_factor"], "rope_factors_short.weight": r["short_factor"]}
    if r["rope_type"] != "llama3":
        return {}
    factors = []
    old = r["original_max_position_embeddings"]
    for i in range(0, m.d_head, 2):
        wave = 2 * math.pi * r["rope_theta"] ** (i / m.d_head)
        smooth = (old / wave - r["low_freq_factor"]) / (r["high_freq_factor"] - r["low_freq_factor"])
        smooth = min(max(smooth, 0.0), 1.0)
        factors.append(1 / ((1 - smooth) / r["factor"] + smooth))
    return {"rope_freqs.weight": factors}


def metadata(m, w):
    c, a = m.config, m.arch
    w.add_name("tiny")  # llama.cpp has rules for vocabularies of models with certain names
    w.add_vocab_size(m.n_vocab)
    n_ctx = m.get("max_position_embeddings", "n_positions", "max_seq_len", default=2048)
    w.add_context_length(n_ctx)
    w.add_embedding_length(m.d_model)
    w.add_block_count(m.n_layer)
    ff = m.get("intermediate_size", "n_inner", "ffn_hidden_size", default=4 * m.d_model)
    if m.kind == "mpt":
        ff = c.get("expansion_ratio", 4) * m.d_model
    w.add_feed_forward_length(ff)
    w.add_head_count(m.n_head)
    w.add_head_count_kv(m.n_kv)
    eps = m.get("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", default=1e-6 if m.kind in ("llama", "mistral") else 1e-5)
    (w.add_layer_norm_rms_eps if m.kind in RMS else w.add_layer_norm_eps)(eps)
    if m.get("head_dim") is not None:
        w.add_key_length(m.d_head)
        w.add_value_length(m.d_head)
    if m.kind not in ("gpt2", "bloom", "mpt") and not c.get("alibi"):
        n_rot = int(m.d_head * m.rope.get("partial_rotary_factor", PARTIAL.get(m.kind, 1.0)))
        w.add_rope_dimension_count(c.get("rotary_dim", n_rot))
        w.add_rope_freq_base(float(m.rope.get("rope_theta", THETA.get(m.kind, 10000.0))))
    rope_scaling(m, w)
    if m.kind in ("gpt_neox", "stablelm"):
        w.add_parallel_residual(bool(c.get("use_parallel_residual", m.kind == "gpt_neox")))
    window = c.get("sliding_window")
    if window and m.kind in ("mistral", "starcoder2", "qwen2", "qwen3", "smollm3"):
        raise SystemExit(f"{m.folder}: GGUF's {a} has no sliding window")
    if window:
        w.add_sliding_window(window)
    extras(m, w)


PARTIAL = {"phi": 0.5, "stablelm": 0.25, "gpt_neox": 0.25, "glm": 0.5, "glm4": 0.5}
THETA = {"cohere": 500000.0, "smollm3": 2000000.0}


def rope_scaling(m, w):
    kind = m.rope["rope_type"]
    if kind in ("linear", "yarn"):
        w.add_rope_scaling_type(gguf.RopeScalingType(kind))
        w.add_rope_scaling_factor(m.rope["factor"])
    if kind == "yarn":
        if m.rope.get("mscale"):
            raise SystemExit(f"{m.folder}: GGUF has no mscale for {m.arch}")
        w.add_rope_scaling_orig_ctx_len(m.rope["original_max_position_embeddings"])
        for key, add in (("beta_fast", w.add_rope_scaling_yarn_beta_fast), ("beta_slow", w.add_rope_scaling_yarn_beta_slow)):
            if key in m.rope:
                add(m.rope[key])
    if kind == "longrope":
        old = m.get("original_max_position_embeddings") or m.rope["original_max_position_embeddings"]
        scale = m.get("max_position_embeddings") / old
        w.add_rope_scaling_orig_ctx_len(old)
        w.add_rope_scaling_attn_factors(1.0 if scale <= 1 else math.sqrt(1 + math.log(scale) / math.log(old)))
    if kind == "dynamic":
        raise SystemExit(f"{m.folder}: GGUF has no dynamic rope scaling")


def extras(m, w):
    """Keys of one family."""
    c = m.config
    if m.kind == "falcon" and (c.get("alibi") or c.get("bias")):
        raise SystemExit(f"{m.folder}: GGUF's falcon has neither ALiBi nor biases")
    if m.kind == "mpt":
        attn = c.get("attn_config") or {}
        if attn.get("softmax_scale"):
            raise SystemExit(f"{m.folder}: GGUF's mpt has no softmax_scale")
        w.add_max_alibi_bias(float(attn.get("alibi_bias_max", 8)))
        if attn.get("clip_qkv"):
            w.add_clamp_kqv(attn["clip_qkv"])
    if m.kind == "olmo" and c.get("clip_qkv"):
        w.add_clamp_kqv(c["clip_qkv"])
    if m.kind == "granite":
        w.add_attention_scale(c["attention_multiplier"])
        w.add_embedding_scale(c["embedding_multiplier"])
        w.add_residual_scale(c["residual_multiplier"])
        w.add_logit_scale(c["logits_scaling"])
    if m.kind in ("cohere", "cohere2"):
        w.add_logit_scale(c["logit_scale"])
    if m.kind in ("cohere", "cohere2", "command-r"):
        w.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    if m.kind == "gemma2":
        if c.get("query_pre_attn_scalar", m.d_head) != m.d_head:
            raise SystemExit(f"{m.folder}: GGUF's gemma2 scales by the head's width only")
        if not c.get("attn_logit_softcapping") or not c.get("final_logit_softcapping"):
            raise SystemExit(f"{m.folder}: GGUF's gemma2 always has soft caps")
        w.add_attn_logit_softcapping(c["attn_logit_softcapping"])
        w.add_final_logit_softcapping(c["final_logit_softcapping"])
    if m.kind == "gemma3_text" and c.get("query_pre_attn_scalar", m.d_head) != m.d_head:
        raise SystemExit(f"{m.folder}: GGUF's gemma3 scales by the head's width only")
    if m.kind == "bloom" and c.get("apply_residual_connection_post_layernorm"):
        raise SystemExit(f"{m.folder}: GGUF's bloom adds the stream, not its norm")
    if m.kind == "phi" and c.get("qk_layernorm"):
        raise SystemExit(f"{m.folder}: GGUF's phi2 has no q/k norms")
    if m.kind == "gpt2" and (c.get("scale_attn_by_inverse_layer_idx") or c.get("scale_attn_weights") is False):
        raise SystemExit(f"{m.folder}: GGUF's gpt2 has one attention scale")


def vocabulary(m, w):
    tokens = ["<unk>", "<s>", "</s>", "<0x0A>"] + [f"t{i}" for i in range(4, m.n_vocab)]
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    w.add_token_list(tokens)
    w.add_token_scores([0.0] * m.n_vocab)
    w.add_token_types([2, 3, 3, 6] + [1] * (m.n_vocab - 4))
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_add_bos_token(False)


def stored(name, t, kind):
    """Vectors, norms, positions, and rows that no block divides stay F32, as in converters."""
    data = np.ascontiguousarray(t.numpy(), dtype=np.float32)
    if data.ndim == 1 or kind == "F32" or "norm" in name or "position_embd" in name or "rope_f" in name:
        return data, None
    type_ = gguf.GGMLQuantizationType[kind]
    if data.shape[-1] % gguf.GGML_QUANT_SIZES[type_][0]:
        type_ = gguf.GGMLQuantizationType.F16
    return gguf.quants.quantize(data, type_), type_


def convert(folder, out, kind):
    m = Model(folder)
    arch_id = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == m.arch)
    names = gguf.get_tensor_name_map(arch_id, m.n_layer)
    w = gguf.GGUFWriter(out, m.arch)
    metadata(m, w)
    vocabulary(m, w)
    w.add_file_type({"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "BF16": 32}[kind])
    for name, t in rewrite(m).items():
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if target is None:
            raise SystemExit(f"{folder}: gguf has no name for {name} in {m.arch}")
        data, type_ = stored(target, t, kind)
        w.add_tensor(target, data, raw_dtype=type_)
    for name, factors in rope_factors(m).items():
        w.add_tensor(name, np.array(factors, dtype=np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def compare(folder, path):
    import llama_cpp

    expected = load_file(os.path.join(folder, "expected.safetensors"))
    want = expected["logits"].numpy()
    llm = llama_cpp.Llama(model_path=path, logits_all=True, n_ctx=64, n_batch=64, type_k=0, type_v=0, verbose=False,
                          flash_attn=False, n_threads=1)
    llm.eval(expected["input_ids"].tolist())
    got = np.array(llm.scores[: want.shape[0]])
    return float(np.sqrt(np.mean((got - want) ** 2)) / want.std())


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder")
    p.add_argument("out", help="the file")
    p.add_argument("--type", default="F32", choices=["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
    p.add_argument("--compare", action="store_true")
    p.add_argument("--list")
    args = p.parse_args()
    if args.list:
        with open(args.list, encoding="utf-8") as f:
            rows = [line.split() for line in f if line.strip() and not line.startswith("#")]
        for name, kind, folder in rows:
            convert(os.path.join(args.folder, folder), os.path.join(args.out, name + ".gguf"), kind)
        return
    convert(args.folder, args.out, args.type)
    if args.compare:
        print(f"{os.path.basename(args.folder):32} relative RMS against llama_cpp {compare(args.folder, args.out):.2e}")


if __name__ == "__main__":
    sys.exit(main())
