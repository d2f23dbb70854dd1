#!/usr/bin/env python3
"""Makes the fixture of attention sinks: a tiny Llama with random weights and a sink for each head, and the results that
plain Python computes with it in double precision.

    tools/make-sinks-fixture.py OUT              writes OUT as make-fixture.py does
    tools/make-sinks-fixture.py --check FOLDER   compares with a Llama fixture of make-fixture.py, which has no sinks

needs nothing but Python. No published Llama has sinks; the definition is GPT-OSS's: a head's sink is a logit beside
the scaled scores of its softmax, and its share is dropped. --check shows that the rest of the computation agrees with
HF transformers: relative RMS errors are near 1e-6, since HF computes in single precision.

OUT gets config.json, model.safetensors (bf16, sinks f32, two layers) and expected.safetensors. Some sinks are far
above all scores and some far below."""

import json
import math
import os
import random
import struct
import sys

N_TOKEN, N_PROMPT, N_GREEDY = 48, 16, 16
SIZE = {"F32": 4, "BF16": 2, "I32": 4}


# ---- files ----

def read_tensors(path):
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(n))
        data = f.read()
    out = {}
    for name, t in header.items():
        if name == "__metadata__":
            continue
        raw = data[t["data_offsets"][0]:t["data_offsets"][1]]
        n = len(raw) // SIZE[t["dtype"]]
        if t["dtype"] == "BF16":
            raw = b"".join(b"\0\0" + raw[2 * i:2 * i + 2] for i in range(n))
        values = struct.unpack(f"<{n}{'i' if t['dtype'] == 'I32' else 'f'}", raw)
        width = math.prod(t["shape"][1:])
        out[name] = values if len(t["shape"]) == 1 else [
            values[i * width:(i + 1) * width] for i in range(t["shape"][0])]
    return out


def write_tensors(path, tensors):
    """tensors: name -> (dtype, shape, flat values)"""
    header, data = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        raw = struct.pack(f"<{len(values)}{'i' if dtype == 'I32' else 'f'}", *values)
        if dtype == "BF16":
            raw = b"".join(raw[4 * i + 2:4 * i + 4] for i in range(len(values)))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


# ---- the model ----

def dot(a, b):
    return math.fsum(x * y for x, y in zip(a, b))


def times(matrix, x):
    return [dot(row, x) for row in matrix]


def norm(x, weight, eps):
    by = 1 / math.sqrt(dot(x, x) / len(x) + eps)
    return [v * by * w for v, w in zip(x, weight)]


def rotate(x, position, d, theta):
    half, out = d // 2, list(x)
    for h in range(0, len(x), d):
        for i in range(half):
            angle = position * theta ** (-2 * i / d)
            a, b = x[h + i], x[h + i + half]
            out[h + i] = a * math.cos(angle) - b * math.sin(angle)
            out[h + i + half] = b * math.cos(angle) + a * math.sin(angle)
    return out


def weights_of(scores, sink):
    """The softmax over the scores and the sink, without the sink's share."""
    logits = scores if sink is None else scores + [sink]
    top = max(logits)
    e = [math.exp(s - top) for s in logits]
    total = math.fsum(e)
    return [x / total for x in e[:len(scores)]]


class Llama:
    def __init__(self, config, tensors):
        self.c, self.t = config, tensors
        self.n_head, self.n_kv = config["num_attention_heads"], config["num_key_value_heads"]
        self.d = config["head_dim"]
        self.eps, self.theta = config["rms_norm_eps"], config["rope_parameters"]["rope_theta"]
        self.cache = [([], []) for _ in range(config["num_hidden_layers"])]

    def attend(self, layer, h):
        p = f"model.layers.{layer}.self_attn."
        keys, values = self.cache[layer]
        at, d, sinks = len(keys), self.d, self.t.get(p + "sinks")
        q = rotate(times(self.t[p + "q_proj.weight"], h), at, d, self.theta)
        keys.append(rotate(times(self.t[p + "k_proj.weight"], h), at, d, self.theta))
        values.append(times(self.t[p + "v_proj.weight"], h))
        out = []
        for head in range(self.n_head):
            kv = head // (self.n_head // self.n_kv) * d
            mine = q[head * d:(head + 1) * d]
            scores = [dot(mine, k[kv:kv + d]) / math.sqrt(d) for k in keys]
            weights = weights_of(scores, None if sinks is None else sinks[head])
            out += [dot(weights, [v[kv + i] for v in values]) for i in range(d)]
        return times(self.t[p + "o_proj.weight"], out)

    def step(self, token):
        """The logits after one more token."""
        x = list(self.t["model.embed_tokens.weight"][token])
        for layer in range(self.c["num_hidden_layers"]):
            p = f"model.layers.{layer}."
            h = self.attend(layer, norm(x, self.t[p + "input_layernorm.weight"], self.eps))
            x = [a + b for a, b in zip(x, h)]
            h = norm(x, self.t[p + "post_attention_layernorm.weight"], self.eps)
            gate, up = times(self.t[p + "mlp.gate_proj.weight"], h), times(self.t[p + "mlp.up_proj.weight"], h)
            inner = [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up)]
            x = [a + b for a, b in zip(x, times(self.t[p + "mlp.down_proj.weight"], inner))]
        return times(self.t["lm_head.weight"], norm(x, self.t["model.norm.weight"], self.eps))


