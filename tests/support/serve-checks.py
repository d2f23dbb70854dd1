"""What nibble serve answers: serve-checks.py NIBBLE SCRIPT-MODEL ANSWER-FILE RANDOM-MODEL [sanitized]. The first model always gives
the answer of the file, the second one random bytes."""
import base64
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

from server import Server, check, finish, text_of

nibble, script, answer_file, random_model = sys.argv[1:5]
with open(answer_file, encoding="utf-8") as file:
    ANSWER = file.read()
USER = [{"role": "user", "content": "Why?"}]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def content(value):
    return value["choices"][0]["message"]["content"]


def param(result):
    status, value = result
    return status, value["error"]["param"]


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
    check("parts are one text", s.post(CHAT, {"messages": parts})[1]["usage"]["prompt_tokens"] == 6)
    status, value = s.post(TEXT, {"prompt": "Why?<a>"})
    check("a text is continued", status == 200 and value["choices"][0]["text"] == ANSWER and
          value["object"] == "text_completion", value)
    status, value = s.post(TEXT, {"prompt": [[87, 258], "x<a>"], "echo": True, "max_tokens": 1})
    first = ANSWER.split()[0]
    check("several prompts, ids and texts", [c["text"] for c in value["choices"]] == [first, "x<a>" + first], value)
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
    told = []
    for event in s.stream(CHAT, {"messages": USER, "logprobs": True, "temperature": 0})[:-1]:
        told += (json.loads(event)["choices"][0]["logprobs"] or {"content": []})["content"]
    check("a stream tells each once", [t["token"] for t in told] == [t["token"] for t in tokens] and
          all(t["top_logprobs"] == [] for t in told), told)
    status, value = s.post(TEXT, {"prompt": "x<a>", "logprobs": 1, "max_tokens": 2, "temperature": 0})
    told = value["choices"][0]["logprobs"]
    check("logprobs of a text", "".join(told["tokens"]) == value["choices"][0]["text"] and
          told["text_offset"] == [0, len(told["tokens"][0])] and
          [list(t.values())[0] for t in told["top_logprobs"]] == told["token_logprobs"], told)
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
    check("a text's tokens", status == 200 and value == {"tokens": [97, 195, 169, 258]}, value)
    status, value = s.post("/tokenize", {"content": "é<a>", "parse_special": False, "with_pieces": True})
    check("with pieces; no text, no string", [t["id"] for t in value["tokens"]] == [195, 169, 60, 97, 62] and
          value["tokens"][2]["piece"] == "<", value)
    status, value = s.post("/detokenize", {"tokens": [97, 195, 169]})
    check("tokens' text", value == {"content": "aé"}, value)
    status, value = s.post("/apply-template", {"messages": USER})
    check("messages by the template", value == {"prompt": "<u>Why?<a>"}, value)
    for path, body, name in (("/tokenize", {}, "content"), ("/tokenize", {"content": 1}, "content"),
                             ("/detokenize", {"tokens": "x"}, "tokens"), ("/detokenize", {"tokens": [-1]}, "tokens"),
                             ("/apply-template", {"messages": 1}, "messages")):
        check(f"{path} {body} is refused", param(s.post(path, body)) == (400, name))
    check("an id without a token is refused", s.post("/detokenize", {"tokens": [1 << 30]})[0] in (200, 400))
    status, value = s.get("/memory")
    check("memory by tier and owner", value["tiers"]["ram"]["planned"] > 0 and value["owners"]["weights"] > 0 and
          value["rss_peak"] > 0, value)
    check("nothing is computed", s.get("/slots") == (200, []))
    status, headers, data = s.ask("GET", "/metrics")
    numbers = dict(line.rsplit(" ", 1) for line in data.decode().splitlines() if not line.startswith("#"))
    check("metrics for Prometheus", headers["Content-Type"].startswith("text/plain; version=0.0.4"))
    check("they count", float(numbers["nibble_tokens_predicted_total"]) > 0 and
          float(numbers["nibble_requests_processing"]) == 0 and
          numbers['nibble_time_to_first_token_seconds_bucket{le="+Inf"}'] ==
          numbers["nibble_time_to_first_token_seconds_count"], data)


def lines(s, path, body):
    status, headers, data = s.ask("POST", path, body)
    assert status == 200 and headers["Content-Type"] == "application/x-ndjson", (status, data)
    return [json.loads(line) for line in data.decode().splitlines()]


