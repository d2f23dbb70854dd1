"""Answers that are constrained to a schema or a grammar, and calls of tools in every API."""
import json
import re

from server import Server, check, text_of
from serve_prompts import FUNCTION, allowed, called, choices, forms
from serve_common import nibble, random_model, USER, CHAT, TEXT, PERSON, content, param, events_of, ends


def is_person(text):
    value = json.loads(text)
    return list(value) == ["name", "age", "tags"] and 1 <= len(value["name"]) <= 8 and 0 <= value["age"] <= 150 and \
        set(value["tags"]) <= {"a", "b"} and len(value["tags"]) <= 3


def held():
    """A model of random bytes still gives texts of the grammar."""
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
    for wrong, why in (("root ::= root", "left recursion"), ("root ::= (", "expected"), ("root ::= x", "found 'x'")):
        status, value = s.post(CHAT, {"messages": USER, "grammar": wrong})
        check(f"{wrong} is refused with the reason", status == 400 and why in value["error"]["message"], value)
    hostile = 'root ::= "a" root "b" | "a" root "c" | "d"'
    status, value = s.post(CHAT, {"messages": USER, "grammar": hostile, "logit_bias": {"97": 100, "100": -100}})
    check("a grammar that is too ambiguous ends its own answer", status == 400 and "ambiguous" in value["error"]["message"], value)
    check("and no other", s.post(CHAT, {"messages": USER, "max_tokens": 3})[0] == 200)
    choices(s)
    forms(s)
    numbers(s)
    calls(s)
    messages_tools(s)
    responses_tools(s)
    ends(s)


def numbers(s):
    """Numbers of a schema keep their spelling in every API, those beyond 64 bits their value."""
    for spelled in ("0.1", "1e5", "100000000000000000000", "18446744073709551615", "-0.10"):
        schema, chat = f'{{"n\\u0061me": [0.5], "enum": [{spelled}]}}', '"messages": [{"role": "user", "content": "Why?"}]'
        inner = f'{{"type": "object", "properties": {{"a": {schema}}}, "required": ["a"]}}'
        for path, body in ((CHAT, f'{{{chat}, "x": [1, {{"enum": [2]}}], "response_format": {{"type": "json_schema", "json_schema": {{"schema": {schema}}}}}}}'),
                           (CHAT, f'{{{chat}, "json_schema": {schema}}}'),
                           (CHAT, f'{{{chat}, "guided_json": {schema}}}'),
                           (CHAT, f'{{{chat}, "guided_json": {json.dumps(schema)}}}'),
                           (CHAT, f'{{{chat}, "structured_outputs": {{"json": {schema}}}}}'),
                           (CHAT, f'{{{chat}, "tools": [{{"type": "function", "function": {{"name": "f", "parameters": {inner}}}}}], "tool_choice": "required", "parallel_tool_calls": false}}'),
                           ("/v1/responses", f'{{"input": "x", "text": {{"format": {{"type": "json_schema", "name": "n", "schema": {schema}}}}}}}'),
                           ("/v1/responses", f'{{"input": "x", "tools": [{{"type": "function", "name": "f", "parameters": {inner}}}], "tool_choice": "required"}}'),
                           ("/api/chat", f'{{{chat}, "stream": false, "format": {schema}}}'),
                           ("/v1/messages", f'{{{chat}, "max_tokens": 99, "output_format": {{"type": "json_schema", "schema": {schema}}}}}'),
                           ("/v1/messages", f'{{{chat}, "max_tokens": 300, "tools": [{{"name": "f", "input_schema": {inner}}}], "tool_choice": {{"type": "tool", "name": "f"}}}}')):
            status, _, said = s.ask("POST", path, body)
            text = re.sub(r"\s|\\[nt]?", "", said.decode())
            found = re.search('"(?:content|text|a)":"?' + re.escape(spelled) + '["}]', text)
            check(f"{spelled} is said as it is spelled ({path} {body[45:90]})", status == 200 and found, said)


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


def messages_tools(s):
    """Tools in Anthropic's API, with a model that gives random bytes where no grammar constrains it."""
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
    check("allowed tools may be called", called(s, allowed("auto", [FUNCTION])) == {"f"})
    tool = {"name": "f", "description": "d"}
    inputs = [{"a": 1}, {"b": "é", "c": 18446744073709551615}]
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
    body = {"messages": USER, "tools": [FUNCTION], "stream": False}
    status, value = s.post("/api/chat", body)
    check("ollama: the same calls", [c["function"]["arguments"] for c in value["message"]["tool_calls"]] == inputs and
          value["message"]["thinking"].strip() == "Hm.", value)
    pieces = [json.loads(line) for line in s.ask("POST", "/api/chat", dict(body, stream=True))[2].decode().splitlines()]
    check("and in pieces", [c["function"]["arguments"] for p in pieces for c in p["message"].get("tool_calls", [])] == inputs, pieces)
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
