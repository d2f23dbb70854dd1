"""A server's answers to eight clients at a time (NIBBLE_QUICK: four) under a cap are those of `nibble run` for each:
serve-real.py NIBBLE MODEL."""
import json
import os
import subprocess
import sys
import threading

from server import Server, check, finish

nibble, model = sys.argv[1:]
CAP, TOKENS, CLIENTS = 100, 24, 4 if os.environ.get("NIBBLE_QUICK") else 8
QUESTIONS = ["Why is the sky blue?", "What is rain?", "Who was Ada Lovelace?", "How do boats float?"]


def question(i):
    return QUESTIONS[i % len(QUESTIONS)]


def alone(i):
    command = [nibble, "run", model, question(i), "-s", str(i), "-n", str(TOKENS), "-c", "256", "--json", "-q"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["text"]


s = Server(nibble, model, "--ram", f"{CAP}M", "-c", "256", "--parallel", str(CLIENTS // 2))
answers = [None] * CLIENTS


def ask(i):
    status, value = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": question(i)}], "seed": i,
                                                    "max_tokens": TOKENS})
    answers[i] = value["choices"][0]["message"]["content"] if status == 200 else value


threads = [threading.Thread(target=ask, args=(i,)) for i in range(CLIENTS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
peak = s.peak()
reported = s.get("/memory")[1]["rss_peak"]
code, said = s.end()
check(f"smollm2 serves {CLIENTS} clients under {CAP} MiB and stays below it", 0 < peak <= CAP << 20 and code == 0, (peak, said))
check("and /memory tells its peak", abs(reported - peak) <= 0.03 * peak, (reported, peak))
want = [alone(i) for i in range(CLIENTS)]
check("what it says is what run says", answers == want, (answers, want))
finish()
