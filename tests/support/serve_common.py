"""Shared by the checks of nibble serve: the arguments of serve-checks.py, bodies, and requests."""
import json
import signal
import socket
import sys
import time

from server import check, text_lines

nibble, script, answer_file, random_model = sys.argv[1:5]
with open(answer_file, encoding="utf-8") as file:
    ANSWER = file.read()
USER = [{"role": "user", "content": "Why?"}]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
LONG = {"prompt": "abc", "seed": 1, "max_tokens": 15000, "ignore_eos": True}  # seconds, unless it is cancelled
PERSON = {"type": "object", "required": ["name", "age", "tags"], "additionalProperties": False, "properties": {
    "name": {"type": "string", "minLength": 1, "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}}}


def content(value):
    return value["choices"][0]["message"]["content"]


def param(result):
    status, value = result
    return status, value["error"]["param"]


def lines(s, path, body):
    status, headers, data = s.ask("POST", path, body)
    assert status == 200 and headers["Content-Type"] == "application/x-ndjson", (status, data)
    return [json.loads(line) for line in text_lines(data)]


def events_of(s, path, body):
    """The values of all events."""
    _, _, data = s.ask("POST", path, dict(body, stream=True))
    return [json.loads(line[6:]) for line in text_lines(data) if line.startswith("data: ")]


def raw(s, body):
    data = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", s.port), timeout=60)
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    return connection


def ends(s):
    """SIGTERM while an answer is being sent."""
    connection = raw(s, dict(LONG, stream=True, max_tokens=300))
    got = connection.recv(300)
    slots = s.get("/slots")[1]
    check("what is computed is listed", not slots or slots[0]["n_predicted"] <= 300 == slots[0]["max_tokens"], slots)
    s.child.send_signal(signal.SIGTERM)
    while piece := connection.recv(65536):
        got += piece
    check("SIGTERM lets an answer end", b"data: [DONE]\n\n" in got, got[-200:])
    code, said = s.end(None)
    check("and the server", code == 0, (code, said))


def loaded(s):
    return {m["id"]: m["status"]["value"] for m in s.get("/v1/models")[1]["data"]}


def until(test, wait=20):
    deadline = time.time() + wait
    while not test() and time.time() < deadline:
        time.sleep(0.01)
    return test()
