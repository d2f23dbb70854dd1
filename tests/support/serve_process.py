"""The server as a process: keys, clients at the same time and disconnecting, signals, sockets, caps, several models."""
import os
import shutil
import signal
import subprocess
import threading
import time

from server import Server, check, text_lines, text_of
from serve_common import (
    nibble, script, random_model, ANSWER, USER, CHAT, TEXT, LONG, content, param, raw, ends, loaded, until)


def keys():
    with open("keys", "w") as file:
        file.write("from-file\n")
    s = Server(nibble, script, "--api-key", "secret-one", "--api-key-file", "keys", "-v")
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer secret-on"},
                    {"Authorization": "Bearer secret-onee"}, {"Authorization": "secret-one"}, {"x-api-key": ""}):
        status, value = s.get("/v1/models", headers)
        check(f"{headers} is no key", status == 401 and value["error"]["type"] == "authentication_error", value)
    for headers in ({"Authorization": "Bearer secret-one"}, {"authorization": "bearer from-file"},
                    {"x-api-key": "secret-one"}):
        check(f"{headers} is one", s.get("/v1/models", headers)[0] == 200)
    check("with a key any name will do, as behind a proxy", s.get("/v1/models", {"x-api-key": "secret-one", "Host": "a.example"})[0] == 200)
    check("what is not there needs a key, too", s.get("/nothing")[0] == 401)
    check("health needs none", s.get("/health")[0] == 200)
    s.ask("GET", "/a%0Ab%1B")
    code, said = s.end()
    check("-v says what was asked, on a line of its own", "GET /v1/models: 200, " in said and "GET /a\\nb\\x1b: 401" in said, said)
    check("keys are not said", "secret-one" not in said and "from-file" not in said and code == 0, said)


