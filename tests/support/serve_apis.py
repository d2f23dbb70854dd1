"""Checks of the APIs of Ollama, Anthropic and OpenAI's responses."""
import json

from server import check, text_lines
from serve_common import ANSWER, USER, param, lines, loaded, until


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
    events = [line[7:] for line in text_lines(data) if line.startswith("event: ")]
    values = [json.loads(line[6:]) for line in text_lines(data) if line.startswith("data: ")]
    check("anthropic: events in their order", events[:2] == ["message_start", "content_block_start"] and
          events[-3:] == ["content_block_stop", "message_delta", "message_stop"] and
          set(events[2:-3]) <= {"content_block_delta", "ping"} and events == [v["type"] for v in values], events)
    check("they are the answer", "".join(v["delta"]["text"] for v in values if v["type"] == "content_block_delta") == ANSWER)
    for wrong in ({"messages": USER}, dict(body, temperature=1.5), dict(body, tools=[{}]), dict(body, system=1)):
        status, value = s.post("/v1/messages", wrong)
        check(f"anthropic: {str(wrong)[-30:]} is refused", status == 400 and value["type"] == "error" and
              value["error"]["type"] == "invalid_request_error", value)


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
    values = [json.loads(line[6:]) for line in text_lines(data) if line.startswith("data: ")]
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
