"""Who and what is let in: keys, hosts, texts that no tokenizer takes, sockets that others left, files of users."""
import json
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time

from server import Server, check
from serve_common import nibble, random_model, script, raw, until, LONG, TEXT


def refused(*options, env=None):
    """(exit code, stderr) of a server that must not start."""
    return Server(nibble, script, *options, env=env).end()


def keyless():
    code, said = refused(env={"NIBBLE_API_KEY": ""})
    check("an empty key in the environment is refused as an empty file is", code == 2 and "API key is empty" in said, (code, said))
    for host in ("0.0.0.0", "::"):
        code, said = refused("--host", host)
        check(f"--host {host} without a key is refused", code == 2 and "--no-api-key" in said, (code, said))
    for options in (("--host", "0.0.0.0", "--no-api-key"), ("--host", "0.0.0.0", "--api-key", "k"), ("--host", "127.0.0.2")):
        s = Server(nibble, script, *options)
        check(f"{options} starts", s.port > 0, s.address)
        s.end()


def status_of(s, head):
    with socket.create_connection(("127.0.0.1", s.port), timeout=60) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n" + head + b"Connection: close\r\n\r\n")
        return int(connection.makefile("rb").readline().split()[1])


def hosts(s):
    for host in ("localhost:", "localhost:80a", "localhost:99999", "local host", "a/b", "u@localhost", "[::1", "[::1]x", "[]", "[::1]:-1",
                 "localhost:1:2", "::1", "<x>"):
        got = status_of(s, f"Host: {host}\r\n".encode())
        check(f"Host {host!r} is {'200' if host == 'localhost:' else '400'}", got == (200 if host == "localhost:" else 400), got)
    check("two hosts are 400", status_of(s, b"Host: localhost\r\nHost: localhost\r\n") == 400)
    check("other names are 403", status_of(s, b"Host: a.example\r\n") == 403)
    check("IPv6 has a form", status_of(s, b"Host: [::1]:80\r\n") == 200)


def tokenizer_bound():
    """A tokenizer whose regular expression needs exponential work."""
    shutil.copytree(random_model, "slow-words", dirs_exist_ok=True)
    with open("slow-words/tokenizer.json", encoding="utf-8") as file:
        tokenizer = json.load(file)
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "(a+)+[bc]"}, "behavior": "Isolated", "invert": False}, tokenizer["pre_tokenizer"]]}
    with open("slow-words/tokenizer.json", "w", encoding="utf-8") as file:
        json.dump(tokenizer, file)
    s = Server(nibble, "slow-words", "-c", "500")
    for path, body in ((TEXT, {"prompt": "a" * 400, "max_tokens": 1}), ("/tokenize", {"content": "a" * 400}),
                       ("/v1/embeddings", {"input": "a" * 400})):
        status, value = s.post(path, body)
        check(f"{path}: a text over the tokenizer's bound is 400", status == 400 and "tokenize" in value["error"]["message"],
              (status, value))
    check("others are answered", s.post("/tokenize", {"content": "ab"})[0] == 200)
    s.end()


def left_behind():
    """Whatever is at the path of the socket, a start ends soon."""
    os.mkfifo("fifo")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("full")
    listener.listen(0)
    waiting = []
    for _ in range(4):
        waiting.append(socket.socket(socket.AF_UNIX))
        waiting[-1].setblocking(False)
        waiting[-1].connect_ex("full")
    for path in ("fifo", "full"):
        try:
            done = subprocess.run([nibble, "serve", script, "--host", os.path.abspath(path)], capture_output=True, text=True, timeout=20)
            check(f"a {path} in the place of the socket is refused", done.returncode == 2 and os.path.exists(path), done)
        except subprocess.TimeoutExpired:
            check(f"a {path} in the place of the socket is refused", False, "it waits")
    for one in [listener, *waiting]:
        one.close()
    s = Server(nibble, script, "--host", os.path.abspath("full"))
    check("a socket without a listener is replaced", s.get("/health")[0] == 200)
    s.end()


