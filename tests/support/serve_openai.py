"""Checks of OpenAI's completions, chat and embeddings, and of the server's own pages."""
import base64
import json
import re
import socket
import struct

from server import check, text_lines, text_of
from serve_common import ANSWER, USER, CHAT, TEXT, content, param, ends

FILES = ("/v1/files", "/v1/batches")  # a form, or no body; without a folder for files they are 4xx or 5xx


def basics(s):
    check("health needs nothing", s.get("/health") == (200, {"status": "ok"}))
    status, value = s.get("/v1/models/m")
    check("a model is looked at by its name", status == 200 and value["id"] == "m", value)
    check("and no other", [s.get("/v1/models/" + name)[0] for name in ("x", "m/m", "m" * 200, "%20")] == [404] * 4)
    status, value = s.get("/v1/models")
    check("the model is listed", status == 200 and [m["id"] for m in value["data"]] == ["m"], value)
    status, value = s.post(CHAT, {"messages": USER})
    check("a chat is answered", status == 200 and content(value) == ANSWER, value)
    check("as OpenAI writes it", value["object"] == "chat.completion" and value["id"].startswith("chatcmpl-") and
          value["choices"][0]["finish_reason"] == "stop" and value["choices"][0]["message"]["role"] == "assistant")
    usage = value["usage"]
    check("usage adds up", usage["prompt_tokens"] == 6 and
          usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"], usage)
    status, value = s.post(CHAT, {"messages": USER, "max_tokens": 2})
    check("max_tokens cuts", content(value) == " ".join(ANSWER.split()[:2]) and
          value["choices"][0]["finish_reason"] == "length", value)
    status, value = s.post(CHAT, {"messages": USER, "max_completion_tokens": 1})
    check("so does max_completion_tokens", value["usage"]["completion_tokens"] == 1, value)
    word = ANSWER.split()[3]
    for stop in (word, ["nothing", word]):
        status, value = s.post(CHAT, {"messages": USER, "stop": stop})
        check("a stop string ends the answer before it", content(value) == ANSWER[:ANSWER.index(word)] and
              value["choices"][0]["finish_reason"] == "stop", value)
    status, value = s.post(CHAT, {"messages": [{"role": "developer", "content": "Be it."}, *USER], "n": 2})
    check("n answers", [c["message"]["content"] for c in value["choices"]] == [ANSWER] * 2, value)
    parts = [{"role": "user", "content": [{"type": "text", "text": "Wh"}, {"type": "text", "text": "y?"}]}]
    turns = [{"role": "system", "content": "<a>"}, {"role": "user", "content": "<u>", "name": "<s>"},
             {"role": "assistant", "content": "<s>"}, {"role": "tool", "content": "<u>", "tool_call_id": "<a>"}]
    check("special tokens that messages name stay text",
          s.post(CHAT, {"messages": turns, "max_tokens": 1})[1]["usage"]["prompt_tokens"] ==
          s.post(CHAT, {"messages": json.loads(json.dumps(turns).replace("<", "(").replace(">", ")")), "max_tokens": 1})[1]["usage"]["prompt_tokens"])
    check("parts are one text", s.post(CHAT, {"messages": parts})[1]["usage"]["prompt_tokens"] == 6)
    status, value = s.post(TEXT, {"prompt": "Why?<a>"})
    check("a text is continued", status == 200 and value["choices"][0]["text"] == ANSWER and
          value["object"] == "text_completion", value)
    status, value = s.post(TEXT, {"prompt": [[87, 258], "x<a>"], "echo": True, "max_tokens": 1})
    first = ANSWER.split()[0]
    check("several prompts, ids and texts", [c["text"] for c in value["choices"]] == ["W<a>" + first, "x<a>" + first], value)
    check("unknown fields are ignored", s.post(CHAT, {"messages": USER, "user": "me", "what": {"a": []}})[0] == 200)
    check("null is not there", s.post(CHAT, {"messages": USER, "seed": None, "stop": None, "tools": None})[0] == 200)


def streams(s):
    events = s.stream(CHAT, {"messages": USER})
    first, last = json.loads(events[0]), json.loads(events[-2])
    check("a stream begins with the role", first["choices"][0]["delta"] == {"role": "assistant", "content": ""}, events[0])
    check("it ends with the reason", last["choices"][0]["delta"] == {} and
          last["choices"][0]["finish_reason"] == "stop", events[-2])
    check("and with [DONE]", events[-1] == "[DONE]", events[-1])
    check("its pieces are the answer", text_of(events) == {0: ANSWER}, events)
    check("one id", len({json.loads(e)["id"] for e in events[:-1]}) == 1)
    events = s.stream(CHAT, {"messages": USER, "stream_options": {"include_usage": True}})
    last = json.loads(events[-2])
    check("usage comes before the end", last["choices"] == [] and last["usage"]["prompt_tokens"] == 6, last)
    check("and is null before", all(json.loads(e)["usage"] is None for e in events[:-2]))
    check("a text streams, too", text_of(s.stream(TEXT, {"prompt": "x<a>", "echo": True})) == {0: "x<a>" + ANSWER})
    check("n streams", text_of(s.stream(CHAT, {"messages": USER, "n": 3})) == {0: ANSWER, 1: ANSWER, 2: ANSWER})


def likely(s):
    status, value = s.post(CHAT, {"messages": USER, "logprobs": True, "top_logprobs": 2, "temperature": 0})
    tokens = value["choices"][0]["logprobs"]["content"]
    check("logprobs spell the answer", b"".join(bytes(t["bytes"]) for t in tokens).decode() == ANSWER, tokens)
    check("the drawn ones are the likeliest", all(t["logprob"] == t["top_logprobs"][0]["logprob"] <= 0 and
          t["token"] == t["top_logprobs"][0]["token"] and len(t["top_logprobs"]) == 2 for t in tokens), tokens)
    found = []
    for event in s.stream(CHAT, {"messages": USER, "logprobs": True, "temperature": 0})[:-1]:
        found += (json.loads(event)["choices"][0]["logprobs"] or {"content": []})["content"]
    check("a stream tells each once", [t["token"] for t in found] == [t["token"] for t in tokens] and
          all(t["top_logprobs"] == [] for t in found), found)
    status, value = s.post(TEXT, {"prompt": "x<a>", "logprobs": 1, "max_tokens": 2, "temperature": 0})
    found = value["choices"][0]["logprobs"]
    check("logprobs of a text", "".join(found["tokens"]) == value["choices"][0]["text"] and
          found["text_offset"] == [0, len(found["tokens"][0])] and
          [list(t.values())[0] for t in found["top_logprobs"]] == found["token_logprobs"], found)
    status, value = s.post(TEXT, {"prompt": "x<a>", "logit_bias": {"65": 100}, "max_tokens": 3, "temperature": 1})
    check("a bias of 100 is always", value["choices"][0]["text"] == "AAA", value)
    first = s.post("/tokenize", {"content": ANSWER.split()[0]})[1]["tokens"][0]
    status, value = s.post(TEXT, {"prompt": "x<a>", "logit_bias": {str(first): -100}, "max_tokens": 1, "temperature": 0})
    check("one of -100 never", value["choices"][0]["text"] != ANSWER.split()[0], value)
    for name, wrong in (("logit_bias", {"x": 1}), ("logit_bias", {"1": 101}), ("logit_bias", {"1": "a"}),
                        ("logit_bias", []), ("top_logprobs", 2), ("top_logprobs", 21), ("logprobs", 1)):
        got = param(s.post(CHAT, {"messages": USER, name: wrong}))
        check(f"{name} {wrong} is refused by name", got == (400, name), got)
    check("a bias beyond the vocabulary is refused", s.post(CHAT, {"messages": USER, "logit_bias": {"99999": 1}})[0] == 400)


def looks(s):
    status, value = s.post("/tokenize", {"content": "aé<a>"})
    check("a text's tokens", status == 200 and value == {"tokens": [97, 195, 169, 258], "count": 4}, value)
    status, value = s.post("/tokenize", {"content": "é<a>", "parse_special": False, "with_pieces": True})
    check("with pieces; no text, no string", [t["id"] for t in value["tokens"]] == [195, 169, 60, 97, 62] and
          value["tokens"][2]["piece"] == "<", value)
    status, value = s.post("/detokenize", {"tokens": [97, 195, 169]})
    check("tokens' text", value["content"] == "aé", value)
    status, value = s.post("/apply-template", {"messages": USER})
    check("messages by the template", value == {"prompt": "<u>Why?<a>"}, value)
    for path, body, name in (("/tokenize", {}, "content"), ("/tokenize", {"content": 1}, "content"),
                             ("/detokenize", {"tokens": "x"}, "tokens"), ("/detokenize", {"tokens": [-1]}, "tokens"),
                             ("/apply-template", {"messages": 1}, "messages")):
        check(f"{path} {body} is refused", param(s.post(path, body)) == (400, name))
    check("an id without a token is refused", s.post("/detokenize", {"tokens": [1 << 30]})[0] in (200, 400))
    status, value = s.get("/memory")
    check("memory by tier and owner", value["tiers"]["ram"]["planned"] > 0 and value["owners"]["weights"] > 0 and
          value["rss_peak"] > 0 and value["kv"][0]["layers"] == "all", value)
    check("nothing is computed", s.get("/slots") == (200, []))
    status, headers, data = s.ask("GET", "/metrics")
    numbers = dict(line.rsplit(" ", 1) for line in text_lines(data) if not line.startswith("#"))
    check("metrics for Prometheus", headers["Content-Type"].startswith("text/plain; version=0.0.4"))
    check("and show the format of keys and values", 'layers="all",format="' in data.decode())
    check("they count", float(numbers["nibble_tokens_predicted_total"]) > 0 and
          float(numbers["nibble_requests_processing"]) == 0 and
          numbers['nibble_time_to_first_token_seconds_bucket{le="+Inf"}'] ==
          numbers["nibble_time_to_first_token_seconds_count"], data)


def refusals(s):
    wrong = [("temperature", "hot"), ("temperature", 3), ("temperature", -0.1), ("top_p", 1.5), ("top_p", True),
             ("top_k", -2), ("top_k", 0.5), ("min_p", 2), ("max_tokens", 0), ("max_tokens", "many"), ("max_tokens", 1e99),
             ("max_completion_tokens", -2), ("n", 0), ("n", 1000), ("seed", "x"), ("seed", 1.5), ("stream", 1), ("stop", 1),
             ("stop", [""]), ("stop", ["a"] * 99), ("frequency_penalty", 9), ("presence_penalty", []),
             ("repeat_penalty", 0), ("stream_options", 1), ("messages", []), ("messages", "x"), ("tools", {}), ("tools", [1]),
             ("tool_choice", "required"), ("tool_choice", {}), ("response_format", {"type": "xml"}),
             ("response_format", {"type": "json_schema", "schema": {"not": {}}}), ("grammar", 1), ("json_schema", [])]
    for name, value in wrong:
        got = param(s.post(CHAT, {"messages": USER, name: value}))
        check(f"{name} {str(value)[:20]} is refused by name", got == (400, name), got)
    for message, name in (({}, "role"), ({"role": "king", "content": "x"}, "role"), ({"role": "user"}, "content"),
                          ({"role": "user", "content": 1}, "content"),
                          ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "content")):
        got = param(s.post(CHAT, {"messages": [*USER, message]}))
        check(f"a message {str(message)[:40]} is refused", got == (400, f"messages[1].{name}"), got)
    for prompt in (None, [], [1.5], [[]], {}, [-1], ""):
        got = param(s.post(TEXT, {"prompt": prompt}))
        check(f"a prompt {prompt} is refused", got == (400, "prompt"), got)
    check("an id beyond the vocabulary is refused", s.post(TEXT, {"prompt": [99999]})[0] == 400)
    for body in ("", "{", "[]", '{"a":1,"a":2}', "[" * 99, "\xff", '{"messages": [{"role":"user","content":"a\\u0000b"}]}'):
        status, value = s.post(CHAT, body.encode("latin-1"))
        check(f"a body {body[:12]!r} is refused", status == 400 and value["error"]["message"], value)
    status, value = s.post(CHAT, {"messages": [{"role": "system", "content": "no"}]})
    check("what the template refuses is said in its words", status == 400 and
          "this system message is refused" in value["error"]["message"], value)
    status, value = s.post(TEXT, {"prompt": "x" * 400})
    check("a prompt beyond the context is refused", status == 400 and value["error"]["param"] == "prompt" and
          value["error"]["code"] == "context_length_exceeded", value)
    status, value = s.post(TEXT, {"prompt": "x" * 20000})
    check("a body beyond the limit is refused", status == 413, value)
    status, headers, _ = s.ask("GET", CHAT)
    check("another method is 405", status == 405 and headers["Allow"] == "POST")
    check("another address is 404", s.get("/v1/nothing")[0] == 404)
    for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
        check(f"{headers} is answered nothing", s.get("/v1/models", headers)[0] == 403)
    own = {"Origin": f"http://127.0.0.1:{s.port}"}
    check("the own page is answered", s.get("/v1/models", own)[0] == 200)
    status, headers, _ = s.ask("GET", "/v1/models", None, own)
    check("other pages are not told that they may", "Access-Control-Allow-Origin" not in headers)
    for head in ("Content-Length: 5\r\nContent-Length: 6", "Content-Length: 5\r\nTransfer-Encoding: chunked",
                 "Content-Length: -5", "Content-Length: 99999999999999999999999"):
        with socket.create_connection(("127.0.0.1", s.port), timeout=60) as connection:
            connection.sendall(f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n0\r\n\r\n".encode())
            status = connection.recv(12)
        check(f"a length is refused: {head[-28:]!r}", status in (b"HTTP/1.1 400", b"HTTP/1.1 413"), status)
    many = 2500
    for name, value in (("x", "[" * many + "]" * many), ("json_schema", '{"not":' * many + "{}" + "}" * many),
                        ("grammar", json.dumps("root ::= " + "(" * many + '"a"' + ")" * many))):
        status, _, data = s.ask("POST", TEXT, f'{{"prompt": "a", "max_tokens": 1, "{name}": {value}}}')
        check(f"{name} in {many} layers is refused", status in (400, 413), (status, data))
    check("after all that it answers", s.get("/health")[0] == 200)


def embeddings(s):
    def vectors(body):
        status, value = s.post("/v1/embeddings", body)
        check(f"embeddings of {str(body)[:40]}", status == 200 and value["object"] == "list" and
              [d["index"] for d in value["data"]] == list(range(len(value["data"]))), value)
        return [d["embedding"] for d in value["data"]], value["usage"]

    def same(a, b):
        return all(abs(x - y) < 1e-6 for x, y in zip(a, b, strict=True))
    (one,), usage = vectors({"input": "Why?", "model": "m"})
    check("an embedding's length is 1", abs(sum(x * x for x in one) - 1) < 1e-5 and len(one) > 8, one)
    check("its tokens are counted", usage == {"prompt_tokens": 4, "total_tokens": 4}, usage)
    several, usage = vectors({"input": ["x" * 200, "Why?", [87, 104, 121, 63]]})
    check("each text is what it is alone, as ids too", several[1] == one == several[2] and several[0] != one and
          usage["prompt_tokens"] == 208, usage)
    (ids,), _ = vectors({"input": [87, 104, 121, 63]})
    packed = vectors({"input": "Why?", "encoding_format": "base64"})[0][0]
    check("ids of one text", ids == one)
    check("base64 has the same floats", same(struct.unpack(f"<{len(one)}f", base64.b64decode(packed)), one))
    check("the model's number of dimensions may be said", vectors({"input": "Why?", "dimensions": len(one)})[0] == [one])
    status, value = s.post("/api/embed", {"model": "m", "input": ["Why?", "Why?"]})
    check("Ollama's way", value["embeddings"] == [one, one] and value["prompt_eval_count"] == 8, value)
    check("its errors, too", isinstance(s.post("/api/embed", {"input": 1})[1]["error"], str))
    for name, wrong in (("input", None), ("input", ""), ("input", []), ("input", 3), ("input", {}), ("dimensions", 7),
                        ("encoding_format", "hex"), ("dimensions", 0), ("encoding_format", 1), ("input", ["x"] * 2049)):
        got = param(s.post("/v1/embeddings", {"input": "x", name: wrong}))
        check(f"embeddings: {name} {str(wrong)[:12]} is refused by name", got == (400, name), got)
    for wrong in (["a", ""], ["a", []], ["a", 1], ["a", [-1]]):
        got = param(s.post("/v1/embeddings", {"input": wrong}))
        check(f"embeddings: {wrong} is refused by its place", got == (400, "input[1]"), got)
    check("an id beyond the vocabulary is refused", s.post("/v1/embeddings", {"input": [99999]})[0] == 400)
    status, value = s.post("/v1/embeddings", {"input": "x" * 300})
    check("a text beyond the context is refused", status == 400 and value["error"]["code"] == "context_length_exceeded", value)


def page(s):
    status, headers, data = s.ask("GET", "/")
    text = data.decode()
    check("the page is there", status == 200 and headers["Content-Type"] == "text/html; charset=utf-8" and
          text.endswith("</html>\n") and '"use strict"' in text)
    check("it fetches nothing from outside", not re.search(r"https?:|src=|@import|url\(", text) and
          "default-src 'none'" in headers["Content-Security-Policy"])


def described(s):
    status, value = s.get("/openapi.json")
    schemas = value["components"]["schemas"]
    chat = schemas["ChatRequest"]
    check("the description has the ranges", status == 200 and value["openapi"] == "3.1.0" and
          chat["properties"]["temperature"] == {"type": ["number", "null"], "minimum": 0, "maximum": 2} and
          chat["required"] == ["messages"] and schemas["MessagesRequest"]["properties"]["max_tokens"]["type"] == "integer", chat)
    bodies = {path: operation["post"].get("requestBody") for path, operation in value["paths"].items() if "post" in operation}
    shaped = {path: body for path, body in bodies.items() if path not in ("/api/show", "/api/pull") and not path.startswith(FILES)}
    check("every body has a shape", all(body and body["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[1] in schemas
          for path, body in shaped.items()), shaped)
    got = {path: s.ask("GET" if "get" in operation else "POST", path.replace("{", "").replace("}", "") if path.startswith(FILES) else
                       path.format(model="m"), None if "get" in operation else "{}")[0] for path, operation in value["paths"].items()}
    check("every address is there", all(code in ((200, 400, 404, 501, 503) if path.startswith(FILES) else (200, 400)) for path, code in got.items()), got)
