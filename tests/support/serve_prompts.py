"""Checks of how a prompt is made and what is told about it: continued messages, echo with probabilities, lengths, and
fields that are done or refused by name."""
import json

from server import check, text_of
from serve_common import ANSWER, USER, CHAT, TEXT, content, param

NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
FUNCTION, OTHER = [{"type": "function", "function": {"name": n, "parameters": NOTHING}} for n in "fg"]


def continued(s):
    """The last message of the assistant is continued where it ends, in each API that has a way to ask for it."""
    words = ANSWER.split(" ")
    begun, rest = " ".join(words[:3]), ANSWER[len(" ".join(words[:3])):]
    turns = [*USER, {"role": "assistant", "content": begun}]
    ask = {"messages": turns, "continue_final_message": True, "add_generation_prompt": False}
    for body in (ask, {**ask, "add_generation_prompt": None}):
        status, value = s.post(CHAT, body)
        check("a chat continues its last message", status == 200 and content(value) == rest, value)
    check("as a stream, too", text_of(s.stream(CHAT, ask)) == {0: rest})
    check("the prompt ends with it", s.post("/apply-template", ask)[1] == {"prompt": "<u>Why?<a>" + begun})
    for tail in ("é", "a", "</s>", "x\n"):  # a text may occur in the template too, and keeps its white space
        messages = [*USER, {"role": "assistant", "content": tail}]
        got = s.post("/apply-template", {**ask, "messages": messages})[1]
        check(f"and with {tail!r}", got == {"prompt": "<u>Why?<a>" + tail}, got)
    thought = [*USER, {"role": "assistant", "content": "<think>" + begun}]
    said = s.post(CHAT, {**ask, "messages": thought})[1]["choices"][0]["message"]
    check("a begun thought is continued as one", said["content"] == "" and said["reasoning_content"].strip() == rest.strip(), said)
    check("no new turn", s.post("/apply-template", {"messages": USER, "add_generation_prompt": False})[1] == {"prompt": "<u>Why?"})
    check("a new turn is asked for", s.post("/apply-template", {"messages": turns})[1] == {"prompt": "<u>Why?<a>" + begun + "<a>"})
    got = param(s.post(CHAT, {**ask, "add_generation_prompt": True}))
    check("both at once are refused", got == (400, "add_generation_prompt"), got)
    status, value = s.post("/v1/messages", {"max_tokens": 99, "messages": turns})
    check("anthropic: the last message is continued", value["content"] == [{"type": "text", "text": rest}], value)
    blocks = [*USER, {"role": "assistant", "content": [{"type": "text", "text": begun}]}]
    check("as blocks, too", s.post("/v1/messages", {"max_tokens": 99, "messages": blocks})[1]["content"][0]["text"] == rest)
    counts = [s.post("/v1/messages/count_tokens", {"messages": m})[1]["input_tokens"] for m in (turns, USER)]
    check("and counted", counts[0] == counts[1] + 3, counts)
    status, value = s.post("/api/chat", {"messages": turns, "stream": False})
    check("ollama: the last message is continued", value["message"]["content"] == rest, value)


def variables(s):
    """chat_template_kwargs reach the template; s: a server whose template prints some of them."""
    def prompt(body, path="/apply-template"):
        return s.post(path, {"messages": USER, **body})[1].get("prompt")
    check("a variable reaches the template", prompt({"chat_template_kwargs": {"enable_thinking": False}}) == "<u>Why?<a>[NOTHINK]")
    check("by its value", prompt({"chat_template_kwargs": {"enable_thinking": True}}) == "<u>Why?<a>" == prompt({}))
    check("an effort", prompt({"reasoning_effort": "low"}) == "<u>Why?<a>[low]")
    n = s.post("/v1/messages/count_tokens", {"messages": USER})[1]["input_tokens"]
    counted = s.post("/v1/messages/count_tokens", {"messages": USER, "thinking": {"type": "disabled"}})[1]["input_tokens"]
    check("anthropic: no thinking", counted == n + len("[NOTHINK]"), counted)
    counts = [s.post("/api/chat", {"messages": USER, "stream": False, **b})[1]["prompt_eval_count"] for b in ({}, {"think": False})]
    check("ollama: no thinking", counts[1] == counts[0] + len("[NOTHINK]"), counts)
    for name, wrong in (("chat_template_kwargs", 1), ("chat_template_kwargs", {"messages": []}), ("chat_template_kwargs", {"bos_token": "x"}),
                        ("reasoning_effort", 1)):
        got = param(s.post(CHAT, {"messages": USER, name: wrong}))
        check(f"{name} {wrong} is refused by name", got == (400, name), got)


