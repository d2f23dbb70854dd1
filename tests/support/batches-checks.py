"""Checks of /v1/files and /v1/batches, for tests/cli_batches.sh.
   python3 batches-checks.py NIBBLE MODEL"""
import json
import os
import random
import signal
import sys
import time

from server import Server, check, finish, text_lines

nibble, model = sys.argv[1:]
TEXT = "/v1/completions"
WAITS_S = 300


def line(i, n=8, url=TEXT):
    body = {"prompt": f"n{i}", "max_tokens": n, "temperature": 0, "ignore_eos": True}
    return json.dumps({"custom_id": str(i), "method": "POST", "url": url, "body": body})


def upload(s, content, purpose="batch", name="in.jsonl"):
    b = "----nibble"
    parts = [f'--{b}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n{purpose}\r\n',
             f'--{b}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
             f'Content-Type: application/jsonl\r\n\r\n{content}\r\n', f"--{b}--\r\n"]
    return s.post("/v1/files", "".join(parts).encode(), {"Content-Type": f"multipart/form-data; boundary={b}"})


def create(s, file, **more):
    return s.post("/v1/batches", dict({"input_file_id": file, "endpoint": TEXT, "completion_window": "24h"}, **more))


def wait(s, batch, *states):
    until = time.monotonic() + WAITS_S
    while True:
        _, b = s.get(f"/v1/batches/{batch}")
        if b["status"] in states or time.monotonic() > until:
            return b
        time.sleep(0.02)


def results(s, b):
    status, _, data = s.ask("GET", f"/v1/files/{b['output_file_id']}/content")
    assert status == 200, data
    return [json.loads(text) for text in text_lines(data)]


def texts(lines):
    return {one["custom_id"]: one["response"]["body"]["choices"][0]["text"] for one in lines}


s = Server(nibble, model, "--parallel", "4", "--files", "files")
content = "\n".join(line(i) for i in range(20)) + "\n"
status, file = upload(s, content)
check("a file is stored", status == 200 and file["purpose"] == "batch" and file["bytes"] == len(content), file)
check("and can be read again", s.ask("GET", f"/v1/files/{file['id']}/content")[2].decode() == content)
check("and is listed", [f["id"] for f in s.get("/v1/files")[1]["data"]] == [file["id"]])
check("only its owner can read it", os.stat("files").st_mode & 0o77 == 0 and os.stat(f"files/{file['id']}").st_mode & 0o77 == 0)
check("another purpose is refused", upload(s, content, "fine-tune")[0] == 400)
check("no form is refused", s.post("/v1/files", {"purpose": "batch"})[0] == 400)
check("an unknown file has status 404", s.get("/v1/files/file-" + "0" * 24)[0] == 404)
check("nor can a path leave the folder", s.get("/v1/files/..%2fmodel")[0] == 404 and s.get("/v1/files/../model/config.json")[0] == 404)

status, made = create(s, file["id"], metadata={"a": "b"})
check("a batch begins", status == 200 and made["object"] == "batch" and made["metadata"] == {"a": "b"}, made)
alone = {str(i): s.post(TEXT, json.loads(line(i))["body"])[1]["choices"][0]["text"] for i in range(3)}
done = wait(s, made["id"], "completed", "failed")
check("a batch completes beside requests of clients", done["status"] == "completed" and done["request_counts"] == {"total": 20, "completed": 20, "failed": 0}, done)
want = texts(results(s, done))
check("with the same answers", len(want) == 20 and all(want[i] == alone[i] for i in alone), (want, alone))
check("and is listed", [b["id"] for b in s.get("/v1/batches")[1]["data"]] == [made["id"]])
check("an unknown endpoint is refused", create(s, file["id"], endpoint="/v1/models")[0] == 400)
check("an unknown input is refused", create(s, "file-" + "0" * 24)[0] == 400)

status, mixed = upload(s, "\n".join([line(1), "no JSON", line(2, url="/v1/chat/completions"), line(1)]))
done = wait(s, create(s, mixed["id"])[1]["id"], "completed", "failed")
check("lines that are no requests have errors", done["request_counts"] == {"total": 4, "completed": 1, "failed": 3}, done)

status, long = upload(s, "\n".join(line(i, 200) for i in range(200)))
_, b = create(s, long["id"])
wait(s, b["id"], "in_progress")
status, cancelled = s.post(f"/v1/batches/{b['id']}/cancel", None)
check("a batch is cancelled", status == 200 and cancelled["status"] == "cancelling", cancelled)
check("and ends", wait(s, b["id"], "cancelled")["status"] == "cancelled")
check("a file is deleted", json.loads(s.ask("DELETE", f"/v1/files/{mixed['id']}")[2])["deleted"] and s.get(f"/v1/files/{mixed['id']}")[0] == 404)
check("the server ends", s.end()[0] == 0)

# killed at any point: nothing is lost or doubled
lines = 60
s = Server(nibble, model, "--parallel", "4", "--files", "killed")
_, b = create(s, upload(s, "\n".join(line(i, 12) for i in range(lines)))[1]["id"])
chance = random.Random(5)
for i in range(8):
    time.sleep(chance.random() * 0.15)
    s.end(signal.SIGKILL)
    s = Server(nibble, model, "--parallel", "4", "--files", "killed")
done = wait(s, b["id"], "completed", "failed")
found = results(s, done)
check("a batch survives kill -9", done["status"] == "completed" and done["request_counts"]["completed"] == lines, done)
check("no answer is lost or doubled", sorted(one["custom_id"] for one in found) == sorted(str(i) for i in range(lines)), len(found))
check("answers do not depend on when it was killed", all(t == texts(found)[i] for i, t in texts(found).items()))
s.end()

s = Server(nibble, model, "--files", "none")
check("files can be off", upload(s, content)[0] == 501 and create(s, file["id"])[0] == 501)
s.end()
finish()
