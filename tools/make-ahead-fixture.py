#!/usr/bin/env python3
"""Makes the fixture of a head that predicts later tokens: a tiny GLM-4.5 with random weights and such a head, and what
plain Python computes with both in double precision.

    tools/make-ahead-fixture.py OUT              writes OUT as make-fixture.py does
    tools/make-ahead-fixture.py --check FOLDER   compares with a fixture of glm4_moe from HF transformers

needs nothing but Python. transformers skips the head's tensors. Its arithmetic is that of DeepSeek-V3 (arXiv 2412.19437,
section 2.2), with the model's state after its final norm as vLLM and SGLang have it. --check shows that the model itself
agrees with transformers.

expected.safetensors has, beside the usual tensors: `states` of all tokens; `ahead`, the head's logits from the state of
each token and the token after it; `proposed` and `accepted`: how many tokens of the greedy answer of N_ANSWER tokens
to the first N_PROMPT ones it proposes and gets right, up to N_PROPOSE in each pass. Weights of layers are small, so that
it is often right."""

import importlib.util
import json
import math
import os
import random
import struct
import sys

spec = importlib.util.spec_from_file_location("sinks", os.path.join(os.path.dirname(__file__), "make-sinks-fixture.py"))
sinks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sinks)
dot, times, norm = sinks.dot, sinks.times, sinks.norm

N_TOKEN, N_PROMPT, N_GREEDY, N_ANSWER, N_PROPOSE = 48, 16, 16, 24, 3


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def feed_forward(t, p, h):
    gate, up = times(t[p + "gate_proj.weight"], h), times(t[p + "up_proj.weight"], h)
    return times(t[p + "down_proj.weight"], [g * sigmoid(g) * u for g, u in zip(gate, up)])


