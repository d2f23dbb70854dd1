"""Checks of nibble batch, for tests/cli_batch.sh.
   python3 batch-checks.py NIBBLE MODEL plain|sanitized"""
import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import time

from server import check

nibble, model, build = sys.argv[1:]
TEXT, CHAT, EMBED = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"
WAITS_S = 300  # for a busy machine


def request(custom_id, body, url=TEXT, **more):
    return dict({"custom_id": custom_id, "method": "POST", "url": url, "body": body}, **more)


def text(i, n=8):
    return {"prompt": f"n{i}", "max_tokens": n, "temperature": 0, "ignore_eos": True}


def write(name, lines):
    with open(name, "w", encoding="utf-8") as file:
        file.writelines((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)


def read(name):
    with open(name, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def start(given, out, *options, **how):
    return subprocess.Popen([nibble, "batch", model, "-i", given, "-o", out, *options], stdin=how.pop("stdin", subprocess.DEVNULL),
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how)


def run(given, out, *options, **how):
    """(exit code, stdout, stderr)"""
    child = start(given, out, *options, **how)
    said, err = child.communicate(timeout=WAITS_S)
    return child.returncode, said, err


def summary(given, out, *options, code=0):
    found, said, err = run(given, out, "--json", *options)
    assert found == code, (found, err)
    return json.loads(said)


def by_id(lines):
    return {line["custom_id"]: line for line in lines}


def said(line):
    return [choice["text"] for choice in line["response"]["body"]["choices"]]


def texts(lines):
    return {line["custom_id"]: said(line) for line in lines}


def bytes_of(name):
    with open(name, "rb") as file:
        return file.read()


def check_order():
    lengths = [60, 2, 40, 3, 20, 4, 5, 6]
    write("ordered", [request(f"o{i}", text(i, n)) for i, n in enumerate(lengths)])
    code, _, err = run("ordered", "ordered.out", "--parallel", "4", "--order", "input")
    ids = [line["custom_id"] for line in read("ordered.out")]
    check("answers in the order of the input", code == 0 and ids == [f"o{i}" for i in range(len(lengths))], (code, ids, err))
    want = texts(read("ordered.out"))
    for kind in ("refill", "block", "row"):
        found = summary("ordered", f"{kind}.out", "--parallel", "3", "--schedule", kind)
        check(f"schedule {kind} gives the same answers", found["schedule"]["kind"] == kind and texts(read(f"{kind}.out")) == want, found)
    check("an unknown schedule exits 2", run("ordered", "none.out", "--schedule", "diagonal")[0] == 2)
    planned = summary("ordered", "planned.out")
    check("without --parallel a plan or the default decides", 1 <= planned["schedule"]["block"] <= 16 and texts(read("planned.out")) == want, planned)


def check_answers():
    requests = [request("text", text(1)), request("two", {**text(2), "prompt": ["a", "b"]}),
                request("chat", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}, CHAT),
                request("vector", {"input": "abc"}, EMBED), request("é\n\"", text(3)),
                request("other", {"input": "abc", "max_output_tokens": 4}, "/v1/responses")]
    write("in", requests)
    code, out, err = run("in", "out")
    lines = by_id(read("out"))
    check("a request a line, and a line an answer", code == 0 and out == "" and set(lines) == {r["custom_id"] for r in requests}, (code, err, lines))
    check("in OpenAI's form", all(set(line) == {"id", "custom_id", "response", "error"} and line["error"] is None and
                                  set(line["response"]) == {"status_code", "request_id", "body"} and
                                  line["response"]["status_code"] == 200 for line in lines.values()), lines)
    check("each with an id of its own", len({line["id"] for line in lines.values()}) == len(lines))
    alone = subprocess.run([nibble, "run", model, "--raw", "-p", "n1", "-n", "8", "--temp", "0", "--ignore-eos", "--json", "--special"],
                           stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    check("the answer is that of nibble run", said(lines["text"]) == [json.loads(alone.stdout)["text"]], (lines["text"], alone.stdout))
    check("a request with two prompts has two answers", len(said(lines["two"])) == 2)
    check("chats, embeddings and responses too", lines["chat"]["response"]["body"]["object"] == "chat.completion" and
          len(lines["vector"]["response"]["body"]["data"]) == 1 and lines["other"]["response"]["body"]["object"] == "response", lines)
    write("special", [request("s", {"messages": [{"role": "user", "content": "a<u>b"}], "max_tokens": 1}, CHAT)])
    counts = [summary("special", f"special{i}", *flags)["timings"]["prompt_n"] for i, flags in enumerate(([], ["--special-in-messages"]))]
    check("special tokens that messages name stay text, but for --special-in-messages", counts == [12, 10], counts)
    check("the summary counts them", "6 lines answered;" in err, err)
    before = bytes_of("out")
    s = summary("in", "out")
    check("a second run has nothing to do", (s["answered"], s["kept"], s["retried"]) == (0, 6, 0) and bytes_of("out") == before, s)
    requests[0]["body"] = text(9)
    requests[4]["url"] = CHAT  # whose prompt is none: refused
    write("in", requests)
    s = summary("in", "out", code=1)
    check("a line whose text changed is asked again", [s[k] for k in ("answered", "refused", "invalid", "failed", "retried", "kept")] == [1, 1, 0, 0, 2, 4], s)
    last = by_id(read("out"))
    check("the last line of a request counts", len(read("out")) == 8 and said(last["text"]) != said(lines["text"]) and
          last["é\n\""]["response"]["status_code"] == 400, last)
    s = summary("in", "out", code=1)
    check("what was refused is asked again, and written once", [s[k] for k in ("answered", "refused", "retried", "kept")] == [0, 1, 1, 5] and len(read("out")) == 8, s)
    requests[0]["body"] = text(1)
    requests[4]["url"] = TEXT
    write("in", requests)
    s = summary("in", "out")
    check("the old text, too", (s["answered"], s["retried"], s["kept"]) == (2, 2, 4) and
          said(by_id(read("out"))["text"]) == said(lines["text"]), s)


def check_numbers():
    spelled = ["0.1", "1e5", "100000000000000000000"]
    write("numbers", [f'{{"custom_id": "{x}", "url": "{TEXT}", "body": {{"prompt": "x", "json_schema": {{"enum": [{x}]}}}}}}' for x in spelled])
    s = summary("numbers", "numbers-out")
    found = texts(read("numbers-out"))
    check("numbers of a schema are said as they are spelled", s["answered"] == 3 and {k: v[0].strip() for k, v in found.items()} == {x: x for x in spelled}, found)


def check_bad_lines():
    write("in", ["\ufeff" + json.dumps(request("a", text(1))), "", "nonsense", "[1]", request("a", text(2)), request(7, text(3)), "{\"custom_id\": \"b\"",
                 {"custom_id": "c", "url": TEXT}, request("get", text(4), method="GET"), request("where", {}, "/v1/elsewhere"),
                 request("local", {}, "/health"), request("stream", {**text(5), "stream": True}), request("hot", {**text(6), "temperature": 9}),
                 request("large", {**text(7), "prompt": "x" * 2000}), request("larger", {"prompt": "x" * 200000}), request("z", text(8))])
    code, _, err = run("in", "bad", "--max-body", "1K")
    lines = read("bad")
    wrong = {line["error"]["line"]: line["error"]["code"] for line in lines if line["error"]}
    status = {line["custom_id"]: line["response"]["status_code"] for line in lines if line["response"]}
    check("bad lines do not end a run, which exits 1", code == 1 and "13 lines have no answer" in err and len(lines) == 15, (code, err, lines))
    check("lines that are no requests have their numbers", wrong == {3: "invalid_json_line", 4: "invalid_request", 5: "duplicate_custom_id",
          6: "invalid_request", 7: "invalid_json_line", 8: "invalid_request", 15: "line_too_long"}, wrong)
    check("refused requests have a response", status == {"a": 200, "get": 405, "where": 404, "local": 405, "stream": 400, "hot": 400,
                                                         "large": 413, "z": 200}, status)
    check("the summary tells them apart", "2 lines answered, 6 refused (the response says why), 7 not requests" in err, err)
    before = bytes_of("bad")
    s = summary("in", "bad", "--max-body", "1K", code=1)
    check("they are asked again, and written once", [s[k] for k in ("answered", "refused", "invalid", "retried", "kept")] == [0, 6, 7, 13, 2] and
          bytes_of("bad") == before, s)
    write("in", [request("a", text(1)), "", request("good", text(2)), "[1]", *[request(f"{i}", text(i)) for i in range(11)]])
    s = summary("in", "bad", "--max-body", "1K", code=1)
    check("a line that is a request now has an answer", [s[k] for k in ("answered", "refused", "invalid", "retried", "kept")] == [12, 0, 1, 1, 1] and
          len(read("bad")) == 15 + 12, s)


def check_files():
    write("in", [request(f"{i}", text(i)) for i in range(4)])
    code, _, err = run("nowhere", "out")
    check("an input that is not there exits 2", code == 2 and "nowhere" in err, (code, err))
    code, _, err = run(".", "out")
    check("so does a folder", code == 2 and "found the folder" in err, (code, err))
    code, _, err = run("in", "in")
    check("and an output that is the input", code == 2 and "found the same one" in err and len(read("in")) == 4, (code, err))
    code, _, err = run("/proc/self/mem", "new")
    check("an input that cannot be read exits 1", code == 1 and "/proc/self/mem: cannot read" in err, (code, err))
    code, _, err = run("in", "no/such/folder")
    check("an output that cannot be made exits 1", code == 1 and "no/such/folder" in err, (code, err))
    for name, content in (("mine", "hello"), ("lines", "hello\n")):
        with open(name, "w", encoding="utf-8") as file:
            file.write(content)
        code, _, err = run("in", name)
        check(f"another file is not continued ({name})", code == 2 and "give another file" in err and bytes_of(name).decode() == content, (code, err))
    code, _, err = run("in", "/dev/full")
    check("a full disk exits 1", code == 1 and "0 lines answered" in err and "/dev/full: cannot write: No space left" in err, (code, err))
    write("locked", [])
    with open("locked", "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        code, _, err = run("in", "locked")
    check("an output that another process writes exits 1", code == 1 and "another process" in err, (code, err))
    code, _, err = run("in", "-", "--json")
    check("--json and -o - exit 2", code == 2, (code, err))
    code, _, err = run("in", "out", "--parallel", "none")
    check("no number of sequences exits 2", code == 2, (code, err))


def check_limit():
    """A file with a size limit."""
    write("in", [request(f"{i}", text(i)) for i in range(12)])
    whole = summary("in", "whole")
    size = len(bytes_of("whole"))
    code, _, err = run("in", "limited", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, size // 2)))
    some = read("limited")
    check("a file at its limit exits 1 and has whole lines", code == 1 and 0 < len(some) < 12 and "limited: cannot write" in err, (code, err, some))
    check("and says what is next", "the same command continues" in err, err)
    s = summary("in", "limited")
    check("the same command continues", s["answered"] + s["kept"] == 12 and s["kept"] == len(some) and
          texts(read("limited")) == texts(read("whole")), (s, whole))


def check_torn():
    before = bytes_of("whole")
    for n in (1, 20, len(before.splitlines()[-1])):
        with open("torn", "wb") as file:
            file.write(before[:-1] if n > 20 else before + before[:n])
        s = summary("in", "torn")
        check(f"a torn last line of {n} bytes is cut off", texts(read("torn")) == texts(read("whole")) and s["answered"] == (n > 20), s)


def check_kills():
    n = 60
    write("in", [request(f"{i}", text(i, 20 + 97 * i % 80)) for i in range(n)] + ["nonsense", request("3", text(3))])
    summary("in", "kill-none", code=1)
    expected = texts(line for line in read("kill-none") if line["response"])
    kills = done = 0
    while done < n and kills < 200:
        child = start("in", "killed", "--parallel", "4")
        begun = os.path.getsize("killed") if os.path.exists("killed") else 0
        last = time.time() + WAITS_S
        while child.poll() is None and time.time() < last and (not os.path.exists("killed") or os.path.getsize("killed") <= begun):
            time.sleep(0.002)
        child.kill()
        child.communicate()
        kills += 1
        done = bytes_of("killed").count(b"\n")
    s = summary("in", "killed", code=1)
    lines = read("killed")
    seen = texts(line for line in lines if line["response"])
    check("killed runs continue to the same answers", seen == expected and len(lines) == n + 2, ([(i, seen.get(i), expected[i]) for i in expected if seen.get(i) != expected[i]], s))
    check("of several runs", kills > 2, kills)
    check("and the same errors", sorted(line["error"]["line"] for line in lines if line["error"]) == [n + 1, n + 2], lines[-2:])


def check_signals():
    n = 2000  # seconds of work: the signal arrives long before the last answer
    write("long", [request(f"{i}", text(i, 20 if i < 3 else 12000)) for i in range(n)])
    for number, expected in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        name = f"ended-{number}"
        child = start("long", name)
        last = time.time() + WAITS_S
        while time.time() < last and (not os.path.exists(name) or bytes_of(name).count(b"\n") < 3):
            time.sleep(0.01)
        child.send_signal(number)
        _, err = child.communicate(timeout=WAITS_S)
        lines = len(read(name))
        check(f"signal {number} ends a run with whole lines", child.returncode == expected and 3 <= lines < n and
              f"{lines} lines answered" in err and "the same command continues" in err, (child.returncode, lines, err))


def check_pipes():
    child = start("-", "-", stdin=subprocess.PIPE)
    seen = []
    for i in range(3):  # the input stays open: an answer does not wait for the next request
        child.stdin.write(json.dumps(request(f"{i}", text(i))) + "\n")
        child.stdin.flush()
        seen.append(json.loads(child.stdout.readline())["custom_id"])
    rest, err = child.communicate(json.dumps(request("last", text(9))), timeout=WAITS_S)  # without a newline
    check("stdin and stdout", child.returncode == 0 and seen == ["0", "1", "2"] and json.loads(rest)["custom_id"] == "last", (seen, rest, err))
    child = start("-", "many", stdin=subprocess.PIPE)
    _, err = child.communicate("".join("x\n" for _ in range(3000)), timeout=WAITS_S)
    check("more lines than the batch holds", child.returncode == 1 and len(read("many")) == 3000, err)
    child = start("in", "-", )
    child.stdout.readline()
    child.stdout.close()
    err = child.stderr.read()
    check("a closed pipe exits 1", child.wait(WAITS_S) == 1, err)


def check_cap():
    """Many lines under a cap: no line stays in memory."""
    n = 100000
    answered = '"response":{"status_code":200,"request_id":"r","body":{"x":"' + "y" * 300 + '"}},"error":null}'
    write("one", [request("one", text(1))])
    summary("one", "one-out")
    asked = read("one-out")[0]["id"][len("batch_req_"):][:16]  # of the text, not of the custom_id
    write("large", (request(f"request-{i}", text(1)) for i in range(n)))
    write("large-out", ('{"id":"batch_req_%s%08x","custom_id":"request-%d",%s' % (asked, i, i, answered) for i in range(n - 5)))
    s = summary("large", "large-out", "--ram", "48M")
    check("many lines are kept", (s["answered"], s["kept"]) == (5, n - 5), s)
    check("within --ram", s["memory"]["rss_peak"] <= 48 << 20, s["memory"])
    child = start("-", "new", "--ram", "48M", stdin=subprocess.PIPE)
    try:
        child.stdin.writelines(f"{i}\n" for i in range(60000))
        child.stdin.close()
    except BrokenPipeError:
        pass
    child.stdin = None
    _, err = child.communicate(timeout=WAITS_S)
    check("numbers alone are no requests", child.returncode == 1 and len(read("new")) == 60000, err)
    child = start("-", "ids", "--ram", "48M", stdin=subprocess.PIPE)
    try:
        child.stdin.writelines(json.dumps(request(f"{i}", {})) + "\n" for i in range(60000))
        child.stdin.close()
    except BrokenPipeError:
        pass
    child.stdin = None
    _, err = child.communicate(timeout=WAITS_S)
    check("from a pipe only so many ids under --ram", child.returncode == 3 and "give a file with -i" in err and len(read("ids")) == 49152, (child.returncode, err))


def check_context():
    """No request is longer than the prompt and max_tokens of a line, so the context need not be."""
    write("short", [request(f"{i}", text(i)) for i in range(4)])
    if "plan for" not in run("short", "short-out", "--ram", "48M")[2]:
        print("skip contexts: no plan is made without Clp")
        return
    sums = [summary("short", f"short-out-{i}", "--ram", "48M", *more) for i, more in enumerate([[], ["-c", "1024"]])]
    planned = [s["memory"]["tiers"]["ram"]["planned"] for s in sums]
    answers = [{k: v["response"]["body"]["choices"] for k, v in by_id(read(f"short-out-{i}")).items()} for i in range(2)]
    check("a context is as long as the longest request", planned[0] < planned[1], planned)
    check("which changes no answer", answers[0] == answers[1], answers)


def check_long_lines():
    """Under a cap that does not hold the model the usual context is short; lines that are longer are not refused."""
    subprocess.run([nibble, "synth", "smollm2-135m", "--layers", "4", "--seed", "1", "--tokenizer", model, "-o", "streamed.gguf", "-q"], check=True)
    write("long", [request(f"{i}", {"prompt": [3 + i] * 400, "max_tokens": 2, "temperature": 0, "ignore_eos": True}) for i in range(2)])
    child = subprocess.run([nibble, "batch", "streamed.gguf", "-i", "long", "-o", "long-out", "--ram", "28M"], stdin=subprocess.DEVNULL,
                           capture_output=True, text=True, check=False)
    if "nibble: plan for" not in child.stderr:
        print("skip long lines: no plan is made without Clp")
        return
    check("lines longer than the usual context are answered", child.returncode == 0, child.stderr)


def check_trials():
    """Plans that are about as fast are tried, in a job that seems long: a grammar ends its answers at once. Each line is
    answered once, and the next such job knows what the plans have reached."""
    n = 4000
    body = {"prompt": "a b", "max_tokens": 4000, "grammar": 'root ::= "a"'}
    write("tried", ["nonsense", *(request(f"{i}", body) for i in range(n))])  # a line that is none does not lengthen a trial
    for i, earlier in enumerate((False, True)):
        code, _, err = run("tried", f"tried-out-{i}", "-v", "--ram", "200M")
        if "plan for" not in err:
            print("skip trial runs: no plan is made without Clp")
            return
        trials = [line for line in err.splitlines() if "a trial run of" in line]
        check("trial runs of several plans", len(trials) > 1 and all(line.endswith(", earlier") == earlier for line in trials), err)
        answers = by_id(line for line in read(f"tried-out-{i}") if line["response"])
        check("their answers count", code == 1 and len(answers) == n == len(read(f"tried-out-{i}")) - 1, code)
    _, _, err = run("tried", "tried-out-2", "-v", "--ram", "200M", "--schedule", "row")
    check("none for another schedule", "plan for" in err and "a trial run of" not in err, err)
    child = start("tried", "tried-out-3", "--ram", "200M", env={**os.environ, "XDG_CACHE_HOME": os.path.abspath("untried")})
    last = time.time() + WAITS_S
    while time.time() < last and (not os.path.exists("tried-out-3") or bytes_of("tried-out-3").count(b"\n") < 2):
        time.sleep(0.002)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=WAITS_S)
    check("an interrupted one has a summary", child.returncode == 130 and "lines answered" in err and "the same command continues" in err, err)
    for options in (("--parallel", "2"), ("--devices", "cpu,cpu")):
        code, _, err = run("tried", "none.out", "--max-latency", "5", *options)
        check(f"a latency without a plan exits 2 ({options[0]})", code == 2 and "--max-latency needs a plan" in err, (code, err))
    lanes = [lane["lane"] for lane in summary("tried", "tried-out-0", code=1)["lanes"]]
    check("lanes", lanes == ["load weights", "load cache", "load stream", "store cache", "compute"], lanes)


check_order()
check_answers()
check_numbers()
check_bad_lines()
check_files()
check_limit()
check_torn()
check_kills()
check_signals()
check_pipes()
if build == "plain":
    check_cap()
    check_context()
    check_long_lines()
    check_trials()