def echoed(s):
    """With echo the probabilities begin with the prompt's."""
    prompt = "é <u>" + ANSWER[:7]
    ids = s.post("/tokenize", {"content": prompt})[1]["tokens"]
    ask = {"prompt": prompt, "echo": True, "logprobs": 2, "temperature": 0, "max_tokens": 1}
    status, value = s.post(TEXT, ask)
    choice = value["choices"][0]
    found = choice["logprobs"]
    check("echo: a probability for each token", status == 200 and len(found["tokens"]) == len(ids) + 1 ==
          len(found["token_logprobs"]) == len(found["top_logprobs"]) == len(found["text_offset"]), value)
    check("the first one has none", found["token_logprobs"][0] is None and found["top_logprobs"][0] is None and
          all(p <= 0 for p in found["token_logprobs"][1:]), found)
    spelt = [choice["text"][a:b] for a, b in zip(found["text_offset"], [*found["text_offset"][1:], None], strict=True)]
    check("offsets count characters", spelt[3:] == found["tokens"][3:] and found["text_offset"][:4] == [0, 1, 1, 2], found)
    check("what the model says next is likely", found["token_logprobs"][-2] > -0.1, found)
    tops = [p for p, top in zip(found["token_logprobs"][1:], found["top_logprobs"][1:], strict=True) if p == max(top.values())]
    check("and the likeliest", len(tops) >= 2, found)
    status, value = s.post(TEXT, {**ask, "prompt": ids, "max_tokens": 0})
    none = value["choices"][0]
    check("echo: no answer is asked for", status == 200 and none["logprobs"]["token_logprobs"] == found["token_logprobs"][:-1] and
          none["finish_reason"] == "length" and value["usage"]["completion_tokens"] == 0, value)
    check("ids have their text", none["text"] == choice["text"][:len(prompt) - 3] or none["text"] == prompt, none["text"])
    events = [json.loads(e)["choices"][0] for e in s.stream(TEXT, ask)[:-1]]
    told = [p for e in events if e["logprobs"] for p in e["logprobs"]["token_logprobs"]]
    check("echo: a stream tells the same", told == found["token_logprobs"] and
          "".join(e["text"] for e in events) == choice["text"], events)
    status, value = s.post(TEXT, {**ask, "prompt": [ids, ids[:1], prompt], "n": 2, "max_tokens": 0})
    check("echo: several prompts", [len(c["logprobs"]["tokens"]) for c in value["choices"]] ==
          [len(ids), len(ids), 1, 1, len(ids), len(ids)] and value["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, value)
    status, value = s.post(TEXT, {**ask, "prompt": ANSWER, "max_tokens": 5})
    n = len(s.post("/tokenize", {"content": ANSWER})[1]["tokens"])
    check("echo: the token that ends the text counts", value["choices"][0]["text"] == ANSWER and
          len(value["choices"][0]["logprobs"]["tokens"]) == n + 1, value)


def lengths(s):
    for name in ("max_tokens", "max_completion_tokens", "n_predict"):
        status, value = s.post(CHAT, {"messages": USER, name: -1})
        check(f"{name} -1 is no limit", status == 200 and content(value) == ANSWER, value)
    check("top_k -1 is off", s.post(CHAT, {"messages": USER, "top_k": -1})[0] == 200)
    check("no tokens at all", s.post(TEXT, {"prompt": "x<a>", "max_tokens": 0})[1]["choices"][0]["text"] == "")
    n = s.post(CHAT, {"messages": USER})[1]["usage"]["completion_tokens"]
    status, value = s.post(CHAT, {"messages": USER, "min_tokens": n + 4, "max_tokens": n + 8, "seed": 1})
    check("min_tokens: the text does not end before", value["usage"]["completion_tokens"] >= n + 4, value)
    word = ANSWER.split()[2]
    status, value = s.post(CHAT, {"messages": USER, "min_tokens": 4, "stop": word})
    check("nor at a stop string", content(value).startswith(" ".join(ANSWER.split()[:4])), value)
    got = param(s.post(CHAT, {"messages": USER, "min_tokens": 4, "max_tokens": 3}))
    check("min_tokens beyond max_tokens is refused", got == (400, "min_tokens"), got)


def allowed(mode, tools):
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [
        {"type": "function", "function": {"name": t["function"]["name"]}} for t in tools]}}


def called(s, choice):
    status, value = s.post(CHAT, {"messages": USER, "tools": [FUNCTION, OTHER], "tool_choice": choice, "seed": 1, "max_tokens": 999})
    return {c["function"]["name"] for c in value["choices"][0]["message"].get("tool_calls") or []} if status == 200 else value


