#!/usr/bin/env python3
"""Measures llama.cpp (the PyPI package llama-cpp-python, built from source for this CPU) on one model.

Called by side_by_side.py in a fresh process; prints one JSON line. The interpreter's own start and memory are
left out: time counts from just before the model is opened, memory is what the process grew by at its peak."""
import argparse
import ctypes
import json
import time


def status_kib(key):
    for line in open("/proc/self/status"):
        if line.startswith(key + ":"):
            return int(line.split()[1])
    return 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--test", choices=["pp", "tg", "start"], required=True)
    parser.add_argument("-n", type=int, default=512)
    parser.add_argument("-t", type=int, default=2)
    parser.add_argument("-r", type=int, default=3)
    parser.add_argument("-c", type=int, default=0)
    args = parser.parse_args()
    import llama_cpp as lib

    silent = lib.llama_log_callback(lambda *_: None)  # kept: llama.cpp calls it for as long as it runs
    lib.llama_log_set(silent, ctypes.c_void_p(0))
    lib.llama_backend_init()
    base = status_kib("VmRSS")
    begin = time.perf_counter()
    model = lib.llama_model_load_from_file(args.model.encode(), lib.llama_model_default_params())
    params = lib.llama_context_default_params()
    params.n_ctx = args.c or args.n + 16
    params.n_batch = max(512, args.n)
    params.n_ubatch = 512
    params.n_threads = params.n_threads_batch = args.t
    context = lib.llama_init_from_model(model, params)
    n_vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    ids = [(i + 1) * 2654435761 % n_vocab for i in range(args.n + 1)]

    def decode(part):
        tokens = (lib.llama_token * len(part))(*part)
        if lib.llama_decode(context, lib.llama_batch_get_one(tokens, len(part))):
            raise SystemExit("llama_decode failed")
        lib.llama_get_logits_ith(context, -1)[0]

    memory = lib.llama_get_memory(context)
    rates = []
    if args.test == "start":
        decode(ids[:16])
        first = time.perf_counter() - begin
        decode(ids[16:17])
        print(json.dumps({"start_s": first, "rss": (status_kib("VmHWM") - base) * 1024}))
        return
    for r in range(args.r + 1):
        lib.llama_memory_clear(memory, True)
        if args.test == "pp":
            start = time.perf_counter()
            decode(ids[: args.n])
        else:
            decode(ids[:1])
            start = time.perf_counter()
            for i in range(1, args.n + 1):
                decode(ids[i : i + 1])
        if r:
            rates.append(args.n / (time.perf_counter() - start))
    print(json.dumps({"tok_s": sorted(rates)[len(rates) // 2], "min": min(rates), "max": max(rates)}))


if __name__ == "__main__":
    main()
