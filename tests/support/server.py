"""For the tests of nibble serve: a server of its own, requests, events, and checks in the form that run-tests.sh counts."""
import http.client
import json
import os
import signal
import socket
import subprocess
import sys

CLIENT_WAITS_S = 300  # for an answer; less would fail where other programs keep the processors busy
failed = False


def check(name, good, seen=""):
    global failed
    failed = failed or not good
    print(f"ok {name}" if good else f"not ok {name}\n    {str(seen)[:2000]}", flush=True)


class Server:
    def __init__(self, nibble, model, *options, env=None):
        self.child = subprocess.Popen([nibble, "serve", *([model] if model else []), "--port", "0", *options], stdin=subprocess.DEVNULL,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                      env=dict(os.environ, **(env or {})))
        self.address = self.child.stdout.readline().strip()
        self.path = self.address[5:] if self.address.startswith("unix:") else None
        self.port = 0 if self.path or not self.address else int(self.address.rsplit(":", 1)[1])

    def connect(self):
        if self.path:
            connection = http.client.HTTPConnection("localhost", timeout=CLIENT_WAITS_S)
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.connect(self.path)
            return connection
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=CLIENT_WAITS_S)

    def ask(self, method, path, body=None, headers=None):
        """(status, headers, bytes)"""
        connection = self.connect()
        text = body if isinstance(body, (bytes, str, type(None))) else json.dumps(body)
        connection.request(method, path, text, headers or {})
        response = connection.getresponse()
        data = response.read()
        connection.close()
        return response.status, response.headers, data

    def post(self, path, body, headers=None):
        """(status, value)"""
        status, _, data = self.ask("POST", path, body, headers)
        return status, json.loads(data)

    def get(self, path, headers=None):
        status, _, data = self.ask("GET", path, None, headers)
        return status, json.loads(data)

    def stream(self, path, body):
        """The data of each event, unparsed."""
        status, headers, data = self.ask("POST", path, dict(body, stream=True))
        assert status == 200 and headers["Content-Type"] == "text/event-stream", (status, data)
        lines = data.decode().split("\n\n")
        assert lines.pop() == "", lines
        return [line[6:] for line in lines if line.startswith("data: ")]

    def peak(self):
        with open(f"/proc/{self.child.pid}/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))

    def end(self, number=signal.SIGTERM, wait=30):
        """(exit code, stderr); number None: it ends by itself"""
        if number and self.child.poll() is None:
            self.child.send_signal(number)
        try:
            self.child.wait(wait)
        except subprocess.TimeoutExpired:
            self.child.kill()
        said = self.child.stderr.read()
        self.child.stdout.close()
        self.child.stderr.close()
        return self.child.wait(), said


def text_lines(data):
    """The lines of an answer. str.splitlines would also split at U+0085 and U+2028, which JSON leaves in strings."""
    return data.decode().removesuffix("\n").split("\n")


def text_of(events):
    """The text of a stream's deltas, by choice."""
    out = {}
    for event in events:
        if event == "[DONE]":
            continue
        for choice in json.loads(event).get("choices", []):
            piece = choice["delta"].get("content", "") if "delta" in choice else choice["text"]
            out[choice["index"]] = out.get(choice["index"], "") + piece
    return out


def finish():
    sys.exit(failed)