def alike():
    s = Server(nibble, random_model, "-c", "4000", "--parallel", "4")
    bodies = [{"prompt": "The prompt" + " of one" * (i % 3) + str(i // 2), "seed": i // 2, "temperature": 1.2,
               "max_tokens": 60, "ignore_eos": True, "presence_penalty": 0.5 * (i % 2)} for i in range(8)]
    alone = [s.post(TEXT, body)[1]["choices"][0]["text"] for body in bodies]
    together = [None] * 8

    def ask(i):
        together[i] = s.post(TEXT, bodies[i])[1]["choices"][0]["text"] if i % 2 else \
            text_of(s.stream(TEXT, bodies[i]))[0]
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check("8 at a time say what each says alone", together == alone, (together, alone))
    check("and that is not always the same", len(set(alone)) > 4, alone)
    ends(s)
    s = Server(nibble, random_model + "-chat", "-c", "500")
    for path, body in ((TEXT, {"prompt": "a", "logprobs": 5}), (CHAT, {"messages": USER, "logprobs": True, "top_logprobs": 20})):
        status, value = s.post(path, dict(body, max_tokens=200, seed=1, temperature=2, ignore_eos=True))
        said = value["choices"][0]["logprobs"] if status == 200 else value
        check("rows that no token belongs to have no text", status == 200 and
              len(said["tokens"] if path == TEXT else said["content"]) == 200, said)
    s.end()
    s = Server(nibble, random_model, "-c", "500", "--parallel", "2", "--draft-model", random_model, "--draft-max", "4",
               "--draft-min", "4")
    check("a draft model changes nothing", [s.post(TEXT, body)[1]["choices"][0]["text"] for body in bodies[:4]] == alone[:4])
    numbers = dict(line.rsplit(" ", 1) for line in text_lines(s.ask("GET", "/metrics")[2]) if line[0] != "#")
    made, right = (float(numbers[f"nibble_draft_tokens{kind}_total"]) for kind in ("", "_accepted"))
    check("and is sometimes right", made > right > 0, (made, right))
    s.end()
    code, said = Server(nibble, random_model, "--models", "a=" + script, "--draft-model", random_model).end(None)
    check("it is for one model", code == 2 and "--draft-model" in said, (code, said))


def defaults():
    """Options of sampling are for requests that leave them out."""
    body, all_of_it = {"prompt": "x", "ignore_eos": True}, dict(temperature=1.2, top_k=7, max_tokens=5, seed=3, samplers="tk")
    s = Server(nibble, random_model, "-c", "500")
    said = s.post(TEXT, {**body, **all_of_it})[1]["choices"]
    same = s.post(TEXT, {**body, **all_of_it, "samplers": ["temperature", "top_k"]})[1]["choices"]
    other = s.post(TEXT, {**body, **all_of_it, "seed": 4})[1]["choices"]
    check("samplers by letter and by name", said == same, (said, same))
    check("an unknown one is refused", param(s.post(TEXT, {**body, "samplers": ["infill"]})) == (400, "samplers"))
    s.end()
    s = Server(nibble, random_model, "-c", "500", "--temp", "1.2", "--top-k", "7", "-n", "5", "--seed", "3", "--sampler-seq", "tk", "--ignore-eos")
    check("a server's options are the defaults", s.post(TEXT, {"prompt": "x"})[1]["choices"] == said)
    check("and those of a request are its own", s.post(TEXT, {"prompt": "x", "seed": 4})[1]["choices"] == other)
    status, value = s.post("/api/generate", {"prompt": "x", "stream": False, "raw": True})
    check("in Ollama's API, too", value["eval_count"] == 5, value)
    s.end()
    code, err = Server(nibble, random_model, "--samplers", "nothing").end(None)
    check("a wrong one is refused before listening", code == 2 and "nothing" in err, err)


def leaves():
    """One place and a queue of one; clients that disconnect."""
    s = Server(nibble, random_model, "-c", "16000", "--parallel", "1", "--queue", "1")
    first = raw(s, dict(LONG, stream=True))
    first.recv(100)
    second = raw(s, LONG)
    deadline = time.time() + 20
    status = 0
    while status != 429 and time.time() < deadline:  # the second one may not have arrived
        status, headers, _ = s.ask("POST", TEXT, dict(LONG, max_tokens=1))
    check("a full queue is 429", status == 429 and int(headers["Retry-After"]) > 0, status)
    begun = time.time()
    first.close()
    second.close()
    while status == 429 and time.time() < begun + 20:
        status, headers, _ = s.ask("POST", TEXT, dict(LONG, max_tokens=1))
    check("who closes the connection frees its share", status == 200, status)
    numbers = s.ask("GET", "/metrics")[2].decode()
    check("without an end to what was asked", "nibble_answers_cancelled_total 2\n" in numbers, numbers)
    first = raw(s, dict(LONG, stream=True))
    first.recv(100)
    s.child.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    code, said = s.end()
    check("a second signal stops at once", code == 128 + signal.SIGTERM, (code, said))


def capped():
    """Bodies of the maximum size, eight at a time, and answers."""
    cap = 28 << 20
    s = Server(nibble, random_model, "-c", "128", "--parallel", "4", "--ram", str(cap), "--embeddings")
    bodies = [{"prompt": f"{i}" + "x" * 60, "seed": i, "max_tokens": 60, "ignore_eos": True, "pad": "y" * 60000 * (i % 4)}
              for i in range(8)]
    answers = []

    def ask(i):
        for _ in range(4):
            answers.append(s.post(TEXT, bodies[i])[0])
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check("8 clients are answered under --ram", answers == [200] * 32, answers)
    status, value = s.post(TEXT, {"prompt": "x", "logprobs": 5, "ignore_eos": True, "max_tokens": 100})
    check("probabilities have memory of their own", status == 200, value)
    got = param(s.post(TEXT, {"prompt": "x", "logprobs": 5, "n": 16, "max_tokens": 100}))
    check("or are refused", got == (400, "logprobs"), got)
    check("embeddings, too", s.post("/v1/embeddings", {"input": ["x" * 100] * 4})[0] == 200)
    status, value = s.post(TEXT, {"prompt": "x", "grammar": 'root ::= "a"'})
    check("a grammar has the engine's memory, not that of a body", status == 200 and value["choices"][0]["text"] == "a", value)
    check("and the cap is kept", s.peak() <= cap, s.peak())
    s.end()


def shared_context():
    """Without --parallel, a cap that cannot hold four contexts: as many as leave the weights in memory, for all answers."""
    options = ("-c", "8000", "--ram", "25M")
    s = Server(nibble, random_model, *options)
    prompts = [{"prompt": "x" * 2000 + str(i), "max_tokens": 2000, "ignore_eos": True, "seed": i} for i in range(4)]
    answers = []
    threads = [threading.Thread(target=lambda b=b: answers.append(s.post(TEXT, b)[0])) for b in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check("answers that together are longer than the context take turns", answers == [200] * 4, answers)
    check("and the cap is kept with them", s.peak() <= 25 << 20, s.peak())
    code, said = s.end()
    check("the context is reported", "8000 tokens of context each and 8000 together" in said and "streamed" not in said, said)
    done = subprocess.run([nibble, "serve", random_model, "--parallel", "4", "--port", "0", *options], capture_output=True,
                          text=True)
    s = Server(nibble, random_model, "--ram", "40M", "-v")
    check("without -c one answer may have all of it", s.post(TEXT, dict(prompts[0], prompt="x", max_tokens=10))[0] == 200)
    code, said = s.end()
    check("and --ram allows more", "of context each; Ctrl-C ends" in said, said)
    check("--parallel 4 is four contexts, or refused", done.returncode == 3 and "too small" in done.stderr, done)


def kept():
    """The prefix cache on disk: the next server reads the files of a killed one."""
    body = {"prompt": "A long beginning. " * 10, "seed": 3, "max_tokens": 8, "ignore_eos": True}
    seen = []
    for code in (signal.SIGKILL, signal.SIGTERM):
        s = Server(nibble, random_model, "-c", "512", "--prefix-cache", "kept", "--prefix-cache-size", "64M")
        status, value = s.post(TEXT, body)
        deadline = time.time() + 20
        while b"nibble_prefix_disk_bytes 0\n" in s.ask("GET", "/metrics")[2] and time.time() < deadline:
            time.sleep(0.02)
        seen.append((value["choices"][0]["text"], value["usage"]["prompt_tokens_details"]["cached_tokens"]))
        s.end(code)
    check("after a kill what was computed is read", seen[0][0] == seen[1][0] and seen[0][1] == 0 and seen[1][1] >= 64, seen)
    check("what is kept is its owner's alone", os.stat("kept").st_mode & 0o777 == 0o700)


def several():
    """Two models of which one may be loaded at a time."""
    shutil.copytree(script, "damaged", dirs_exist_ok=True)
    s = Server(nibble, None, "--models", f"a={script},b={random_model}-chat,c=damaged", "--models-max", "1", "-c", "16000",
               "--parallel", "2", "-v")
    with open("damaged/model.safetensors", "r+b") as file:
        file.truncate(200)
    check("models are listed before they are loaded", loaded(s) == {"a": "unloaded", "b": "unloaded", "c": "unloaded"})
    chat = {"messages": USER, "max_tokens": 20, "options": {"num_predict": 5}}
    check("a model is loaded when it is asked for", content(s.post(CHAT, dict(chat, model="a"))[1]) == ANSWER and
          loaded(s) == {"a": "loaded", "b": "unloaded", "c": "unloaded"}, loaded(s))
    status, value = s.post(CHAT, dict(chat, model="b", seed=1))
    check("and the idle one goes for another", status == 200 and value["model"] == "b" and loaded(s)["a"] == "unloaded" and
          loaded(s)["b"] == "loaded", value)
    status, value = s.post(CHAT, dict(chat, model="x"))
    check("an unknown one is 404", status == 404 and value["error"]["code"] == "model_not_found" and
          value["error"]["param"] == "model" and value["error"]["type"] == "not_found_error", value)
    check("in every way of asking", s.post("/api/chat", dict(chat, model="x"))[0] == 404 and
          s.post("/v1/messages", dict(chat, model="x"))[1]["error"]["type"] == "not_found_error" and
          s.post("/tokenize", {"model": "x", "content": "a"})[0] == 404 and s.post("/api/show", {"model": "x"})[0] == 404)
    check("a name is a text", param(s.post(CHAT, dict(chat, model=1))) == (400, "model"))
    first = raw(s, dict(LONG, model="b", stream=True))
    first.recv(100)
    status, headers, _ = s.ask("POST", CHAT, dict(chat, model="a"))
    check("one that answers stays: others come again", status == 503 and int(headers["Retry-After"]) > 0 and
          loaded(s)["b"] == "loaded", status)
    check("and it goes on", first.recv(100) != b"")
    first.close()
    check("until its client leaves", until(lambda: s.post(CHAT, dict(chat, model="a"))[0] == 200))
    status, value = s.post(CHAT, dict(chat, model="c"))
    check("one that is damaged says so", status == 500 and "c cannot be loaded" in value["error"]["message"], value)
    check("without a name it is the first", s.post(CHAT, chat)[1]["model"] == "a")
    check("Ollama's tag means nothing", s.post("/api/chat", dict(chat, model="b:latest", stream=False))[1]["model"] == "b")
    ps = s.get("/api/ps")[1]["models"]
    check("those that are loaded are listed", [m["name"] for m in ps] == ["b"] and
          len(s.get("/api/tags")[1]["models"]) == 3, ps)
    for wrong in ("5 minutes", {}, "", "m", "1"+"0"*400+"x"):
        status, value = s.post("/api/chat", dict(chat, model="b", keep_alive=wrong))
        check(f"keep_alive {str(wrong)[:12]!r} is refused", status == 400 and "keep_alive" in value["error"], value)
    s.post("/api/chat", dict(chat, model="b", keep_alive="1h30m", stream=False))
    left = time.mktime(time.strptime(s.get("/api/ps")[1]["models"][0]["expires_at"], "%Y-%m-%dT%H:%M:%SZ")) - \
        time.mktime(time.gmtime())
    check("keep_alive says when it goes", 5390 < left <= 5400, left)
    status, value = s.post("/api/generate", {"model": "b", "keep_alive": 0})
    check("at once, when that is asked", value["done_reason"] == "unload" and until(lambda: s.get("/api/ps")[1]["models"] == []),
          value)
    check("what is gone need not go", s.post("/api/generate", {"model": "b", "keep_alive": 0})[1]["done_reason"] == "unload" and
          loaded(s)["b"] == "unloaded")
    s.post("/api/generate", {"model": "a", "keep_alive": "20ms"})
    check("or a while later", until(lambda: s.get("/api/ps")[1]["models"] == []))
    numbers = s.ask("GET", "/metrics")[2].decode()
    check("with none loaded there are metrics and memory", "nibble_models_loaded 0\n" in numbers and
          s.get("/memory")[0] == 200, numbers)
    results = []
    threads = [threading.Thread(target=lambda i=i: results.append(s.post(CHAT, dict(chat, model="a"))[0])) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check("several wait for one load", results == [200] * 6, results)
    code, said = s.end()
    check("loads are said with -v", code == 0 and "loaded a in " in said and "unloaded b" in said, said)
    for models in ("a=none-there", f"a={script},a={random_model}", "=x", f"={script}"):
        code, said = Server(nibble, None, "--models", models).end()
        check(f"--models {models[:12]} is refused at the start", code in (2, 4) and said, (code, said))


def fitting():
    """Models that fit together under --ram stay; for one that does not fit others are unloaded, or it is refused."""
    cap = 40 << 20
    chat = random_model + "-chat"
    s = Server(nibble, None, "--models", f"a={random_model},b={chat}", "-c", "1000", "--ram", str(cap))
    body = {"prompt": "x" * 400, "seed": 1, "max_tokens": 20, "ignore_eos": True}
    both = [s.post(TEXT, dict(body, model=m))[0] for m in "abab"]
    check("two that fit are both loaded", both == [200] * 4 and set(loaded(s).values()) == {"loaded"}, (both, loaded(s)))
    check("under their cap", s.peak() <= cap, s.peak())
    s.end()
    s = Server(nibble, None, "--models", f"a={random_model},b={chat}", "-c", "6000", "--ram", str(cap))
    one = s.post(TEXT, dict(body, model="a"))[1]["choices"][0]["text"]
    check("what is promised counts as well as what is there", s.post(TEXT, dict(body, model="b"))[0] == 200 and
          loaded(s) == {"a": "unloaded", "b": "loaded"}, loaded(s))
    check("and comes again as it was", s.post(TEXT, dict(body, model="a"))[1]["choices"][0]["text"] == one)
    check("under the cap", s.peak() <= cap, s.peak())
    s.end()
    s = Server(nibble, None, "--models", f"a={random_model},b={chat}", "-c", "32000", "--ram", str(cap))
    status, value = s.post(TEXT, dict(body, model="a"))
    check("what fits never is 507", status == 507 and value["error"]["code"] == "out_of_memory" and
          "a does not fit" in value["error"]["message"], (status, value))
    check("again, and the server goes on", s.post(TEXT, dict(body, model="a"))[0] == 507 and s.get("/health")[0] == 200)
    s.end()


def sockets():
    path = os.path.abspath("socket")
    s = Server(nibble, script, "--host", path, "--alias", "other")
    check("a Unix socket is answered", s.get("/v1/models")[1]["data"][0]["id"] == "other")
    check("it is its owner's alone", os.stat(path).st_mode & 0o777 == 0o600)
    s.end(signal.SIGINT)
    check("it goes with the server", not os.path.exists(path))
    s = Server(nibble, script)
    taken = Server(nibble, script, "--port", str(s.port))
    code, said = taken.end()
    check("a port that is taken exits 2, and another one is named", code == 2 and "--port" in said, (code, said))
    s.end()