def choices(s):
    custom = {"type": "custom", "custom": {"name": "f"}}
    got = param(s.post(CHAT, {"messages": USER, "tools": [FUNCTION, custom]}))
    check("a tool of another type is refused by name", got == (400, "tools[1].type"), got)
    got = param(s.post(CHAT, {"messages": USER, "tools": [FUNCTION], "tool_choice": custom}))
    check("so is its choice", got == (400, "tool_choice"), got)
    for tool, name in ((OTHER, "g"), (FUNCTION, "f")):
        got = called(s, allowed("required", [tool]))
        check(f"only {name} is allowed", got == {name}, got)
    flat = [dict(t["function"], type="function") for t in (FUNCTION, OTHER)]
    choice = {"type": "allowed_tools", "mode": "required", "tools": flat[1:]}
    status, value = s.post("/v1/responses", {"input": "x", "tools": flat, "tool_choice": choice, "seed": 1})
    check("and in responses", {i["name"] for i in value["output"] if i["type"] == "function_call"} == {"g"}, value)
    for wrong in ({}, {"mode": "auto"}, {"mode": "some", "tools": flat}, {"mode": "auto", "tools": [{"name": "h"}]}):
        got = param(s.post("/v1/responses", {"input": "x", "tools": flat, "tool_choice": {"type": "allowed_tools", **wrong}}))
        check(f"allowed tools {wrong} are refused", got == (400, "tool_choice"), got)


def forms(s):
    """vLLM's names for the form of an answer; s: a model of random bytes."""
    for body in ({"guided_choice": ["yes", 'n"o']}, {"structured_outputs": {"choice": ["yes", 'n"o']}}):
        for seed in range(4):
            said = s.post(TEXT, {"prompt": "x", "seed": seed, **body})[1]["choices"][0]["text"]
            check(f"one of the choices is said ({body}, {seed})", said in ("yes", 'n"o'), said)
    schema = {"type": "integer", "minimum": 10, "maximum": 12}
    for body in ({"guided_json": schema}, {"guided_json": json.dumps(schema)}, {"structured_outputs": {"json": schema}}):
        said = s.post(CHAT, {"messages": USER, "seed": 1, **body})[1]
        check(f"a schema is kept ({str(body)[:40]})", content(said).strip() in ("10", "11", "12"), said)
    for body in ({"guided_grammar": 'root ::= "a"+ "b"'}, {"structured_outputs": {"grammar": 'root ::= "a"+ "b"'}}):
        said = s.post(TEXT, {"prompt": "x", "seed": 1, "max_tokens": 200, **body})[1]["choices"][0]["text"]
        check(f"a grammar is kept ({str(body)[:40]})", set(said) <= {"a", "b"}, said)
    status, value = s.post("/v1/messages", {"max_tokens": 99, "messages": USER, "output_format": {"type": "json_schema", "schema": schema}})
    check("anthropic: a schema is kept", value["content"][0]["text"].strip() in ("10", "11", "12"), value)
    for field, body in (("guided_regex", {"guided_regex": "a+"}), ("structured_outputs.regex", {"structured_outputs": {"regex": "a"}}),
                        ("structured_outputs.new", {"structured_outputs": {"new": {}}}), ("structured_outputs", {"structured_outputs": []}),
                        ("guided_choice", {"guided_choice": []}), ("guided_choice", {"guided_choice": ["a", 1]}),
                        ("guided_json", {"guided_json": "{"}), ("guided_json", {"guided_json": {"type": "object"}, "grammar": 'root ::= "a"'})):
        got = param(s.post(TEXT, {"prompt": "x", **body}))
        check(f"{field} is refused by name ({str(body)[-30:]})", got == (400, field), got)


def unseen(s):
    """Control tokens are never a part of an answer's text, whatever the API; s: the model with a script."""
    for name, token in (("<u>", 257), ("<s>", 256)):
        only = {"logit_bias": {str(token): 100}, "max_tokens": 3}
        status, value = s.post(CHAT, {"messages": USER, **only})
        check(f"{name} is no text of a chat", content(value) == "" and value["usage"]["completion_tokens"] == 3, value)
        check("nor of a stream", text_of(s.stream(CHAT, {"messages": USER, **only}))[0] == "")
        status, value = s.post(TEXT, {"prompt": "x", "logprobs": 1, **only})
        check("nor of a completion", value["choices"][0]["text"] == "" and len(value["choices"][0]["logprobs"]["tokens"]) == 3, value)
    status, value = s.post(CHAT, {"messages": USER, "logit_bias": {"259": 100}})
    check("neither is the one that ends it", content(value) == "" and value["choices"][0]["finish_reason"] == "stop", value)