def ollama(s):
    status, value = s.get("/api/tags")
    check("ollama: the model is listed", [m["name"] for m in value["models"]] == ["m"], value)
    check("and shown", s.post("/api/show", {"model": "m"})[1]["model_info"]["general.architecture"] == "llama")
    said = lines(s, "/api/chat", {"model": "m", "messages": USER})
    check("ollama: a chat comes in lines", "".join(line["message"]["content"] for line in said) == ANSWER and
          [line["done"] for line in said] == [False] * (len(said) - 1) + [True] and
          said[-1]["done_reason"] == "stop" and said[-1]["prompt_eval_count"] == 6, said)
    status, value = s.post("/api/chat", {"messages": USER, "stream": False, "options": {"num_predict": 1, "stop": ["x"]}})
    check("or whole", value["message"]["content"] == ANSWER.split()[0] and value["done_reason"] == "length", value)
    said = lines(s, "/api/generate", {"prompt": "Why?", "system": "Be it."})
    check("ollama: a prompt is a turn", "".join(line["response"] for line in said) == ANSWER and
          said[-1]["prompt_eval_count"] == 13, said)
    status, value = s.post("/api/generate", {"prompt": "x<a>", "raw": True, "stream": False})
    check("or as it stands", value["response"] == ANSWER and value["prompt_eval_count"] == 2, value)
    check("nothing is asked: it is loaded", s.post("/api/generate", {"model": "m"})[1]["done_reason"] == "load")
    for body in ({"messages": USER, "options": {"temperature": 9}}, {"messages": USER, "options": []},
                 {"messages": [{"role": "user", "content": "x", "images": ["a"]}]}, {"messages": USER, "format": "xml"}):
        status, value = s.post("/api/chat", body)
        check(f"ollama: {str(body)[-40:]} is refused", status == 400 and isinstance(value["error"], str), value)


def anthropic(s):
    body = {"model": "m", "max_tokens": 99, "messages": USER, "system": [{"type": "text", "text": "Be it."}]}
    status, value = s.post("/v1/messages", body)
    check("anthropic: a message is answered", value["content"] == [{"type": "text", "text": ANSWER}] and
          value["stop_reason"] == "end_turn" and value["stop_sequence"] is None, value)
    usage = value["usage"]
    check("its usage", usage["input_tokens"] + usage["cache_read_input_tokens"] == 13, usage)
    check("and counted before", s.post("/v1/messages/count_tokens", body) == (200, {"input_tokens": 13}))
    word = ANSWER.split()[2]
    status, value = s.post("/v1/messages", dict(body, stop_sequences=["zzz", word]))
    check("anthropic: which string stopped it", value["stop_reason"] == "stop_sequence" and value["stop_sequence"] == word,
          value)
    check("or the limit", s.post("/v1/messages", dict(body, max_tokens=1))[1]["stop_reason"] == "max_tokens")
    status, headers, data = s.ask("POST", "/v1/messages", dict(body, stream=True))
    events = [line[7:] for line in data.decode().splitlines() if line.startswith("event: ")]
    values = [json.loads(line[6:]) for line in data.decode().splitlines() if line.startswith("data: ")]
    check("anthropic: events in their order", events[:2] == ["message_start", "content_block_start"] and
          events[-3:] == ["content_block_stop", "message_delta", "message_stop"] and
          set(events[2:-3]) <= {"content_block_delta", "ping"} and events == [v["type"] for v in values], events)
    check("they are the answer", "".join(v["delta"]["text"] for v in values if v["type"] == "content_block_delta") == ANSWER)
    for wrong in ({"messages": USER}, dict(body, temperature=1.5), dict(body, tools=[{}]), dict(body, system=1)):
        status, value = s.post("/v1/messages", wrong)
        check(f"anthropic: {str(wrong)[-30:]} is refused", status == 400 and value["type"] == "error" and
              value["error"]["type"] == "invalid_request_error", value)