class Layer:
    """A layer of GLM-4.5 with its keys and values."""

    def __init__(self, config, tensors, number):
        self.c, self.t, self.p = config, tensors, f"model.layers.{number}."
        self.keys, self.values = [], []
        self.eps = config["rms_norm_eps"]

    def project(self, name, h):
        p = self.p + f"self_attn.{name}_proj."
        return [a + b for a, b in zip(times(self.t[p + "weight"], h), self.t[p + "bias"])]

    def turned(self, name, h):
        """Heads of q or k, normed, their first part rotated."""
        d, at, out = self.c["head_dim"], len(self.values), []
        n_rot = int(d * self.c["rope_parameters"]["partial_rotary_factor"])
        x = self.project(name, h)
        for head in range(0, len(x), d):
            one = norm(x[head:head + d], self.t[self.p + f"self_attn.{name}_norm.weight"], self.eps)
            out.append(sinks.rotate(one[:n_rot], at, n_rot, self.c["rope_parameters"]["rope_theta"]) + one[n_rot:])
        return out

    def attend(self, h):
        q, d = self.turned("q", h), self.c["head_dim"]
        self.keys.append(self.turned("k", h))
        v = self.project("v", h)
        self.values.append([v[i:i + d] for i in range(0, len(v), d)])
        out, share = [], len(q) // len(self.values[0])
        for head, mine in enumerate(q):
            scores = [dot(mine, k[head // share]) / math.sqrt(d) for k in self.keys]
            weights = sinks.weights_of(scores, None)
            out += [dot(weights, [x[head // share][i] for x in self.values]) for i in range(d)]
        return times(self.t[self.p + "self_attn.o_proj.weight"], out)

    def mixture(self, h):
        p, c = self.p + "mlp.", self.c
        scores = [sigmoid(x) for x in times(self.t[p + "gate.weight"], h)]
        biased = [s + b for s, b in zip(scores, self.t[p + "gate.e_score_correction_bias"])]
        chosen = sorted(range(len(scores)), key=lambda e: -biased[e])[:c["num_experts_per_tok"]]
        total = math.fsum(scores[e] for e in chosen)
        out = feed_forward(self.t, p + "shared_experts.", h)
        for e in chosen:
            by = scores[e] / total * c["routed_scaling_factor"]
            out = [a + by * b for a, b in zip(out, feed_forward(self.t, p + f"experts.{e}.", h))]
        return out

    def step(self, x):
        x = [a + b for a, b in zip(x, self.attend(norm(x, self.t[self.p + "input_layernorm.weight"], self.eps)))]
        h = norm(x, self.t[self.p + "post_attention_layernorm.weight"], self.eps)
        dense = self.p + "mlp.gate.weight" not in self.t
        return [a + b for a, b in zip(x, feed_forward(self.t, self.p + "mlp.", h) if dense else self.mixture(h))]

    def forget(self, n):
        del self.keys[n:], self.values[n:]


class Model:
    def __init__(self, config, tensors):
        self.t, self.eps = tensors, config["rms_norm_eps"]
        self.layers = [Layer(config, tensors, i) for i in range(config["num_hidden_layers"])]

    def step(self, token):
        """The state of one more token."""
        x = list(self.t["model.embed_tokens.weight"][token])
        for layer in self.layers:
            x = layer.step(x)
        return norm(x, self.t["model.norm.weight"], self.eps)

    def logits(self, state):
        return times(self.t["lm_head.weight"], state)


class Ahead:
    def __init__(self, config, tensors):
        self.t, self.eps, n = tensors, config["rms_norm_eps"], config["num_hidden_layers"]
        self.layer, self.p = Layer(config, tensors, n), f"model.layers.{n}."

    def step(self, state, token):
        """Its own state, from that of a position and the token after it."""
        e = norm(self.t[self.p + "embed_tokens.weight"][token], self.t[self.p + "enorm.weight"], self.eps)
        both = e + norm(state, self.t[self.p + "hnorm.weight"], self.eps)
        x = self.layer.step(times(self.t[self.p + "eh_proj.weight"], both))
        return norm(x, self.t[self.p + "shared_head.norm.weight"], self.eps)

    def logits(self, state):
        return times(self.t[self.p + "shared_head.head.weight"], state)


def best(logits):
    return max(range(len(logits)), key=lambda i: logits[i])


def margin_of(logits):
    first, second = sorted(logits)[:-3:-1]
    return first - second


def greedy_answer(config, tensors, prompt, n):
    """Greedy tokens, the states of prompt and answer, and the smallest margin of a choice."""
    model, margin, tokens = Model(config, tensors), math.inf, list(prompt)
    states = [model.step(i) for i in prompt]
    for _ in range(n):
        logits = model.logits(states[-1])
        margin = min(margin, margin_of(logits))
        tokens.append(best(logits))
        states.append(model.step(tokens[-1]))
    return tokens[len(prompt):], states, margin


def speculate(config, tensors, prompt, answer, states):
    """How many tokens the head proposes for a greedy answer, how many are right, and the smallest margin."""
    ahead, tokens, margin = Ahead(config, tensors), list(prompt) + answer, math.inf
    known, n_row, proposed, right = len(prompt) + 1, 0, 0, 0  # the pass of the prompt gives the first token
    while known < len(tokens):
        while n_row < known - 1:
            own = ahead.step(states[n_row], tokens[n_row + 1])
            n_row += 1
        guesses = []
        for _ in range(min(N_PROPOSE, len(tokens) - 1 - known)):
            if guesses:
                own = ahead.step(own, guesses[-1])
            logits = ahead.logits(own)
            margin = min(margin, margin_of(logits))
            guesses.append(best(logits))
        ahead.layer.forget(n_row)
        good = 0
        while good < len(guesses) and guesses[good] == tokens[known + good]:
            good += 1
        proposed, right, known = proposed + len(guesses), right + good, known + good + 1
    return proposed, right, margin


def compute(config, tensors, ids):
    model = Model(config, tensors)
    states = [model.step(i) for i in ids]
    return states, [model.logits(s) for s in states]


# ---- commands ----

def rounded(values):
    n = len(values)
    bits = struct.unpack(f"<{n}I", struct.pack(f"<{n}f", *values))
    return struct.unpack(f"<{n}f", struct.pack(f"<{n}I", *(b & 0xffff0000 for b in bits)))


def make_weights(r, config):
    files = {}
    d, ff, expert, vocab = (config[k] for k in ("hidden_size", "intermediate_size", "moe_intermediate_size", "vocab_size"))
    head, q, kv = config["head_dim"], config["num_attention_heads"], config["num_key_value_heads"]

    def put(name, shape, mean, std):
        files[name] = ("BF16", shape, rounded([r.gauss(mean, std) for _ in range(math.prod(shape))]))

    def matrix(name, rows, columns, gain=1.0):
        put(name + ".weight", [rows, columns], 0, gain / math.sqrt(columns))

    def mlp(p, width):
        matrix(p + "gate_proj", width, d)
        matrix(p + "up_proj", width, d)
        matrix(p + "down_proj", d, width, 0.35)

    def layer(p, dense):
        for name, n in (("q", q), ("k", kv), ("v", kv)):
            matrix(p + f"self_attn.{name}_proj", n * head, d)
            put(p + f"self_attn.{name}_proj.bias", [n * head], 0, 0.2)
        matrix(p + "self_attn.o_proj", d, q * head, 0.35)
        for name, n in (("self_attn.q_norm", head), ("self_attn.k_norm", head), ("input_layernorm", d),
                        ("post_attention_layernorm", d)):
            put(p + name + ".weight", [n], 1, 0.2)
        if dense:
            mlp(p + "mlp.", ff)
            return
        matrix(p + "mlp.gate", config["n_routed_experts"], d, 2)
        put(p + "mlp.gate.e_score_correction_bias", [config["n_routed_experts"]], 0, 0.1)
        mlp(p + "mlp.shared_experts.", expert)
        for e in range(config["n_routed_experts"]):
            mlp(p + f"mlp.experts.{e}.", expert)

    matrix("model.embed_tokens", vocab, d, math.sqrt(d))
    for i in range(config["num_hidden_layers"]):
        layer(f"model.layers.{i}.", i < config["first_k_dense_replace"])
    put("model.norm.weight", [d], 1, 0.2)
    matrix("lm_head", vocab, d, 2)
    p = f"model.layers.{config['num_hidden_layers']}."
    layer(p, False)
    for name in ("enorm", "hnorm", "shared_head.norm"):
        put(p + name + ".weight", [d], 1, 0.2)
    matrix(p + "eh_proj", d, 2 * d, 0.25)
    eye = list(files[p + "eh_proj.weight"][2])
    for i in range(d):
        eye[i * 2 * d + i] += 1
        eye[i * 2 * d + d + i] += 0.3
    files[p + "eh_proj.weight"] = ("BF16", [d, 2 * d], rounded(eye))
    files[p + "embed_tokens.weight"] = files["model.embed_tokens.weight"]
    files[p + "shared_head.head.weight"] = files["lm_head.weight"]
    return files


def make(folder, seed):
    r = random.Random(seed)
    config = {"architectures": ["Glm4MoeForCausalLM"], "attention_bias": True, "bos_token_id": 1, "eos_token_id": 2,
              "dtype": "bfloat16", "first_k_dense_replace": 1, "head_dim": 12, "hidden_act": "silu", "hidden_size": 40,
              "intermediate_size": 56, "max_position_embeddings": 128, "model_type": "glm4_moe",
              "moe_intermediate_size": 24, "n_group": 1, "n_routed_experts": 6, "n_shared_experts": 1,
              "norm_topk_prob": True, "num_attention_heads": 4, "num_experts_per_tok": 2, "num_hidden_layers": 2,
              "num_key_value_heads": 2, "num_nextn_predict_layers": 1, "partial_rotary_factor": 0.5,
              "rms_norm_eps": 1e-05,
              "rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 10000.0, "rope_type": "default"},
              "routed_scaling_factor": 1.5, "tie_word_embeddings": False, "topk_group": 1, "use_qk_norm": True,
              "vocab_size": 160}
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "model.safetensors")
    sinks.write_tensors(path, make_weights(r, config))
    tensors = sinks.read_tensors(path)
    ids = [r.randrange(3, config["vocab_size"]) for _ in range(N_TOKEN)]
    answer, states, margin = greedy_answer(config, tensors, ids[:N_PROMPT], N_ANSWER)
    proposed, right, other = speculate(config, tensors, ids[:N_PROMPT], answer, states)
    text = ids[:N_PROMPT] + answer
    repeats = len({tuple(text[i:i + 5]) for i in range(len(text) - 4)}) < len(text) - 4  # n-gram look-up would propose
    if min(margin, other) < 0.005 or repeats or not 8 <= right < proposed - 4 or min(answer) < 3:
        return None
    states, logits = compute(config, tensors, ids)
    ahead = Ahead(config, tensors)
    own = [ahead.logits(ahead.step(s, token)) for s, token in zip(states, ids[1:])]

    def floats(rows):
        return ("F32", [len(rows), len(rows[0])], [x for row in rows for x in row])

    sinks.write_tensors(os.path.join(folder, "expected.safetensors"),
                        {"input_ids": ("I32", [N_TOKEN], ids), "logits": floats(logits), "states": floats(states),
                         "greedy": ("I32", [N_GREEDY], answer[:N_GREEDY]), "answer": ("I32", [N_ANSWER], answer),
                         "ahead": floats(own), "proposed": ("I32", [1], [proposed]), "accepted": ("I32", [1], [right])})
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=2, sort_keys=True)
        f.write("\n")
    return f"margins {margin:.3f} and {other:.3f}, {right} of {proposed} proposals accepted"


def check(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    expected = sinks.read_tensors(os.path.join(folder, "expected.safetensors"))
    _, logits = compute(config, sinks.read_tensors(os.path.join(folder, "model.safetensors")),
                        list(expected["input_ids"]))
    pairs = [(a, b) for x, y in zip(logits, expected["logits"]) for a, b in zip(x, y)]
    error = math.sqrt(sum((a - b) ** 2 for a, b in pairs) / sum(b * b for _, b in pairs))
    print(f"{folder}: relative RMS error {error:.2e}")
    return 0 if error < 1e-5 else 1


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--check":
        return check(sys.argv[2])
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    for seed in range(1, 200):
        made = make(sys.argv[1], seed)
        if made:
            print(f"seed {seed}: {made}")
            return 0
    raise SystemExit("no seed gives clear tokens and useful proposals")


if __name__ == "__main__":
    sys.exit(main())