def private_files():
    """A folder that exists is as open as its owner wants, files with texts of users are not."""
    os.mkdir("pages", 0o755)
    s = Server(nibble, random_model, "-c", "512", "--prefix-cache", "pages", "--prefix-cache-size", "64M")
    s.post(TEXT, {"prompt": "A long beginning. " * 10, "seed": 3, "max_tokens": 8, "ignore_eos": True})
    s.end(signal.SIGTERM)
    with open("in.jsonl", "w", encoding="ascii") as file:
        file.write(json.dumps({"custom_id": "a", "method": "POST", "url": TEXT, "body": {"prompt": "x", "max_tokens": 1}}) + "\n")
    subprocess.run([nibble, "batch", random_model, "-i", "in.jsonl", "-o", "out.jsonl", "-c", "100"], capture_output=True, check=True)
    files = ["out.jsonl", *(os.path.join("pages", name) for name in os.listdir("pages"))]
    modes = {name: stat.S_IMODE(os.stat(name).st_mode) for name in files}
    check("prompts and answers are stored for their owner alone", len(files) > 1 and set(modes.values()) == {0o600}, modes)


def closed_after(connection, wait=20):
    """Whether the server closes the connection."""
    connection.settimeout(wait)
    try:
        return connection.recv(1000) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


def drip(s, head, piece, seconds):
    """Seconds until the server closes a connection that sends `head` and then a piece now and then."""
    begun = time.time()
    with socket.create_connection(("127.0.0.1", s.port)) as connection:
        connection.sendall(head)
        connection.settimeout(0.1)
        while time.time() < begun + seconds:
            try:
                if connection.recv(1000) == b"":
                    break
            except TimeoutError:
                pass
            except ConnectionError:
                break
            try:
                connection.sendall(piece)
            except OSError:
                break
    return time.time() - begun


def slow_clients():
    """300 connections that send a byte now and then, and a server with 20 places."""
    post = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
    s = Server(nibble, random_model, "-c", "16000", "--connections", "20", "--parallel", "2")
    slow = []
    for i in range(300):
        slow.append(socket.create_connection(("127.0.0.1", s.port), timeout=60))
        slow[-1].sendall([b"GET /health HTTP/1.1\r\nX-", post + b"Content-Length: 100\r\n\r\n{"][i % 2])
    check("others are answered beside 300 slow connections", s.get("/health")[0] == 200 and
          s.post(TEXT, {"prompt": "x", "max_tokens": 1})[0] == 200)
    for one in slow:
        one.close()
    works, status, deadline = [], 200, time.time() + 20
    while status == 200 and time.time() < deadline:
        works.append(raw(s, dict(LONG, stream=True)))
        time.sleep(0.05)  # for its request, before another connection comes
        status, headers, data = s.ask("GET", "/v1/models")
    check("where all connections have work, others come again", status == 503 and int(headers["Retry-After"]) > 0, (status, data))
    check("but /health has room", s.get("/health")[0] == 200)
    for one in works:
        one.close()
    check("until they end", until(lambda: s.ask("GET", "/v1/models")[0] == 200, 180))
    s.end()
    s = Server(nibble, script, "--timeout", "1")
    for name, head, piece in (("headers", b"GET /health HTTP/1.1\r\n", b"X-A: b\r\n"),
                              ("a body", post + b"Content-Length: 100000\r\n\r\n", b" ")):
        took = drip(s, head, piece, 15)
        check(f"{name} that come slowly have a deadline", 0.5 < took < 14, took)
    with socket.create_connection(("127.0.0.1", s.port)) as connection:
        check("a connection without any request, too", closed_after(connection))
    s.end()