def refusals(s):
    wrong = [("temperature", "hot"), ("temperature", 3), ("temperature", -0.1), ("top_p", 1.5), ("top_p", True),
             ("top_k", -1), ("top_k", 0.5), ("min_p", 2), ("max_tokens", 0), ("max_tokens", "many"), ("max_tokens", 1e99),
             ("max_completion_tokens", -1), ("n", 0), ("n", 1000), ("seed", "x"), ("seed", 1.5), ("stream", 1), ("stop", 1),
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
    check("after all that it answers", s.get("/health")[0] == 200)


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


LONG = {"prompt": "abc", "seed": 1, "max_tokens": 15000, "ignore_eos": True}  # seconds, unless it is cancelled


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
    numbers = dict(line.rsplit(" ", 1) for line in s.ask("GET", "/metrics")[2].decode().splitlines() if line[0] != "#")
    made, right = (float(numbers[f"nibble_draft_tokens{kind}_total"]) for kind in ("", "_accepted"))
    check("and is sometimes right", made > right > 0, (made, right))
    s.end()
    code, said = Server(nibble, random_model, "--models", "a=" + script, "--draft-model", random_model).end(None)
    check("it is for one model", code == 2 and "--draft-model" in said, (code, said))


PERSON = {"type": "object", "required": ["name", "age", "tags"], "additionalProperties": False, "properties": {
    "name": {"type": "string", "minLength": 1, "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}}}


def is_person(text):
    value = json.loads(text)
    return list(value) == ["name", "age", "tags"] and 1 <= len(value["name"]) <= 8 and 0 <= value["age"] <= 150 and \
        set(value["tags"]) <= {"a", "b"} and len(value["tags"]) <= 3


def held():
    """A model that says random bytes says texts of the grammar all the same."""
    s = Server(nibble, random_model + "-chat", "-c", "3000", "--parallel", "4")
    form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    for seed in range(6):
        status, value = s.post(CHAT, {"messages": USER, "seed": seed, "response_format": form})
        check(f"an answer is held to its schema ({seed})", status == 200 and is_person(content(value)) and
              value["choices"][0]["finish_reason"] == "stop", value)
    said = text_of(s.stream(CHAT, {"messages": USER, "seed": 5, "response_format": form}))[0]
    check("and says the same in pieces", said == content(value), (said, value))
    coded = {"allOf": [{"properties": {"code": {"type": "string", "pattern": "^[A-Z]{2}-\\d{3}$"}}, "required": ["code"]},
                       {"properties": {"share": {"type": "number", "minimum": 0.25, "maximum": 0.75}}, "required": ["share"]}]}
    status, value = s.post(CHAT, {"messages": USER, "seed": 2, "response_format": {"type": "json_schema", "json_schema": {"schema": coded}}})
    said = json.loads(content(value))
    check("patterns, numbers and allOf hold an answer", re.fullmatch("[A-Z]{2}-[0-9]{3}", said["code"]) and
          0.25 <= said["share"] <= 0.75, value)
    status, value = s.post(CHAT, {"messages": USER, "grammar": 'root ::= ("é" | "x"){5}', "n": 2, "ignore_eos": True})
    check("to a grammar", all(len(c["message"]["content"]) == 5 and set(c["message"]["content"]) <= {"é", "x"}
                              for c in value["choices"]), value)
    check("a text is, too", s.post(TEXT, {"prompt": "a", "grammar": 'root ::= "yes"'})[1]["choices"][0]["text"] == "yes")
    status, value = s.post("/v1/responses", {"input": "x", "text": {"format": {**form["json_schema"], "type": "json_schema"}}})
    check("and responses", is_person(value["output"][0]["content"][0]["text"]), value)
    status, value = s.post("/api/chat", {"messages": USER, "stream": False, "format": PERSON})
    check("and Ollama's format", is_person(value["message"]["content"]), value)
    status, value = s.post(CHAT, {"messages": USER, "response_format": {"type": "json_object"}, "max_tokens": 300, "seed": 1})
    check("any object begins as one", content(value).lstrip().startswith("{"), value)
    for wrong, why in (("root ::= root", "left recursion"), ("root ::= (", "expected"), ("root ::= x", "no rule 'x'")):
        status, value = s.post(CHAT, {"messages": USER, "grammar": wrong})
        check(f"{wrong} is refused with the reason", status == 400 and why in value["error"]["message"], value)
    hostile = 'root ::= "a" root "b" | "a" root "c" | "d"'
    status, value = s.post(CHAT, {"messages": USER, "grammar": hostile, "logit_bias": {"97": 100, "100": -100}})
    check("a grammar that is too ambiguous ends its own answer", status == 400 and "ambiguous" in value["error"]["message"], value)
    check("and no other", s.post(CHAT, {"messages": USER, "max_tokens": 3})[0] == 200)
    calls(s)
    messages_tools(s)
    responses_tools(s)
    ends(s)


def calls(s):
    function = {"name": "find", "parameters": PERSON}
    tools = [{"type": "function", "function": function}, {"type": "function", "function": {"name": "stop", "parameters": {"properties": {}}}}]
    named = {"type": "function", "function": {"name": "find"}}
    status, value = s.post(CHAT, {"messages": USER, "tools": tools, "tool_choice": named, "seed": 3})
    message = value["choices"][0]["message"]
    call = message["tool_calls"][0]
    check("a tool that is asked for is called", message["content"] is None and len(message["tool_calls"]) == 1 and
          call["type"] == "function" and call["function"]["name"] == "find" and is_person(call["function"]["arguments"]) and
          value["choices"][0]["finish_reason"] == "tool_calls", value)
    events = [json.loads(e) for e in s.stream(CHAT, {"messages": USER, "tools": tools, "tool_choice": named, "seed": 3})[:-1]]
    parts = [p for e in events for p in e["choices"][0]["delta"].get("tool_calls", [])]
    check("and the same in pieces", len(parts) == 1 and parts[0]["index"] == 0 and parts[0]["function"] == call["function"] and
          events[-1]["choices"][0]["finish_reason"] == "tool_calls", events)
    body = {"messages": USER, "tools": tools, "tool_choice": "required", "parallel_tool_calls": False, "seed": 7}
    status, value = s.post(CHAT, body)
    check("one of all where any is", len(value["choices"][0]["message"].get("tool_calls", [])) == 1, value)
    history = [*USER, {"role": "assistant", "content": None, "tool_calls": [call]},
               {"role": "tool", "tool_call_id": call["id"], "content": "found"}]
    check("calls of before are taken", s.post(CHAT, {"messages": history, "tools": tools, "max_tokens": 2})[0] in (200, 400))
    strict = [{"type": "function", "function": {**function, "strict": True, "parameters": {"not": {}}}}]
    status, value = s.post(CHAT, {"messages": USER, "tools": strict})
    check("what strict cannot hold is refused by name", status == 400 and "'not'" in value["error"]["message"] and
          value["error"]["param"] == "tools[0].function.parameters", value)


def events_of(s, path, body):
    """The values of all events."""
    _, _, data = s.ask("POST", path, dict(body, stream=True))
    return [json.loads(line[6:]) for line in data.decode().splitlines() if line.startswith("data: ")]


def messages_tools(s):
    """Tools in Anthropic's API, by a model that says random bytes where nothing holds it."""
    tools = [{"name": "find", "description": "d", "input_schema": PERSON}, {"name": "stop", "input_schema": {"type": "object"}}]
    body = {"max_tokens": 400, "messages": USER, "tools": tools, "tool_choice": {"type": "tool", "name": "find"}}
    status, value = s.post("/v1/messages", body)
    use = value["content"][0]
    check("anthropic: a tool is used", [b["type"] for b in value["content"]] == ["tool_use"] and use["name"] == "find" and
          is_person(json.dumps(use["input"])) and value["stop_reason"] == "tool_use", value)
    values = events_of(s, "/v1/messages", body)
    begun = [v["content_block"] for v in values if v["type"] == "content_block_start"]
    said = "".join(v["delta"]["partial_json"] for v in values if v["type"] == "content_block_delta")
    check("its input comes in pieces", [b["type"] for b in begun] == ["tool_use"] and begun[0]["input"] == {} and
          is_person(said) and values[-2]["delta"]["stop_reason"] == "tool_use", values)
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": [{"type": "text", "text": "found"}]}
    history = [*USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": "?", "signature": ""},
                                                        {"type": "text", "text": "I look."}, use]},
               {"role": "user", "content": [result, {"type": "text", "text": "And?"}]}]
    status, value = s.post("/v1/messages", dict(body, messages=history, tool_choice={"type": "none"}, max_tokens=2))
    check("what came of it is taken", status == 200 and [b["type"] for b in value["content"]] == ["text"], value)
    said = s.post("/v1/messages/count_tokens", dict(body, messages=history))[1]["input_tokens"]
    check("tools and results are counted", said > s.post("/v1/messages/count_tokens", {"messages": history})[1]["input_tokens"] >
          s.post("/v1/messages/count_tokens", {"messages": USER})[1]["input_tokens"], said)
    short = [tools[0], {"name": "stop", "input_schema": {"type": "object", "properties": {}, "additionalProperties": False}}]
    status, value = s.post("/v1/messages", dict(body, tools=short, tool_choice={"type": "any", "disable_parallel_tool_use": True}))
    check("any one", len(value["content"]) == 1 and value["content"][0].get("name") in ("find", "stop"), value)
    for change in ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, {"tools": [{"input_schema": {}}]}, {"tools": 1},
                   {"tool_choice": {"type": "tool", "name": "x"}}, {"tool_choice": {"type": "x"}}, {"tool_choice": "any"},
                   {"tools": [], "tool_choice": {"type": "any"}},
                   {"tools": [{"name": "f", "strict": True, "input_schema": {"not": {}}}], "tool_choice": {"type": "any"}},
                   {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
                   {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "f", "input": 1}]}]},
                   {"messages": [{"role": "user", "content": [{"type": "image"}]}]}):
        status, value = s.post("/v1/messages", dict(body, **change))
        check(f"anthropic: {str(change)[:60]} is refused", status == 400 and
              value["error"]["type"] == "invalid_request_error", value)


