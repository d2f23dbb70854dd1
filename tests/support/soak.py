"""Runs nibble serve for a long time: soak.py NIBBLE MODEL SECONDS [OPTION ...]. MODEL has a chat template; the options
go to the server under load.

First a server with one place computes every answer of a list alone: texts, ids, chats, schemas, grammars, tools,
probabilities, several answers, penalties, Ollama's, Anthropic's and /v1/responses' ways, each with a seed. Then eight
clients request them from another server in random order, whole and as streams, among clients that disconnect, that send
garbage or half a request, that read slowly, and that query /memory, /metrics and other addresses. That server has too
few KV pages for all (so answers pause) and a prefix cache on disk that is too small, proposes tokens, and computes
prompts in parts. It is killed with SIGKILL in the middle, and the next server uses the folder that it left.

Checked: every answer is equal to the first one, none is lost, refusals are the expected ones, resident memory does not
grow once the server is warm, the killed server's pages are found, and SIGTERM ends the last one with 0."""
import json
import os
import random
import re
import signal
import socket
import sys
import threading
import time
import traceback

from server import CLIENT_WAITS_S, Server, check, finish, text_lines

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
PERSON = {"type": "object", "required": ["name", "tags"], "additionalProperties": False, "properties": {
    "name": {"type": "string", "maxLength": 8}, "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}}}
TOOLS = [{"type": "function", "function": {"name": "find", "parameters": PERSON}}]
WARM_S = 60  # of a server, or a third of what it has, whichever is less
GROWS = 4096  # KiB that resident memory may
LONG = "A beginning that many have in common, and that is longer than a page of keys and values. " * 3


def cases(seeds):
    """[(path, body)], each with one answer."""
    found = []
    for seed in range(seeds):
        draw = random.Random(seed)
        text = {"prompt": "x" * (seed + 1) + " and so on", "seed": seed, "max_tokens": draw.choice([1, 9, 40]),
                "ignore_eos": True}
        messages = [{"role": "user", "content": f"Why {seed}?"}]
        chat = {"messages": messages, "seed": seed, "max_tokens": 24}
        found += [
            (TEXT, text), (TEXT, dict(text, prompt=LONG + str(seed), max_tokens=70)),
            (TEXT, dict(text, prompt=[draw.randrange(32, 127) for _ in range(150)], temperature=0)),
            (TEXT, dict(text, prompt=["one", "two"], n=2, temperature=1.3, presence_penalty=0.7)),
            (TEXT, dict(text, logprobs=3, logit_bias={"65": 4}, max_tokens=5)),
            (TEXT, dict(text, prompt="ab " * 40, max_tokens=90, temperature=0.1)), (CHAT, chat),
            (CHAT, dict(chat, messages=[{"role": "system", "content": LONG}, *messages], top_p=0.9, stop=["e", "zz"])),
            (CHAT, dict(chat, response_format={"type": "json_schema", "json_schema": {"schema": PERSON}}, max_tokens=80)),
            (CHAT, dict(chat, grammar='root ::= [a-e]{3,9} | "no"')),
            (CHAT, dict(chat, tools=TOOLS, tool_choice="required", max_tokens=80)),
            ("/api/chat", {"messages": messages, "options": {"seed": seed, "num_predict": 20}}),
            ("/api/generate", {"prompt": LONG, "raw": True, "options": {"seed": seed, "num_predict": 20}}),
            ("/v1/messages", {"messages": messages, "system": LONG, "max_tokens": 20, "temperature": 0}),
            ("/v1/responses", {"input": f"Why {seed}?", "max_output_tokens": 20, "temperature": 0})]
    return found


COMPARED = {"text", "content", "reasoning_content", "thinking", "function", "finish_reason", "stop_reason", "done_reason",
        "completion_tokens", "prompt_tokens", "eval_count", "response", "output_tokens", "status", "name", "arguments", "token",
        "logprob"}


def content_of(value):
    """What a whole answer says, without ids and times."""
    if isinstance(value, dict):
        return {k: content_of(v) for k, v in value.items() if k in COMPARED or isinstance(v, (dict, list)) and k != "timings"}
    return [content_of(v) for v in value] if isinstance(value, list) else value


def stream_text(data):
    """The text of a stream by choice, of OpenAI's two ways."""
    out = {}
    for line in text_lines(data):
        if line.startswith("data: {"):
            event = json.loads(line[6:])
            if "error" in event:
                raise ValueError(line)
            for choice in event.get("choices", []):
                text = choice["delta"].get("content") or "" if "delta" in choice else choice["text"]
                out[choice["index"]] = out.get(choice["index"], "") + text
    return out


class Soak:
    def __init__(self, server, wanted):
        self.s, self.wanted = server, wanted
        self.killed = []
        self.open = threading.Event()  # clear: nobody asks, since the server is changed
        self.open.set()
        self.lock, self.inside = threading.Lock(), 0
        self.end, self.counts, self.wrong = False, {}, []

    def count(self, what):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    def fail(self, *what):
        with self.lock:
            self.wrong.append(what)

    def refused(self, status, headers):
        """True: the queue is full, and the response says so correctly."""
        if status != 429:
            return False
        if int(headers.get("Retry-After") or 0) < 1:
            self.fail("429 does not say when to come again")
        self.count("told to come again")
        time.sleep(0.01)
        return True

    def ask_whole(self, i, path, body):
        body = dict(body, stream=False)
        status, headers, data = self.s.ask("POST", path, body)
        if self.refused(status, headers):
            return
        if status != 200 or content_of(json.loads(data)) != self.wanted[i]:
            self.fail(path, body, status, data, self.wanted[i])
        self.count("whole answers")

    def ask_stream(self, i, path, body):
        status, headers, data = self.s.ask("POST", path, dict(body, stream=True))
        if self.refused(status, headers):
            return
        want = [choice["text"] if "text" in choice else choice["message"]["content"] for choice in self.wanted[i]["choices"]]
        got = stream_text(data)
        if status != 200 or not data.endswith(b"data: [DONE]\n\n") or [got.get(k, "") for k in range(len(want))] != want:
            self.fail("stream", path, body, status, data, want)
        self.count("streams")

    def send_broken(self, draw, body):
        """Half a request, garbage, or a client that does not wait, or reads slowly."""
        kind = draw.randrange(5)
        text = json.dumps(dict(body, max_tokens=200, stream=draw.random() < 0.7)).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(text)
        sent = [head + text, head + text[:draw.randrange(len(text))], head[:draw.randrange(1, len(head))],
                head + draw.randbytes(len(text)), draw.randbytes(draw.randrange(1, 300))][kind]
        with socket.create_connection(("127.0.0.1", self.s.port), timeout=CLIENT_WAITS_S) as connection:
            connection.sendall(sent)
            if kind == 0 and draw.random() < 0.3:
                for _ in range(3):
                    time.sleep(0.02)
                    connection.recv(20)
            time.sleep(draw.random() * 0.05)
        self.count("clients that left" if kind == 0 else "garbage")

    def probe_routes(self, draw):
        path = draw.choice(["/memory", "/metrics", "/slots", "/v1/models", "/health", "/openapi.json", "/", "/nothing"])
        status, _, _ = self.s.ask("GET", path)
        if status != (404 if path == "/nothing" else 200):
            self.fail(path, status)
        wrong = draw.choice([{"prompt": 1}, {"prompt": "x", "max_tokens": -2}, {"prompt": "x" * 9000}, {}, {"prompt": [1 << 40]}])
        if (status := self.s.ask("POST", TEXT, wrong)[0]) != 400:
            self.fail(wrong, status)
        self.count("looks and refusals")

    def ask(self, draw, requests):
        i = draw.randrange(len(requests))
        path, body = requests[i]
        kind = draw.random()
        if kind < 0.5:
            self.ask_whole(i, path, body)
        elif kind < 0.7 and path in (TEXT, CHAT) and "tools" not in body:
            self.ask_stream(i, path, body)
        elif kind < 0.9:
            self.send_broken(draw, body)
        else:
            self.probe_routes(draw)

    def client(self, number, requests):
        draw = random.Random(number)
        while not self.end:
            self.open.wait()
            with self.lock:
                self.inside += 1
            killed, begun = self.s, time.time()
            try:
                self.ask(draw, requests)
            except Exception as error:  # also an answer that was cut off
                if killed not in self.killed:
                    self.fail(repr(error), traceback.format_exc(), killed.ask("GET", "/slots")[2], time.time() - begun)
            with self.lock:
                self.inside -= 1


def resident(s):
    with open(f"/proc/{s.child.pid}/status", encoding="ascii") as file:
        return int(re.search(r"VmRSS:\s*(\d+)", file.read())[1])


def reference_answers(nibble, model, requests):
    """The answers of each request alone."""
    s = Server(nibble, model, "-c", "700", "--parallel", "1")
    wanted = []
    for path, body in requests:
        status, value = s.post(path, dict(body, stream=False))
        assert status == 200, (path, body, value)
        wanted.append(content_of(value))
    s.end()
    return wanted


def start_server(nibble, model, folder, options):
    return Server(nibble, model, "-c", "700", "--parallel", "6", "--queue", "4", "--cache-size", "1400", "--draft-max", "6",
                  "--draft-min", "2", "--latency", "20", "--prefix-cache", folder, "--prefix-cache-size", "4M", *options)


def watch(soak, seconds):
    """KiB by which resident memory grew, at most, after the server was warm."""
    begun, warm, max_used = time.time(), 0, 0
    while time.time() < begun + seconds and not soak.wrong:
        now = resident(soak.s)
        if time.time() < begun + min(WARM_S, seconds / 3):
            warm = max(warm, now)
        max_used = max(max_used, now)
        time.sleep(min(0.25, seconds / 10))
    return max_used - warm


def tokens_read_back(s, requests, wanted):
    """Tokens of a prompt that the killed server computed and this one read."""
    path, body = requests[1]
    status, value = s.post(path, dict(body, stream=False))
    check("after SIGKILL the same prompt has the same answer", status == 200 and content_of(value) == wanted[1], value)
    return value["usage"]["prompt_tokens_details"]["cached_tokens"]


def check_cap(s):
    cap, peak = s.get("/memory")[1]["tiers"]["ram"]["cap"], s.peak()
    check(f"the cap is kept: {peak >> 10} of {cap >> 10} KiB" if cap else "there is no cap", not cap or peak <= cap, peak)


def kill(soak, nibble, model, folder, options):
    soak.open.clear()
    soak.killed.append(soak.s)
    soak.s.end(signal.SIGKILL)
    while soak.inside:
        time.sleep(0.01)
    soak.s = start_server(nibble, model, folder, options)


def main():
    nibble, model, seconds, *options = sys.argv[1:]
    seconds, folder = float(seconds), os.path.abspath("soak-cache")
    requests = cases(3 if seconds < 60 else 12)
    wanted = reference_answers(nibble, model, requests)
    s = start_server(nibble, model, folder, options)
    s.post(requests[1][0], dict(requests[1][1], stream=False))
    soak = Soak(s, wanted)
    threads = [threading.Thread(target=soak.client, args=(i, requests)) for i in range(8)]
    for thread in threads:
        thread.start()
    grown = [watch(soak, seconds / 2)]
    check_cap(soak.s)
    kill(soak, nibble, model, folder, options)
    check("what the killed server kept is found", tokens_read_back(soak.s, requests, wanted) >= 64)
    soak.open.set()
    grown.append(watch(soak, seconds / 2))
    soak.end = True
    for thread in threads:
        thread.join()
    deadline, left = time.time() + 20, True
    while left and time.time() < deadline:
        left = soak.s.get("/slots")[1] or soak.s.get("/memory")[1]["requests"]["bodies"]
    check("nothing of them stays", not left, left)
    numbers = soak.s.ask("GET", "/metrics")[2].decode()
    check_cap(soak.s)
    code, said = soak.s.end()
    print(f"# {seconds:.0f} s: " + ", ".join(f"{n} {what}" for what, n in sorted(soak.counts.items())) +
          f"; resident memory grew by {grown[0]} and {grown[1]} KiB")
    print("# " + "; ".join(re.findall(r"^nibble_((?:answers_paused|draft_tokens_accepted|prefix_disk_\w+)\S* \d\S*)$", numbers, re.M)))
    check("every answer is the one that was computed alone, and none is lost", not soak.wrong, soak.wrong[:3])
    check("answers came", soak.counts.get("whole answers", 0) + soak.counts.get("streams", 0) > 0, soak.counts)
    if seconds >= 60:
        check("resident memory is flat", max(grown) <= GROWS, grown)
    check("SIGTERM ends it with 0, and nothing was said of faults", code == 0 and "error" not in said.lower(), (code, said))
    finish()


main()