def own_address():
    """An address of this machine that is not its loopback; None: it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.connect(("192.0.2.1", 9))  # sends nothing
            return None if one.getsockname()[0].startswith("127.") else one.getsockname()[0]
        except OSError:
            return None


def one_address():
    """A machine whose answers take half of the places gets no more of them; others do."""
    address = own_address()
    if not address:
        print("skip a limit for each address: this machine has its loopback alone", flush=True)
        return
    s = Server(nibble, random_model, "-c", "16000", "--connections", "12", "--parallel", "2", "--host", "0.0.0.0", "--no-api-key")
    body = json.dumps(dict(LONG, stream=True)).encode()
    works, seen = [], []
    for _ in range(8):
        works.append(socket.create_connection((address, s.port), timeout=60))
        works[-1].sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        time.sleep(0.1)  # for its request, before another connection comes
    for place in (address, "127.0.0.1"):
        with socket.create_connection((place, s.port), timeout=60) as connection:
            connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            seen.append(connection.makefile("rb").readline().split()[1:2])
    check("one address has half of the places", seen == [[b"503"], [b"200"]], seen)
    for one in works:
        one.close()
    s.end()


def unread():
    """Clients of streams who read nothing of megabytes: what is kept for them has a bound, and others are answered."""
    os.mkdir("long")
    with open("long-answer", "w", encoding="ascii") as file:
        file.write(" ".join(f"{i:04}" * 500 for i in range(200)))
    subprocess.run([sys.executable, os.path.join(os.path.dirname(__file__), "script-model.py"), "long", "long-answer"], check=True)
    shutil.copyfile("script/chat_template.jinja", "long/chat_template.jinja")
    cap = 200 << 20
    s = Server(nibble, "long", "-c", "1000", "--parallel", "8", "--ram", str(cap))
    chat = {"messages": [{"role": "user", "content": "x"}], "n": 8, "temperature": 0}
    silent = []
    for _ in range(4):
        body = json.dumps(dict(chat, stream=True)).encode()
        silent.append(socket.socket())
        silent[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        silent[-1].connect(("127.0.0.1", s.port))
        silent[-1].sendall(b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    time.sleep(1)
    check("others are answered beside streams that nobody reads", s.post("/v1/chat/completions", dict(chat, n=1))[0] == 200)
    read = [b"".join(iter(lambda one=one: one.recv(1 << 20), b"")) for one in silent]
    check("what is kept for clients that do not read has a bound", not all(b"[DONE]" in got[-20:] for got in read), [len(got) for got in read])
    # less than what is kept of a stream, since a busy machine may give its client no time to read
    short = dict(chat, stream=True, n=1, max_tokens=200)
    check("what is read is whole", b"[DONE]" in s.ask("POST", "/v1/chat/completions", short)[2][-20:])
    check("and the cap is kept", s.peak() <= cap, (s.peak(), cap))
    s.end()


def health():
    """A model that is streamed from a file that goes away, changes, and comes back."""
    model = os.path.abspath("streamed")
    shutil.copytree(random_model, model, dirs_exist_ok=True)
    weights = os.path.join(model, "model.safetensors")
    for cap in range(6, 60):
        s = Server(nibble, model, "-c", "128", "--parallel", "1", "--ram", f"{cap}M", "-v")
        if s.port:
            break
        s.end()
    body = {"prompt": "x", "max_tokens": 2, "ignore_eos": True, "seed": 1}
    status, value = s.post(TEXT, body)
    check("a streamed model answers", status == 200 and s.get("/health")[0] == 200, value)
    os.rename(weights, weights + ".away")
    status, value = s.get("/health")
    check("without its file /health is 503 and says why", status == 503 and "model.safetensors" in value["error"]["message"], value)
    check("an answer fails, too", s.post(TEXT, body)[0] >= 500)
    os.rename(weights + ".away", weights)
    check("with the file it is well again", until(lambda: s.post(TEXT, body)[0] == 200) and s.get("/health")[0] == 200,
          s.get("/health"))
    os.utime(weights)
    status, value = s.get("/health")
    check("a changed file is one that no answer can use", status == 503 and "changed" in value["error"]["message"], value)
    answers = [until(lambda: s.post(TEXT, body)[0] == 200) for _ in range(2)]
    check("and which the next request opens again", all(answers) and s.get("/health")[0] == 200, s.get("/health"))
    shutil.copyfile(weights, weights + ".new")
    os.rename(weights + ".new", weights)
    check("so is another file of that name", until(lambda: s.post(TEXT, body)[0] == 200) and s.get("/health")[0] == 200)
    s.end()


def load_bodies(draw):
    """[(path, body)] for every address that takes a body, from small to as large as a body may be."""
    n = draw.choice([1, 20, 300, 3000, 60000])
    text, ids, user = "word, " * (n // 6) + "x", [draw.randrange(256) for _ in range(n)], {"role": "user", "content": "y" * n}
    few = {"max_tokens": 4, "ignore_eos": True, "stream": draw.random() < 0.3}
    return [("/tokenize", {"content": text, "with_pieces": True}), ("/tokenize", {"content": text}), ("/detokenize", {"tokens": ids}),
            ("/apply-template", {"messages": [user] * min(n, 40)}), ("/apply-template", {"messages": [dict(user, content="a")] * (n // 8 + 1)}),
            (TEXT, dict(few, prompt=text)), (TEXT, dict(few, prompt=ids)), (TEXT, dict(few, prompt="x", logprobs=5, max_tokens=60)),
            ("/v1/chat/completions", dict(few, messages=[user])), ("/v1/embeddings", {"input": [text[:50]] * (n // 50 + 1)}),
            ("/v1/responses", {"input": "y" * n, "max_output_tokens": 4}), ("/v1/messages", {"messages": [user], "max_tokens": 4}),
            ("/v1/messages/count_tokens", {"messages": [user]}), ("/api/chat", {"messages": [user], "options": {"num_predict": 4}}),
            ("/api/generate", {"prompt": "y" * n, "options": {"num_predict": 4}}), ("/api/embed", {"input": "y" * n}), ("/api/show", {"model": "z" * n}),
            ("/v1/completions", {"prompt": "x", "pad": [[[]]] * n})]


def queue_of_values(s):
    """Requests that wait, with bodies whose values take a MiB each: what is kept of them is little."""
    status = []

    def ask():
        status.append(s.ask("POST", TEXT, {"prompt": "x", "max_tokens": 100, "ignore_eos": True, "pad": [[[]]] * 2200})[0])
    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check("requests that wait take little memory", status == [200] * 16, status)


def loads(seconds=3):
    """Random loads on every address under a cap: each request has an answer, and the cap is kept."""
    cap = 30 << 20
    s = Server(nibble, random_model + "-chat", "-c", "128", "--parallel", "4", "--ram", str(cap), "--embeddings")
    status, _, data = s.ask("POST", "/tokenize", {"content": "ab " * 5000, "with_pieces": True})
    check("the tokens of a text need little more memory than their text", status == 200 and len(json.loads(data)["tokens"]) == 15000, data[:300])
    status, value = s.post("/tokenize", {"content": "ab " * 30000, "with_pieces": True})
    check("a reply for which no memory is reserved is refused", status == 413, (status, str(value)[:300]))
    queue_of_values(s)
    end, seen, wrong = time.time() + seconds, {}, []

    def ask(number):
        draw = random.Random(number)
        while time.time() < end and not wrong:
            bodies = [(p, b) for p, b in load_bodies(draw) if len(json.dumps(b)) < 380000]  # more is 413 at once
            path, body = draw.choice(bodies) if draw.random() < 0.9 else (draw.choice(
                ["/", "/openapi.json", "/health", "/v1/models", "/metrics", "/memory", "/slots", "/api/tags", "/api/ps", "/api/version"]), None)
            try:
                status, _, data = s.ask("POST" if body else "GET", path, body)
                seen[status] = seen.get(status, 0) + 1
                if status not in (200, 400, 404, 413, 429, 503):
                    wrong.append((path, status, data[:300]))
            except Exception as error:  # an answer that was cut off, or none
                wrong.append((path, repr(error)))
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    # clients that read nothing of large replies
    silent = []
    for _ in range(8):
        silent.append(socket.create_connection(("127.0.0.1", s.port)))
        body = json.dumps({"content": "ab " * 5000, "with_pieces": True}).encode()
        silent[-1].sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    for thread in threads:
        thread.join()
    for one in silent:
        one.close()
    check("each request has an answer", not wrong and seen.get(200, 0) > 0, (wrong[:3], seen))
    check("and the cap is kept", s.peak() <= cap, (s.peak(), cap))
    s.end()