def responses_tools(s):
    """Functions in /v1/responses."""
    tools = [{"type": "function", "name": "find", "parameters": PERSON}, {"type": "function", "name": "stop", "parameters": None}]
    body = {"input": USER, "tools": tools, "tool_choice": {"type": "function", "name": "find"}}
    status, value = s.post("/v1/responses", body)
    call = value["output"][0]
    check("responses: a function is called", [i["type"] for i in value["output"]] == ["function_call"] and
          call["name"] == "find" and is_person(call["arguments"]) and value["status"] == "completed" and
          value["tools"] == tools, value)
    values = events_of(s, "/v1/responses", body)
    kinds = [v["type"].removeprefix("response.") for v in values]
    check("its events are in their order", kinds == ["created", "in_progress", "output_item.added",
          "function_call_arguments.delta", "function_call_arguments.done", "output_item.done", "completed"] and
          [v["sequence_number"] for v in values] == list(range(7)), kinds)
    check("and agree", values[2]["item"]["id"] == values[3]["item_id"] == values[5]["item"]["id"] and
          is_person(values[4]["arguments"]) and values[5]["item"] == values[6]["response"]["output"][0], values)
    history = [*USER, call, {"type": "function_call_output", "call_id": call["call_id"], "output": "found"},
               {"type": "reasoning", "summary": []},
               {"type": "function_call_output", "call_id": "x", "output": [{"type": "input_text", "text": "more"}]}]
    status, value = s.post("/v1/responses", dict(body, input=history, tool_choice="none", max_output_tokens=2))
    check("what came of it is taken", status == 200 and value["output"][0]["type"] == "message", value)
    for change, name in (({"tools": [{"type": "web_search"}]}, "tools[0].type"), ({"tools": [{"type": "function"}]}, "tools[0].name"),
                         ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice"), ({"tool_choice": "some"}, "tool_choice"),
                         ({"input": [{"type": "function_call"}]}, "input[0]"), ({"input": [{"type": "function_call_output"}]}, "input[0]"),
                         ({"tools": [{"type": "function", "name": "f", "strict": True, "parameters": {"not": {}}}],
                           "tool_choice": "required"}, "tools[0].parameters")):
        got = param(s.post("/v1/responses", dict(body, **change)))
        check(f"responses: {str(change)[:60]} is refused by name", got == (400, name), got)


