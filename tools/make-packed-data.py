#!/usr/bin/env python3
"""Makes tiny checkpoints in the packed forms of the hub, with the values of their weights.

    tools/make-packed-data.py tests/data/packed

needs numpy. Each folder is a Llama of one layer with random weights, or a Qwen3 with experts ("moe"): config.json, model.safetensors in the form that
the folder's name says, and expected.safetensors with some matrices in F32, computed here from the forms' definitions:
    awq, gptq, compressed-tensors   w = scale * (code - zero), exactly
    fp8                             w = value * scale in f32, then rounded to bf16; a scale for the tensor, for each row
                                    or for blocks
    nvfp4                           w = value * (scale * whole) in f32, then rounded to bf16; a scale for 16 columns
    mxfp4                           w = value * 2^(scale - 127), a scale for 32 columns
    bitsandbytes                    w = map[code] * absmax in f32, then rounded to the dtype of the quant_state,
                                    absmax = nested_map[code] * nested_absmax + nested_offset where it is quantized"""

import json
import os
import struct
import sys

import numpy as np

D, HEADS, KV, VOCAB = 64, 2, 1, 24
EXPECTED = ("self_attn.k_proj", "self_attn.v_proj",  # the rows of one move, those of the other do not
            "mlp.experts.1.up_proj", "mlp.experts.2.down_proj", "mlp.gate")
NF4 = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
       -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
       0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0]


