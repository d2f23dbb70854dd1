#!/usr/bin/env python3
"""A batch beside interactive users: the time to the first token with and without it, and its rate with and without them.

  python3 bench/serve_batch.py [MODEL] [--requests 60] [--pause 0.5] [--prompt 128] [--tokens 32] [--threads 2] [--rounds 2]
                               [--nibble-args ARGS]

A user asks, reads the answer, and pauses. The batch has lines of 64 + 64 tokens (/v1/batches); its rate is that of its
answers between two looks at its state. In turns: the user alone, the batch alone, both."""
import argparse
import json
import os
import random
import shlex
import tempfile
import time

from load import Child, Stream, end_with_servers, quantile
from serve_load import NIBBLE

LINE_TOKENS, LINES = 64, 20000


def body(n_prompt, n_token):
    return {"prompt": [random.randrange(300, 20000) for _ in range(n_prompt)], "max_tokens": n_token, "temperature": 0,
            "ignore_eos": True}


def user(server, args):
    firsts = []
    for _ in range(args.requests):
        stream = Stream(server.port, body(args.prompt, args.tokens))
        stream.socket.setblocking(True)
        while stream.read():
            pass
        assert stream.status() == 200 and stream.whole(), stream.data[:300]
        firsts.append(stream.first - stream.asked)
        time.sleep(args.pause)
    return firsts


def begin_batch(server):
    lines = "".join(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": body(64, LINE_TOKENS)}) + "\n"
                    for i in range(LINES))
    mark = "----nibble"
    form = (f"--{mark}\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--{mark}\r\nContent-Disposition: "
            f"form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n{lines}\r\n--{mark}--\r\n").encode()
    status, said = server.send(f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: multipart/form-data; "
                               f"boundary={mark}\r\nContent-Length: {len(form)}\r\n\r\n".encode() + form)
    assert status == 200, said
    status, said = server.post("/v1/batches", {"input_file_id": json.loads(said)["id"], "endpoint": "/v1/completions",
                                               "completion_window": "24h"})
    assert status == 200, said
    return json.loads(said)["id"]


def completed(server, batch):
    return json.loads(server.get(f"/v1/batches/{batch}")[1])["request_counts"]["completed"]


def rate_of(server, batch, wait):
    """Tokens of its answers a second while wait() runs, and what that returns."""
    while completed(server, batch) < 8:
        time.sleep(0.1)
    before, begun = completed(server, batch), time.perf_counter()
    found = wait()
    return (completed(server, batch) - before) * LINE_TOKENS / (time.perf_counter() - begun), found


def one_round(server, args):
    alone = user(server, args)
    batch = begin_batch(server)
    rate_alone, _ = rate_of(server, batch, lambda: time.sleep(args.requests * args.pause))
    rate, beside = rate_of(server, batch, lambda: user(server, args))
    server.post(f"/v1/batches/{batch}/cancel", {})
    time.sleep(2)
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        a, b = quantile(alone, share), quantile(beside, share)
        print(f"time to first token, {name}: {1e3 * a:.1f} ms alone, {1e3 * b:.1f} ms beside the batch ({100 * (b / a - 1):+.1f} %)")
    print(f"batch: {rate_alone:.1f} tok/s alone, {rate:.1f} beside the user ({rate / rate_alone:.2f})", flush=True)


def main():
    usage = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usage.add_argument("model", nargs="?", default="smollm2")
    for name, value in (("requests", 60), ("prompt", 128), ("tokens", 32), ("threads", 2), ("rounds", 2)):
        usage.add_argument("--" + name, type=int, default=value)
    usage.add_argument("--pause", type=float, default=0.5)
    usage.add_argument("--nibble-args", default="--parallel 16 -c 512")
    args = usage.parse_args()
    end_with_servers()
    with tempfile.TemporaryDirectory() as files:
        server = Child([NIBBLE, "serve", args.model, "-t", str(args.threads), "--files", files, *shlex.split(args.nibble_args)],
                       dict(os.environ))
        try:
            for _ in range(args.rounds):
                one_round(server, args)
        finally:
            server.end()


if __name__ == "__main__":
    main()