def texts_and_calls():
    """A model that says something, thinks, and calls two tools: each API has them as items of its own, in their order."""
    s = Server(nibble, "caller", "-c", "1500")
    tool = {"name": "f", "description": "d"}
    inputs = [{"a": 1}, {"b": "é"}]
    status, value = s.post("/v1/messages", {"max_tokens": 999, "messages": USER, "tools": [dict(tool, input_schema={})]})
    blocks = value["content"]
    check("anthropic: thought, text and calls", [b["type"] for b in blocks] == ["thinking", "text", "tool_use", "tool_use"] and
          [b["input"] for b in blocks[2:]] == inputs and blocks[0]["thinking"].strip() == "Hm." and
          blocks[1]["text"].strip() == "I look.", value)
    check("each with an id", len({b["id"] for b in blocks[2:]}) == 2)
    got, values = [], events_of(s, "/v1/messages", {"max_tokens": 999, "messages": USER, "tools": [dict(tool, input_schema={})]})
    for v in values:
        if v["type"] == "content_block_start":
            check(f"block {v['index']} is the next", v["index"] == len(got))
            got.append("")
        if v["type"] == "content_block_delta":
            got[v["index"]] += v["delta"].get("text") or v["delta"].get("thinking") or v["delta"].get("partial_json")
    check("and in pieces", got[0] == blocks[0]["thinking"] and got[1] == blocks[1]["text"] and
          [json.loads(g) for g in got[2:]] == inputs and
          sum(v["type"] == "content_block_stop" for v in values) == 4, values)
    body = {"input": "x", "tools": [dict(tool, type="function")]}
    status, value = s.post("/v1/responses", body)
    check("responses: reasoning, message and calls", [i["type"] for i in value["output"]] ==
          ["reasoning", "message", "function_call", "function_call"] and
          [json.loads(i["arguments"]) for i in value["output"][2:]] == inputs, value)
    last = events_of(s, "/v1/responses", body)[-1]["response"]

    def bare(items):
        return [{k: v for k, v in i.items() if k not in ("id", "call_id")} for i in items]
    check("and in pieces", bare(last["output"]) == bare(value["output"]), last)
    s.end()