def shapes(d, experts, router):
    """Of the matrices of a layer of width d; experts have half of it."""
    every = {"self_attn.q_proj": (d, d), "self_attn.k_proj": (d // 2, d), "self_attn.v_proj": (d // 2, d),
             "self_attn.o_proj": (d, d)}
    for e in range(experts):
        every.update({f"mlp.experts.{e}.gate_proj": (d // 2, d), f"mlp.experts.{e}.up_proj": (d // 2, d),
                      f"mlp.experts.{e}.down_proj": (d, d // 2)})
    if router:
        every["mlp.gate"] = (experts, d)
    if not experts:
        every.update({"mlp.gate_proj": (d, d), "mlp.up_proj": (d, d), "mlp.down_proj": (d, d)})
    return every


class Fp8(np.ndarray):
    """Bytes that are written as F8_E4M3."""


class Fp8Wide(np.ndarray):
    """Bytes that are written as F8_E5M2."""


class Exponents(np.ndarray):
    """Bytes that are written as F8_E8M0."""


class Bf16(np.ndarray):
    """16 bits that are written as BF16."""


def to_bf16(x):
    """The bits, rounded to nearest even."""
    u = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16).view(Bf16)


def from_bf16(b):
    return (np.asarray(b).view(np.ndarray).astype(np.uint32) << 16).view(np.float32)


def save(path, tensors):
    names = {"float32": "F32", "float16": "F16", "int32": "I32", "int64": "I64", "int8": "I8", "uint8": "U8"}
    header, data = {}, b""
    for name, t in sorted(tensors.items()):
        raw = np.ascontiguousarray(t).tobytes()
        dtype = next((name for kind, name in ((Bf16, "BF16"), (Fp8, "F8_E4M3"), (Fp8Wide, "F8_E5M2"),
                                                   (Exponents, "F8_E8M0"))
                      if isinstance(t, kind)), None) or names[t.dtype.name]
        header[name] = {"dtype": dtype, "shape": list(t.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def stream(codes, bits):
    """Unsigned codes [..., n] as a run of little-endian 32-bit words along the last axis, bit after bit."""
    n = codes.shape[-1]
    flat = ((codes[..., :, None] >> np.arange(bits)) & 1).reshape(*codes.shape[:-1], n * bits)
    pad = -flat.shape[-1] % 32
    flat = np.concatenate([flat, np.zeros((*flat.shape[:-1], pad), flat.dtype)], -1)
    words = flat.reshape(*flat.shape[:-1], -1, 32).astype(np.uint64)
    return (words << np.arange(32, dtype=np.uint64)).sum(-1).astype(np.uint32).view(np.int32)


def groups(rng, n, k, group, bits, symmetric):
    codes = rng.integers(0, 1 << bits, (n, k))
    scales = (rng.random((n, k // group)) * 0.02 + 0.001).astype(np.float16)
    zeros = np.full((n, k // group), 1 << (bits - 1)) if symmetric else rng.integers(1, 1 << bits, (n, k // group))
    return codes, scales, zeros


def value(codes, scales, zeros, order):
    return (scales.astype(np.float64)[:, order] * (codes - zeros[:, order])).astype(np.float32)


def by_place(k, group):
    return np.arange(k) // group


def awq(rng, n, k, o):
    codes, scales, zeros = groups(rng, n, k, o["group"], 4, False)
    field = np.array([0, 2, 4, 6, 1, 3, 5, 7])  # field i of a word holds this one of eight outputs

    def pack(x):  # [rows, outputs]
        return stream(x.reshape(x.shape[0], -1, 8)[:, :, field].reshape(x.shape), 4)

    parts = {"qweight": pack(codes.T), "qzeros": pack(zeros.T), "scales": scales.T}
    return parts, value(codes, scales, zeros, by_place(k, o["group"]))


def gptq(rng, n, k, o):
    bits, group = o["bits"], o["group"]
    codes, scales, zeros = groups(rng, n, k, group, bits, o["sym"])
    order = by_place(k, group)
    if o.get("act"):
        order = rng.permutation(order)
    stored = zeros if o.get("v2") else (zeros - 1) & ((1 << bits) - 1)
    parts = {"qweight": stream(codes, bits).T, "qzeros": stream(stored.T, bits), "scales": scales.T,
             "g_idx": order.astype(np.int32)}
    return parts, value(codes, scales, zeros, order)


def packed(rng, n, k, o):
    bits = o.get("bits", 4)
    codes, scales, zeros = groups(rng, n, k, o["group"], bits, o["sym"])
    scales = to_bf16(scales.astype(np.float32) * np.float32(o.get("scale", 1)))
    parts = {"weight_packed": stream(codes, bits), "weight_scale": scales,
             "weight_shape": np.array([n, k], np.int64)}
    if not o["sym"]:
        parts["weight_zero_point"] = stream(zeros.T, bits).T
    return parts, value(codes, from_bf16(scales), zeros, by_place(k, o["group"]))


def int8(rng, n, k, o):
    codes = rng.integers(-127, 128, (n, k)).astype(np.int8)
    scales = to_bf16((rng.random((n, 1)) * 0.001 + 1e-4).astype(np.float32))
    return {"weight": codes, "weight_scale": scales}, value(codes, from_bf16(scales), np.zeros((n, 1)),
                                                            by_place(k, k))


def e4m3(codes):
    """Bias 7, no infinities."""
    exponent, fraction = codes >> 3 & 15, codes & 7
    small = exponent == 0
    wide = np.ldexp(np.where(small, fraction, 8 + fraction).astype(np.float32),
                    np.where(small, -9, exponent.astype(np.int32) - 10))
    return np.where(codes & 0x80, -wide, wide)


def fp8(rng, n, k, o):
    """e5m2: the upper byte of a half."""
    codes = (rng.integers(0, 120 if o["e4m3"] else 0x70, (n, k)) | rng.integers(0, 2, (n, k)) << 7).astype(np.uint8)
    values = e4m3(codes) if o["e4m3"] else (codes.astype(np.uint16) << 8).view(np.float16)
    rows, columns = o["blocks"] or (n, k)
    rows = rows or 1
    scales = (rng.random((-(-n // rows), -(-k // columns))) * 1e-3 + 1e-4).astype(np.float32)
    each = scales[np.arange(n)[:, None] // rows, np.arange(k)[None] // columns]
    kept = scales.reshape(()) if scales.size == 1 and o["name"] == "weight_scale" else scales
    parts = {"weight": codes.view(Fp8 if o["e4m3"] else Fp8Wide), o["name"]: kept, "input_scale": np.float32(1).reshape(1)}
    return parts, from_bf16(to_bf16(values.astype(np.float32) * each)).reshape(n, k)


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def fp4(rng, n, k, o):
    """Neighbours in a byte, the first one in its low half. `inverse`: the tensor has 1 / whole."""
    codes = rng.integers(0, 16, (n, k)).astype(np.uint8)
    parts = {o["codes"]: codes[:, 0::2] | codes[:, 1::2] << 4}
    if o["whole"] is None:
        scales = rng.integers(118, 124, (n, k // 32)).astype(np.uint8)
        parts["weight_scale"] = scales
        return parts, E2M1[codes] * np.ldexp(np.float32(1), scales.astype(np.int32) - 127).repeat(32, 1)
    scales = rng.integers(1, 0x7f, (n, k // 16)).astype(np.uint8)
    each = e4m3(scales)
    whole = np.float32(1 / 3000)
    if o["whole"] == "weight_global_scale":
        stored = np.float32(3000).reshape(1)
        whole = np.float32(1) / stored[0]
    else:
        stored = whole.reshape(())
    parts.update({"weight_scale": scales.view(Fp8), o["whole"]: stored, o["input"]: np.float32(1).reshape(1)})
    return parts, from_bf16(to_bf16(E2M1[codes] * (each * whole).repeat(16, 1))).reshape(n, k)


def nf4(rng, n, k, o):
    block, nested = 64, 16
    codes = rng.integers(0, 16, n * k).astype(np.uint8)
    n_block = n * k // block
    state = {"quant_type": "nf4", "blocksize": block, "dtype": "bfloat16", "shape": [n, k]}
    parts = {"weight": (codes[0::2] << 4 | codes[1::2])[:, None], "weight.quant_map": np.array(NF4, np.float32)}
    if o["nested"]:
        absmax = rng.integers(0, 256, n_block).astype(np.uint8)
        table = np.sort(rng.random(256) * 2 - 1).astype(np.float32)
        scale = (rng.random(-(-n_block // nested)) * 0.01).astype(np.float32)
        offset = np.float32(0.02)
        state.update(nested_blocksize=nested, nested_dtype="float32", nested_offset=float(offset))
        parts.update({"weight.absmax": absmax, "weight.nested_absmax": scale, "weight.nested_quant_map": table})
        real = table[absmax] * scale[np.arange(n_block) // nested] + offset
    else:
        real = (rng.random(n_block) * 0.05).astype(np.float32)
        parts["weight.absmax"] = real
    parts["weight.quant_state.bitsandbytes__nf4"] = np.frombuffer(json.dumps(state).encode(), np.uint8)
    products = np.array(NF4, np.float32)[codes] * real[np.arange(n * k) // block]
    return parts, from_bf16(to_bf16(products)).reshape(n, k)


GPTQ = {"quant_method": "gptq", "desc_act": False}
FORMS = {
    "awq": (awq, dict(group=32), {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True,
                                  "version": "gemm"}),
    "gptq-4": (gptq, dict(bits=4, group=32, sym=True), dict(GPTQ, bits=4, group_size=32, sym=True)),
    "gptq-4-asym": (gptq, dict(bits=4, group=32, sym=False, v2=True),
                    dict(GPTQ, bits=4, group_size=32, sym=False, checkpoint_format="gptq_v2")),
    "gptq-act": (gptq, dict(bits=4, group=32, sym=True, act=True),
                 dict(GPTQ, bits=4, group_size=32, sym=True, desc_act=True)),
    "gptq-3": (gptq, dict(bits=3, group=32, sym=False), dict(GPTQ, bits=3, group_size=32, sym=False)),
    "gptq-2": (gptq, dict(bits=2, group=32, sym=False), dict(GPTQ, bits=2, group_size=32, sym=False)),
    "gptq-8": (gptq, dict(bits=8, group=32, sym=True), dict(GPTQ, bits=8, group_size=32, sym=True)),
    "w4a16": (packed, dict(group=32, sym=True), {"quant_method": "compressed-tensors", "format": "pack-quantized"}),
    "w4a16-asym": (packed, dict(group=32, sym=False),
                   {"quant_method": "compressed-tensors", "format": "pack-quantized"}),
    "w8a16": (packed, dict(group=D, sym=True, bits=8),
              {"quant_method": "compressed-tensors", "format": "pack-quantized"}),
    "w8a8": (int8, {}, {"quant_method": "compressed-tensors", "format": "int-quantized"}),
    "nf4": (nf4, dict(nested=False), {"quant_method": "bitsandbytes", "load_in_4bit": True}),
    "nf4-nested": (nf4, dict(nested=True), {"quant_method": "bitsandbytes", "load_in_4bit": True}),
    "awq-128": (awq, dict(group=128, d=128), {"quant_method": "awq", "bits": 4, "group_size": 128,
                                              "zero_point": True, "version": "gemm"}),
    "gptq-64": (gptq, dict(bits=4, group=64, sym=False), dict(GPTQ, bits=4, group_size=64, sym=False)),
    "fp8-block": (fp8, dict(e4m3=True, blocks=(32, 48), name="weight_scale_inv"),
                  {"quant_method": "fp8", "weight_block_size": [32, 48], "activation_scheme": "dynamic"}),
    "fp8-tensor": (fp8, dict(e4m3=False, blocks=None, name="weight_scale"),
                   {"quant_method": "fp8", "activation_scheme": "static"}),
    "fp8-row": (fp8, dict(e4m3=True, blocks=(1, 64), name="weight_scale"),
                {"quant_method": "compressed-tensors", "format": "float-quantized"}),
    "nvfp4": (fp4, dict(codes="weight", whole="weight_scale_2", input="input_scale"),
              {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    "nvfp4-packed": (fp4, dict(codes="weight_packed", whole="weight_global_scale", input="input_global_scale"),
                     {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}),
    "mxfp4-packed": (fp4, dict(codes="weight_packed", whole=None),
                     {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"}),
    "gptq-128": (gptq, dict(bits=4, group=128, sym=True, d=128), dict(GPTQ, bits=4, group_size=128, sym=True)),
    "w4a16-64": (packed, dict(group=64, sym=True, d=128),
                 {"quant_method": "compressed-tensors", "format": "pack-quantized"}),
    "w4a16-128-asym": (packed, dict(group=128, sym=False, d=128),
                       {"quant_method": "compressed-tensors", "format": "pack-quantized"}),
    "w4a16-small": (packed, dict(group=32, sym=True, scale=2.0**-12),
                    {"quant_method": "compressed-tensors", "format": "pack-quantized"}),
    "moe-gptq": (gptq, dict(bits=4, group=32, sym=False, experts=4), dict(GPTQ, bits=4, group_size=32, sym=False)),
    "moe-awq": (awq, dict(group=64, d=128, experts=4), {"quant_method": "awq", "bits": 4, "group_size": 64,
                                                       "zero_point": True, "version": "gemm"}),
    "moe-w4a16": (packed, dict(group=32, sym=True, experts=4, small="mlp.experts.1.up_proj"),
                  {"quant_method": "compressed-tensors", "format": "pack-quantized"}),
    "moe-fp8": (fp8, dict(e4m3=True, blocks=(128, 128), name="weight_scale_inv", d=128, experts=4),
                {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}),
    "moe-nvfp4": (fp4, dict(codes="weight", whole="weight_scale_2", input="input_scale", d=128, experts=4),
                  {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    "auto-round": (gptq, dict(bits=4, group=64, sym=True, d=128),
                   {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "bits": 4,
                    "group_size": 64, "sym": True}),
    "w4a16-64-small": (packed, dict(group=64, sym=False, d=128, scale=2.0**-12),
                       {"quant_method": "compressed-tensors", "format": "pack-quantized"}),
    "moe-64-small": (packed, dict(group=64, sym=True, d=128, experts=4, small="mlp.experts.1.up_proj"),
                     {"quant_method": "compressed-tensors", "format": "pack-quantized"}),
    "moe-router": (gptq, dict(bits=4, group=32, sym=True, experts=8, router=True),
                   dict(GPTQ, bits=4, group_size=32, sym=True)),
}


def make(folder, seed, form, options, config):
    rng = np.random.default_rng(seed)
    os.makedirs(folder, exist_ok=True)
    tensors, expected, d, experts = {}, {}, options.get("d", D), options.get("experts", 0)

    def plain(*shape):
        return (rng.random(shape) * 0.2 - 0.1).astype(np.float16)

    for name, (n, k) in shapes(d, experts, "router" in options).items():
        parts, values = form(rng, n, k, dict(options, scale=2.0**-12) if options.get("small") == name else options)
        for part, t in parts.items():
            tensors[f"model.layers.0.{name}.{part}"] = t
        if name in EXPECTED:
            expected[f"model.layers.0.{name}.weight"] = values
    tensors["model.embed_tokens.weight"] = plain(VOCAB, d)
    for name in ("model.norm", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm"):
        tensors[f"{name}.weight"] = plain(d) + np.float16(1)
    if experts:
        if "router" not in options:
            tensors["model.layers.0.mlp.gate.weight"] = plain(experts, d)
        for name in ("q_norm", "k_norm"):
            tensors[f"model.layers.0.self_attn.{name}.weight"] = plain(d // HEADS) + np.float16(1)
    save(os.path.join(folder, "model.safetensors"), tensors)
    save(os.path.join(folder, "expected.safetensors"), expected)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        more = {"num_experts": experts, "num_experts_per_tok": 2, "moe_intermediate_size": d // 2, "head_dim": d // HEADS,
                "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []} if experts else {}
        json.dump({"model_type": "qwen3_moe" if experts else "llama", "hidden_size": d, "num_hidden_layers": 1, "num_attention_heads": HEADS,
                   "num_key_value_heads": KV, "intermediate_size": d, "vocab_size": VOCAB, "rms_norm_eps": 1e-6,
                   "max_position_embeddings": 64, "tie_word_embeddings": True, **more,
                   "quantization_config": config}, f, indent=1)


def exponents(rng, n, k, fp4_codes):
    """As DeepSeek V4 has them: e2m1 with an exponent for 32, e4m3 with one for 128 x 128."""
    group, rows = (32, 1) if fp4_codes else (128, 128)
    scales = rng.integers(*((118, 124) if fp4_codes else (112, 118)), (-(-n // rows), -(-k // group))).astype(np.uint8)
    each = np.ldexp(np.float32(1), scales.astype(np.int32) - 127).repeat(rows, 0)[:n].repeat(group, 1)[:, :k]
    if fp4_codes:
        codes = rng.integers(0, 16, (n, k)).astype(np.uint8)
        packed = (codes[:, 0::2] | codes[:, 1::2] << 4).view(np.int8)
        return {"weight": packed, "scale": scales.view(Exponents)}, E2M1[codes] * each
    codes = (rng.integers(0, 120, (n, k)) | rng.integers(0, 2, (n, k)) << 7).astype(np.uint8)
    return {"weight": codes.view(Fp8), "scale": scales.view(Exponents)}, e4m3(codes) * each


def deepseek_v4(folder, seed):
    """Two layers with the official names and forms, and a folder with the same values in BF16."""
    rng = np.random.default_rng(seed)
    d, ff, heads, d_head, low, streams, experts = 128, 64, 2, 64, 64, 2, 4
    tensors, whole, expected = {}, {}, {}

    def plain(name, *shape, add=0.0):
        tensors[name] = whole[name] = to_bf16((rng.random(shape) * 0.2 - 0.1 + add).astype(np.float32))

    def matrix(name, n, k, fp4_codes=False):
        parts, values = exponents(rng, n, k, fp4_codes)
        for part, t in parts.items():
            tensors[f"{name}.{part}"] = t
        whole[f"{name}.weight"], expected[f"{name}.weight"] = to_bf16(values), values
        assert (from_bf16(to_bf16(values)) == values).all()

    for i, ratio in enumerate((0, 4)):
        at = f"layers.{i}."
        for name in ("attn_norm", "ffn_norm"):
            plain(f"{at}{name}.weight", d, add=1)
        for site in ("attn", "ffn"):
            plain(f"{at}hc_{site}_base", 2 * streams + streams * streams)
            plain(f"{at}hc_{site}_fn", 2 * streams + streams * streams, streams * d)
            plain(f"{at}hc_{site}_scale", 3)
        matrix(f"{at}attn.wq_a", low, d)
        plain(f"{at}attn.q_norm.weight", low, add=1)
        matrix(f"{at}attn.wq_b", heads * d_head, low)
        matrix(f"{at}attn.wkv", d_head, d)
        plain(f"{at}attn.kv_norm.weight", d_head, add=1)
        plain(f"{at}attn.attn_sink", heads)
        matrix(f"{at}attn.wo_a", 2 * low, heads * d_head // 2)
        matrix(f"{at}attn.wo_b", d, 2 * low)
        for where, width in ((f"{at}attn.compressor.", d_head), (f"{at}attn.indexer.compressor.", 32)) if ratio else ():
            plain(f"{where}wkv.weight", 2 * width, d)
            plain(f"{where}wgate.weight", 2 * width, d)
            plain(f"{where}ape", ratio, 2 * width)
            plain(f"{where}norm.weight", width, add=1)
        if ratio:
            matrix(f"{at}attn.indexer.wq_b", 2 * 32, low)
            plain(f"{at}attn.indexer.weights_proj.weight", 2, d)
            plain(f"{at}ffn.gate.bias", experts)
        else:
            table = rng.permuted(np.arange(experts)[None].repeat(VOCAB, 0), axis=1)[:, :2].astype(np.int64)
            tensors[f"{at}ffn.gate.tid2eid"] = whole[f"{at}ffn.gate.tid2eid"] = table
        plain(f"{at}ffn.gate.weight", experts, d)
        for name in [f"experts.{e}" for e in range(experts)] + ["shared_experts"]:
            for part, (n, k) in {"w1": (ff, d), "w2": (d, ff), "w3": (ff, d)}.items():
                matrix(f"{at}ffn.{name}.{part}", n, k, name != "shared_experts")
    plain("embed.weight", VOCAB, d)
    plain("head.weight", VOCAB, d)
    plain("norm.weight", d, add=1)
    for part, shape in {"base": (streams,), "fn": (streams, streams * d), "scale": (1,)}.items():
        plain(f"hc_head_{part}", *shape)
    config = {"model_type": "deepseek_v4", "architectures": ["DeepseekV4ForCausalLM"], "hidden_size": d,
              "num_hidden_layers": 2, "num_attention_heads": heads, "num_key_value_heads": 1, "head_dim": d_head,
              "qk_rope_head_dim": 16, "q_lora_rank": low, "o_lora_rank": low, "o_groups": 2, "vocab_size": VOCAB,
              "moe_intermediate_size": ff, "n_routed_experts": experts, "n_shared_experts": 1, "num_experts_per_tok": 2,
              "num_hash_layers": 1, "compress_ratios": [0, 4, 0], "num_nextn_predict_layers": 1, "sliding_window": 8,
              "index_n_heads": 2, "index_head_dim": 32, "index_topk": 4, "hc_mult": streams, "hc_sinkhorn_iters": 5,
              "hc_eps": 1e-6, "rms_norm_eps": 1e-6, "rope_theta": 10000, "compress_rope_theta": 160000,
              "routed_scaling_factor": 1.5, "scoring_func": "sqrtsoftplus", "norm_topk_prob": True, "swiglu_limit": 10.0,
              "hidden_act": "silu", "max_position_embeddings": 128, "tie_word_embeddings": False}
    packed = dict(config, expert_dtype="fp4", quantization_config={
        "quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0", "activation_scheme": "dynamic",
        "weight_block_size": [128, 128]})
    for path, t, c in ((folder, tensors, packed), (folder + "-bf16", whole, config)):
        os.makedirs(path, exist_ok=True)
        save(os.path.join(path, "model.safetensors"), t)
        with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as f:
            json.dump(c, f, indent=1)
    save(os.path.join(folder, "expected.safetensors"), {name: expected[name] for name in (
        "layers.0.attn.wq_a.weight", "layers.1.attn.wo_a.weight", "layers.0.ffn.experts.1.w1.weight",
        "layers.1.ffn.experts.2.w2.weight")})


def main():
    deepseek_v4(os.path.join(sys.argv[1], "deepseek-v4"), 99)
    for seed, (name, (form, options, config)) in enumerate(FORMS.items()):
        make(os.path.join(sys.argv[1], name), seed, form, options, config)


if __name__ == "__main__":
    main()
