"""The conversations that every template shape is rendered over."""
U = lambda text: {"role": "user", "content": text}
A = lambda text: {"role": "assistant", "content": text}
S = lambda text: {"role": "system", "content": text}

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Current weather of a place, in \u00b0C.",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "description": "The city's name, e.g. \"Z\u00fcrich\""},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
            "days": {"type": "array", "items": {"type": "integer"}, "description": "Which days"}},
            "required": ["city"]},
        "return": {"type": "number"}}},
    {"type": "function", "function": {
        "name": "add", "description": "Adds <two> numbers & says so.",
        "parameters": {"type": "object", "properties": {
            "a": {"type": ["integer", "number"]}, "b": {"type": "number", "description": "second"}},
            "required": ["a", "b"]}}},
]
CALL = {"role": "assistant", "content": None, "tool_calls": [
    {"id": "abcdef123", "type": "function",
     "function": {"name": "get_weather", "arguments": {"city": "Z\u00fcrich", "days": [1, 2], "scale": 1.5}}}]}
CALL_EMPTY = dict(CALL, content="")
TWO_CALLS = {"role": "assistant", "content": "Let me see.", "tool_calls": [
    CALL["tool_calls"][0],
    {"id": "123456789", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": -2e-7}}}]}
RESULT = {"role": "tool", "name": "get_weather", "tool_call_id": "abcdef123", "content": "{\"temperature\": 21.5}"}
RESULT2 = {"role": "tool", "name": "add", "tool_call_id": "123456789", "content": "7"}
THOUGHT = A("<think>\nThe user greets.\n</think>\n\nHello there.")

CONVERSATIONS = {
    "plain": [U("Hello, who are you?")],
    "spaces": [U("  two blanks \n\n"), A("\n answer \n"), U("tabs\t\there\u00a0")],
    "system": [S("Be brief."), U("Why is the sky blue?")],
    "multi": [S(" You are a pirate.\n"), U("Hi"), A("Arr."), U("Where's the \u5b9d\u7269? \U0001f3f4")],
    "ends_with_answer": [U("1+1?"), A("2")],
    "tools": [U("Weather in Z\u00fcrich?"), CALL, RESULT],
    "tools_empty": [S("Use tools."), U("Weather?"), CALL_EMPTY, RESULT, A("21.5 \u00b0C."), U("Thanks")],
    "two_calls": [U("Weather and sum?"), TWO_CALLS, RESULT, RESULT2],
    "thinking": [U("Hi"), THOUGHT, U("Again"), dict(A("Yes."), reasoning_content="Short answer.")],
    "thinking_now": [U("Hi"), dict(A("Yes."), reasoning_content="\nThink.\n")],
    "wrong_order": [A("I begin."), U("No, I do.")],
    "two_users": [U("one"), U("two")],
    "parts": [U([{"type": "text", "text": " look "}, {"type": "image"}, {"type": "text", "text": "!"}])],
    "unknown_role": [U("Hi"), {"role": "critic", "content": "Bad."}],
    "empty": [],
}


def variables(messages, **more):
    v = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": True,
         "bos_token": "<s>", "eos_token": "</s>"}
    v.update(more)
    return v


def conversations():
    for name, messages in CONVERSATIONS.items():
        tools = TOOLS if name.startswith(("tools", "two_calls")) else None
        yield variables(messages, tools=tools)
        if name in ("system", "multi", "ends_with_answer"):
            yield variables(messages, add_generation_prompt=False)
    no_tools = variables(CONVERSATIONS["plain"], enable_thinking=False)
    del no_tools["tools"], no_tools["documents"]
    yield no_tools
    yield variables(CONVERSATIONS["system"], tools=TOOLS, tools_in_user_message=False, date_string="1 Jan 2025")
    yield variables(CONVERSATIONS["plain"], tools=TOOLS, controls={"length": "short"},
                    builtin_tools=["code_interpreter", "web"])