def rerendered(s):
    """An answer that comes back in the next turn's prompt keeps its place in the cache; s: the model with a script."""
    for turns in ([], [{"role": "system", "content": "Be <s>brief</s>."}]):
        first = [*turns, {"role": "user", "content": "Why <u>so</u>?"}]
        value = s.post(CHAT, {"messages": first})[1]
        n = value["usage"]["prompt_tokens"] + value["usage"]["completion_tokens"]
        again = [*first, {"role": "assistant", "content": content(value)}, {"role": "user", "content": "And?"}]
        usage = s.post(CHAT, {"messages": again})[1]["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        check(f"an answer is computed once ({len(turns)} turns before)", n - 2 <= cached < usage["prompt_tokens"], (n, usage))


def refused(s):
    """Fields that would change the answer are refused by name; values that change nothing are not."""
    for name, wrong, usual in (("best_of", 2, 1), ("prompt_logprobs", 1, None), ("use_beam_search", True, False),
                               ("length_penalty", 2, 1.0), ("stop_token_ids", [1], []), ("bad_words", ["a"], []),
                               ("allowed_token_ids", [1], None), ("skip_special_tokens", False, True),
                               ("add_special_tokens", False, True), ("include_stop_str_in_output", True, False),
                               ("chat_template", "x", None), ("documents", [{}], []), ("functions", [{}], []),
                               ("function_call", "auto", "none"), ("modalities", ["audio"], ["text"]), ("n_probs", 3, 0),
                               ("lora", [{"id": 0}], []), ("suffix", "x", "")):
        got = param(s.post(CHAT, {"messages": USER, name: wrong}))
        check(f"{name} {wrong} is refused by name", got == (400, name), got)
        check(f"{name} {usual} is taken", s.post(CHAT, {"messages": USER, "max_tokens": 1, name: usual})[0] == 200)
    for path, body, name in (("/v1/messages", {"max_tokens": 9, "mcp_servers": [{}]}, "mcp_servers"), ("/api/chat", {"template": "x"}, "template"),
                             ("/api/generate", {"prompt": "x", "context": [1]}, "context")):
        status, value = s.post(path, {"messages": USER, **body})
        check(f"{path}: {name} is refused by name", status == 400 and name in json.dumps(value), value)
    check("responses: prompt is refused by name", param(s.post("/v1/responses", {"input": "x", "prompt": {"id": "x"}})) == (400, "prompt"))


def others(s):
    """What clients of other servers ask for."""
    version = s.get("/api/version")[1]["version"].split(".")
    check("ollama: a version in its scheme", [int(v) for v in version] >= [0, 6, 4], version)
    model = s.get("/api/tags")[1]["models"][0]
    check("ollama: a digest and a number format", len(model["digest"]) == 64 and set(model["digest"]) <= set("0123456789abcdef") and
          model["details"]["quantization_level"] == "BF16" and model["details"]["format"] == "safetensors", model)
    shown = s.post("/api/show", {"model": "m"})[1]
    check("ollama: the template is shown", "add_generation_prompt" in shown["template"], shown)
    check("ollama: they are shown, too", shown["details"]["quantization_level"] == "BF16", shown)
    status, value = s.post("/api/embeddings", {"model": "m", "prompt": "one"})
    check("ollama: the older embeddings", status == 200 and value["embedding"] ==
          s.post("/api/embed", {"model": "m", "input": "one"})[1]["embeddings"][0], value)
    check("ollama: they have one prompt", s.post("/api/embeddings", {"model": "m", "prompt": 1})[0] == 400)
    status, headers, data = s.ask("POST", "/api/pull", {"model": "m"})
    check("ollama: a served model is there", status == 200 and json.loads(data.splitlines()[-1]) == {"status": "success"}, data)
    check("or as one value", s.post("/api/pull", {"name": "m", "stream": False}) == (200, {"status": "success"}))
    status, value = s.post("/api/pull", {"model": "other"})
    check("ollama: another one is not", status == 404 and isinstance(value["error"], str), value)
    status, value = s.post("/api/create", {})
    check("ollama: what is not there", status == 404 and isinstance(value["error"], str), value)
    value = s.get("/v1/models")[1]
    one = value["data"][0]
    check("anthropic: the list of models", value["first_id"] == value["last_id"] == one["id"] and value["has_more"] is False and
          one["type"] == "model" and one["display_name"] and one["created_at"].endswith("Z"), value)
    info = s.get("/tokenizer_info")[1]
    check("vllm: the tokenizer", set(info) >= {"bos_token", "eos_token"}, info)
    status, value = s.post("/tokenize", {"prompt": "aé", "add_special_tokens": False})
    check("vllm: its tokens", value == {"tokens": [97, 195, 169], "count": 3}, value)
    check("vllm: and their text", s.post("/detokenize", {"tokens": value["tokens"]})[1]["prompt"] == "aé")
