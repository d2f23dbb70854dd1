"""A hub for the tests: hub.py FOLDER. FOLDER/repos/USER/REPO has the files of repositories; FOLDER/port gets the port.

Files are listed as the Hugging Face hub lists them and come by a redirection to another host name, with ranges. Files in
FOLDER/wrong choose faults, and are read for each request:
  break  a number: the connection ends after this many bytes of a body
  once   the same, and only the first time
  norange, damage, longer, short   ranges are ignored; one byte is another one; more, or fewer bytes than listed
  busy   a number: this many requests are answered 503
  slow   a number: bytes a second
  lost   the content is 404; https: redirects go to https
FOLDER/gated has a token that all repositories require. FOLDER/log gets a line for each request: its path, Range and token.
With cert.pem and key.pem in FOLDER it speaks TLS."""
import hashlib
import http.server
import json
import os
import re
import ssl
import sys
import time
import urllib.parse

folder = sys.argv[1]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def wrong(name):
    path = f"{folder}/wrong/{name}"
    if not os.path.exists(path):
        return None
    with open(path) as file:
        return int(file.read() or 1)


def listing(repo):
    files = []
    for at, _, names in sorted(os.walk(repo)):
        for name in sorted(names):
            path = os.path.join(at, name)
            with open(path, "rb") as file:
                data = file.read()
            blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            entry = {"rfilename": os.path.relpath(path, repo), "size": len(data), "blobId": blob}
            if name.endswith((".gguf", ".safetensors")):
                entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 135}
            files.append(entry)
    return {"id": os.path.basename(repo), "sha": COMMIT, "siblings": files}


class Hub(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        token = self.headers.get("Authorization", "-")
        with open(f"{folder}/log", "a") as log:
            log.write(f"{self.path} {self.headers.get('Range', '-')} {token}\n")
        busy = wrong("busy")
        if busy:
            with open(f"{folder}/wrong/busy", "w") as file:
                file.write(str(busy - 1))
            return self.answer(503)
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        if path.startswith("/content/"):
            return self.content(f"{folder}/repos/{path[9:]}")
        if os.path.exists(f"{folder}/gated"):
            with open(f"{folder}/gated") as file:
                if token != f"Bearer {file.read()}":
                    return self.answer(401, X_Error_Code="GatedRepo")
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)", path)
        if api and os.path.isdir(f"{folder}/repos/{api[1]}"):
            return self.answer(200, json.dumps(listing(f"{folder}/repos/{api[1]}")).encode())
        file = re.fullmatch(rf"/([^/]+/[^/]+)/resolve/{COMMIT}/(.+)", path)
        if file and os.path.isfile(f"{folder}/repos/{file[1]}/{file[2]}"):
            scheme = "https" if wrong("https") or os.path.exists(f"{folder}/cert.pem") else "http"
            host = f"localhost:{self.server.server_port}"
            where = urllib.parse.quote(f"/content/{file[1]}/{file[2]}")
            return self.answer(302, b"moved", Location=f"{scheme}://{host}{where}", X_Linked_Etag='"x"')
        return self.answer(404, b'{"error":"Repository not found"}', X_Error_Code="RepoNotFound")

    def content(self, path):
        if wrong("lost"):
            return self.answer(404)
        with open(path, "rb") as file:
            data = file.read()
        if wrong("damage"):
            data = data[:-1] + bytes([data[-1] ^ 1])
        if wrong("longer"):
            data += b"more"
        if wrong("short"):
            data = data[:-4]
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        first = int(asked[1]) if asked and not wrong("norange") else 0
        self.send_response(206 if asked and not wrong("norange") else 200)
        if asked and not wrong("norange"):
            self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - first))
        self.end_headers()
        max_bytes = wrong("break") or wrong("once")
        if wrong("once"):
            os.unlink(f"{folder}/wrong/once")
        body = data[first:first + max_bytes] if max_bytes else data[first:]
        step = wrong("slow")
        for at in range(0, len(body), step or len(body) or 1):
            self.wfile.write(body[at:at + (step or len(body))])
            self.wfile.flush()
            if step:
                time.sleep(0.1)
        if max_bytes:
            self.close_connection = True


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass  # the client has disconnected


server = Server(("127.0.0.1", 0), Hub)
if os.path.exists(f"{folder}/cert.pem"):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"{folder}/cert.pem", f"{folder}/key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
with open(f"{folder}/port.new", "w") as file:
    file.write(str(server.server_port))
os.rename(f"{folder}/port.new", f"{folder}/port")
server.serve_forever()