def raw(s, body):
    data = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", s.port), timeout=60)
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    return connection


def ends(s):
    """SIGTERM while an answer is on its way."""
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


def leaves():
    """One place and a queue of one; clients that go away."""
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
    check("who closes the connection makes room", status == 200, status)
    numbers = s.ask("GET", "/metrics")[2].decode()
    check("without an end to what was asked", "nibble_answers_cancelled_total 2\n" in numbers, numbers)
    first = raw(s, dict(LONG, stream=True))
    first.recv(100)
    s.child.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    code, said = s.end()
    check("a second signal stops at once", code == 128 + signal.SIGTERM, (code, said))


def responses(s):
    status, value = s.post("/v1/responses", {"input": "Why?", "instructions": "Be it."})
    message = value["output"][0]
    check("responses: a text is answered", value["object"] == "response" and value["status"] == "completed" and
          [part["text"] for part in message["content"]] == [ANSWER] and value["usage"]["input_tokens"] == 13, value)
    items = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Why?"}]}]
    status, value = s.post("/v1/responses", {"input": items, "max_output_tokens": 1})
    check("or a conversation, until it is cut", value["status"] == "incomplete" and value["usage"]["input_tokens"] == 6 and
          value["incomplete_details"] == {"reason": "max_output_tokens"}, value)
    status, headers, data = s.ask("POST", "/v1/responses", {"input": items, "stream": True})
    values = [json.loads(line[6:]) for line in data.decode().splitlines() if line.startswith("data: ")]
    check("its events are numbered, and in their order", [v["sequence_number"] for v in values] == list(range(len(values))) and
          values[0]["type"] == "response.created" and values[-1]["type"] == "response.completed" and
          values[-1]["response"]["output"][0]["content"][0]["text"] == ANSWER, values)
    check("and are the answer", "".join(v["delta"] for v in values if v["type"] == "response.output_text.delta") == ANSWER)
    for name, wrong in (("input", 1), ("input", []), ("max_output_tokens", 0), ("tools", {}), ("instructions", 1),
                        ("tool_choice", "required"), ("tool_choice", {"type": "function"}),
                        ("previous_response_id", "resp_1"), ("text.format", {"type": "json_schema"})):
        body = {"text": {"format": wrong}} if name == "text.format" else {name: wrong}
        got = param(s.post("/v1/responses", {"input": "x", **body}))
        check(f"responses: {name} {wrong} is refused by name", got == (400, name), got)
    got = param(s.post("/v1/responses", {"input": [{"type": "item_reference", "id": "x"}]}))
    check("responses: what is no message is refused", got == (400, "input[0]"), got)


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
    browser = shutil.which("chromium")
    if not browser:
        print("skip the page in a browser: no chromium")
        return
    try:
        shown = subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu",
                                f"--user-data-dir={os.getcwd()}/browser", "--virtual-time-budget=3000", "--dump-dom",
                                s.address], capture_output=True, text=True, timeout=30).stdout
    except subprocess.TimeoutExpired:
        print("skip the page in a browser: chromium does not end within 30 s here")
        return
    check("a browser shows the model", "m, 256 tokens of context</span>" in shown, shown[-3000:])
    check("and its memory", "RAM, measured peak" in shown and "<dt>weights</dt>" in shown, shown[-3000:])