def compute(config, tensors, ids):
    """Logits of all tokens, the greedy tokens, and the smallest margin of a greedy choice."""
    whole, short, greedy, margin = Llama(config, tensors), Llama(config, tensors), [], math.inf
    logits = [whole.step(i) for i in ids]
    for i in ids[:N_PROMPT]:
        last = short.step(i)
    for _ in range(N_GREEDY):
        first, second = sorted(last)[:-3:-1]
        margin = min(margin, first - second)
        greedy.append(last.index(first))
        last = short.step(greedy[-1])
    return logits, greedy, margin


# ---- commands ----

def make(folder, seed):
    r = random.Random(seed)
    config = {"architectures": ["LlamaForCausalLM"], "attention_bias": False, "bos_token_id": 1, "eos_token_id": 2,
              "dtype": "bfloat16", "head_dim": 8, "hidden_act": "silu", "hidden_size": 32, "intermediate_size": 72,
              "max_position_embeddings": 128, "mlp_bias": False, "model_type": "llama", "num_attention_heads": 6,
              "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
              "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "tie_word_embeddings": False,
              "vocab_size": 104}
    files = {}

    def put(name, shape, mean, std):
        n = math.prod(shape)
        values = [r.gauss(mean, std) for _ in range(n)]
        bits = struct.unpack(f"<{n}I", struct.pack(f"<{n}f", *values))
        files[name] = ("BF16", shape, struct.unpack(f"<{n}f", struct.pack(f"<{n}I", *(b & 0xffff0000 for b in bits))))

    d, ff, vocab, q, kv = 32, 72, 104, 48, 16
    put("model.embed_tokens.weight", [vocab, d], 0, 0.5)
    for layer in range(2):
        p = f"model.layers.{layer}."
        for name, rows, columns in (("self_attn.q_proj", q, d), ("self_attn.k_proj", kv, d),
                                    ("self_attn.v_proj", kv, d), ("self_attn.o_proj", d, q), ("mlp.gate_proj", ff, d),
                                    ("mlp.up_proj", ff, d), ("mlp.down_proj", d, ff)):
            put(p + name + ".weight", [rows, columns], 0, 1.3 / math.sqrt(columns))
        put(p + "input_layernorm.weight", [d], 1, 0.2)
        put(p + "post_attention_layernorm.weight", [d], 1, 0.2)
        sinks = [r.gauss(2, 1.5) for _ in range(6)]
        sinks[layer], sinks[4 - layer] = 90.0, -120.0
        files[p + "self_attn.sinks"] = ("F32", [6], sinks)
    put("model.norm.weight", [d], 1, 0.2)
    put("lm_head.weight", [vocab, d], 0, 0.96 / math.sqrt(d))
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "model.safetensors")
    write_tensors(path, files)
    ids = [r.randrange(3, vocab) for _ in range(N_TOKEN)]
    logits, greedy, margin = compute(config, read_tensors(path), ids)
    flat = [x for row in logits for x in row]
    write_tensors(os.path.join(folder, "expected.safetensors"),
                  {"input_ids": ("I32", [N_TOKEN], ids), "logits": ("F32", [N_TOKEN, vocab], flat),
                   "greedy": ("I32", [N_GREEDY], greedy)})
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=2, sort_keys=True)
        f.write("\n")
    return margin, len(set(greedy))


def check(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    expected = read_tensors(os.path.join(folder, "expected.safetensors"))
    logits, greedy, _ = compute(config, read_tensors(os.path.join(folder, "model.safetensors")),
                                list(expected["input_ids"]))
    pairs = [(a, b) for x, y in zip(logits, expected["logits"]) for a, b in zip(x, y)]
    error = math.sqrt(sum((a - b) ** 2 for a, b in pairs) / sum(b * b for _, b in pairs))
    same = greedy == list(expected["greedy"])
    print(f"{folder}: relative RMS error {error:.2e}, greedy tokens {'equal' if same else 'differ'}")
    return 0 if same and error < 1e-5 else 1


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--check":
        return check(sys.argv[2])
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    for seed in range(1, 100):
        margin, distinct = make(sys.argv[1], seed)
        if margin > 0.05 and distinct >= 6:
            print(f"seed {seed}, margin {margin:.3f}, {distinct} distinct greedy tokens")
            return 0
    raise SystemExit("no seed gives clear greedy tokens")


if __name__ == "__main__":
    sys.exit(main())