def described(s):
    status, value = s.get("/openapi.json")
    schemas = value["components"]["schemas"]
    chat = schemas["ChatRequest"]
    check("the description has the ranges", status == 200 and value["openapi"] == "3.1.0" and
          chat["properties"]["temperature"] == {"type": ["number", "null"], "minimum": 0, "maximum": 2} and
          chat["required"] == ["messages"] and schemas["MessagesRequest"]["properties"]["max_tokens"]["type"] == "integer", chat)
    bodies = {path: operation["post"].get("requestBody") for path, operation in value["paths"].items() if "post" in operation}
    check("every body has a shape", all(body["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[1] in schemas
          for path, body in bodies.items() if path != "/api/show"), bodies)
    check("every address is there", all(s.ask("GET" if "get" in operation else "POST", path.format(model="m"), None if "get" in operation else "{}")[0]
          in (200, 400) for path, operation in value["paths"].items()))


def capped():
    """Bodies as large as they may be, eight at a time, and answers."""
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
    check("probabilities have their room", status == 200, value)
    got = param(s.post(TEXT, {"prompt": "x", "logprobs": 5, "n": 16, "max_tokens": 100}))
    check("or are refused", got == (400, "logprobs"), got)
    check("embeddings, too", s.post("/v1/embeddings", {"input": ["x" * 100] * 4})[0] == 200)
    status, value = s.post(TEXT, {"prompt": "x", "grammar": 'root ::= "a"'})
    check("a grammar has the engine's room, not that of a body", status == 200 and value["choices"][0]["text"] == "a", value)
    check("and the cap is kept", s.peak() <= cap, s.peak())
    s.end()


def kept():
    """The prefix cache on disk: a server that was killed has left what the next one reads."""
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


def loaded(s):
    return {m["id"]: m["status"]["value"] for m in s.get("/v1/models")[1]["data"]}


def until(test, wait=20):
    deadline = time.time() + wait
    while not test() and time.time() < deadline:
        time.sleep(0.01)
    return test()


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
    """Models that fit beside each other under --ram stay; what does not fit makes room or is refused."""
    cap = 40 << 20
    chat = random_model + "-chat"
    s = Server(nibble, None, "--models", f"a={random_model},b={chat}", "-c", "1000", "--ram", str(cap))
    body = {"prompt": "x" * 400, "seed": 1, "max_tokens": 20, "ignore_eos": True}
    both = [s.post(TEXT, dict(body, model=m))[0] for m in "abab"]
    check("two that fit are both loaded", both == [200] * 4 and set(loaded(s).values()) == {"loaded"}, (both, loaded(s)))
    check("under their cap", s.peak() <= cap, s.peak())
    s.end()
    s = Server(nibble, None, "--models", f"a={random_model},b={chat}", "-c", "4000", "--ram", str(cap))
    one = s.post(TEXT, dict(body, model="a"))[1]["choices"][0]["text"]
    check("what is promised counts as well as what is there", s.post(TEXT, dict(body, model="b"))[0] == 200 and
          loaded(s) == {"a": "unloaded", "b": "loaded"}, loaded(s))
    check("and comes again as it was", s.post(TEXT, dict(body, model="a"))[1]["choices"][0]["text"] == one)
    check("under the cap", s.peak() <= cap, s.peak())
    s.end()
    s = Server(nibble, None, "--models", f"a={random_model},b={chat}", "-c", "16000", "--ram", str(cap))
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


basic = Server(nibble, script, "-c", "256", "--alias", "m", "--max-body", "16K")
check("port 0 prints the port", basic.port > 0, basic.address)
basics(basic)
streams(basic)
likely(basic)
looks(basic)
ollama(basic)
anthropic(basic)
responses(basic)
embeddings(basic)
page(basic)
described(basic)
refusals(basic)
code, said = basic.end()
check("SIGTERM exits 0 when nothing is to be done", code == 0, (code, said))
keys()
alike()
held()
texts_and_calls()
leaves()
kept()
several()
sockets()
if "sanitized" not in sys.argv:
    capped()
    fitting()
finish()
