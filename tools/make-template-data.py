#!/usr/bin/env python3
"""Makes tests/data/templates/*.json: chat templates with what Python's jinja2 renders from them, in exactly the
environment that transformers uses. Needs transformers and jinja2 >= 3.1.6.

    tools/make-template-data.py [OUT_DIR] [--fuzz N --seed S]

Each file: {"template": ..., "now": seconds, "cases": [{"variables": {...}, "expected": text} or
{"variables", "error": message of raise_exception} or {"variables", "fails": true}]}, or for many small templates
{"now", "templates": [{"template", "variables", ...}, ...]}. With --fuzz only fuzz.json is made: N random templates.
Three things of jinja2 are left out of the random ones, because nibble differs on purpose: errors that vanish when
constants are folded, names that a template assigns only after an inner scope has read them (jinja2: undefined there),
and Markup (escaping twice).
The template shapes follow what model families publish; they are written here by hand, in short form.
"""
import argparse
import copy
import datetime as real_datetime
import json
import os
import random
import warnings

import jinja2
from transformers.utils import chat_template_utils

NOW = 1721990096  # 2024-07-26 10:34:56 UTC


class FixedNow(real_datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(1970, 1, 1) + real_datetime.timedelta(seconds=NOW)


chat_template_utils.datetime = FixedNow


def compiled(template):
    return chat_template_utils._cached_compile_jinja_template(template)


def unfolded(template):
    """The same without folding constants, which hides some errors."""
    env = compiled("").environment
    env.optimized = False
    getitem = env.getitem

    def strict_getitem(obj, argument):
        return obj[argument] if isinstance(argument, slice) else getitem(obj, argument)

    env.getitem = strict_getitem
    return env.from_string(template)


def outcome(template, variables, compiled=compiled):
    """What the reference does: text, a raised message, or some failure."""
    try:
        return {"expected": compiled(template).render(**copy.deepcopy(variables))}
    except jinja2.exceptions.TemplateSyntaxError:
        return {"fails": True}
    except jinja2.exceptions.SecurityError:
        return {"fails": True}
    except jinja2.exceptions.TemplateRuntimeError:
        return {"fails": True}
    except jinja2.exceptions.TemplateError as e:
        return {"error": str(e)} if type(e) is jinja2.exceptions.TemplateError else {"fails": True}
    except Exception:
        return {"fails": True}


# ---- the template shapes -------------------------------------------------------------------------------------

T = {}

T["chatml"] = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""

T["llama2"] = """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""

T["llama31"] = """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- The system message is taken out so that it can stand in the right place. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{#- System message #}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{%- if builtin_tools is defined %}
    {{- "Tools: " + builtin_tools | reject('equalto', 'code_interpreter') | join(", ") + "\\n\\n"}}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {{- "You have access to the following functions.\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}

{%- if tools_in_user_message and not tools is none %}
    {#- The first user message carries the tools. #}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("Cannot put tools in the first user message when there's no first user message!") }}
{%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' -}}
    {{- "Given the following functions, please respond with a JSON for a function call.\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
    {{- first_user_message + "<|eot_id|>"}}
{%- endif %}

{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {%- if builtin_tools is defined and tool_call.name in builtin_tools %}
            {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
            {{- "<|python_tag|>" + tool_call.name + ".call(" }}
            {%- for arg_name, arg_val in tool_call.arguments | items %}
                {{- arg_name + '="' + arg_val + '"' }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- endif %}
                {%- endfor %}
            {{- ")" }}
        {%- else  %}
            {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
            {{- '{"name": "' + tool_call.name + '", ' }}
            {{- '"parameters": ' }}
            {{- tool_call.arguments | tojson }}
            {{- "}" }}
        {%- endif %}
        {%- if builtin_tools is defined %}
            {{- "<|eom_id|>" }}
        {%- else %}
            {{- "<|eot_id|>" }}
        {%- endif %}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

T["mistral_v03"] = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}

{#- Apart from tool messages, roles alternate. #}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- else %}
                    {{- "]" }}
                {%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
            {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- else %}
                {{- "]" + eos_token }}
            {%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content|string + ", " }}
        {%- if not message.tool_call_id is defined or message.tool_call_id|length != 9 %}
            {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
        {%- endif %}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
"""

T["gemma2"] = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '
' + message['content'] | trim + '<end_of_turn>
' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model
'}}{% endif %}"""

T["gemma3"] = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '

' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '

' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '
' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model
'}}
{%- endif -%}
"""

T["phi3"] = """{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>\\n' + message['content'] + '<|end|>\\n'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"""

T["phi4"] = """{% for message in messages %}{% if (message['role'] == 'system') %}{{'<|im_start|>system<|im_sep|>' + message['content'] + '<|im_end|>'}}{% elif (message['role'] == 'user') %}{{'<|im_start|>user<|im_sep|>' + message['content'] + '<|im_end|>'}}{% elif (message['role'] == 'assistant') %}{{'<|im_start|>assistant<|im_sep|>'}}{% generation %}{{message['content'] + '<|im_end|>'}}{% endgeneration %}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}"""

QWEN_TOOLS = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\nYou are provided with function signatures within <tools></tools> XML tags:\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\\n<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}\\n</tool_call><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
"""

T["qwen25"] = QWEN_TOOLS + """{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

T["qwen3"] = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<tool_call>\\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

T["deepseek_r1"] = """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='') %}{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}{{bos_token}}{{ns.system_prompt}}{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<｜User｜>' + message['content']}}{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is none %}{%- set ns.is_tool = false -%}{%- for tool in message['tool_calls']%}{%- if not ns.is_first %}{{'<｜Assistant｜><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] + '\\n' + '```json' + '\\n' + tool['function']['arguments']|tojson + '\\n' + '```' + '<｜tool▁call▁end｜>'}}{%- set ns.is_first = true -%}{%- else %}{{'\\n' + '<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] + '<｜tool▁call▁end｜>'}}{{'<｜tool▁calls▁end｜><｜end▁of▁sentence｜>'}}{%- endif %}{%- endfor %}{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is not none %}{%- if ns.is_tool %}{{'<｜tool▁outputs▁end｜>' + message['content'] + '<｜end▁of▁sentence｜>'}}{%- set ns.is_tool = false -%}{%- else %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}{%- endif %}{%- endif %}{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{%- if ns.is_output_first %}{{'<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>'}}{%- set ns.is_output_first = false %}{%- else %}{{'\\n<｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>'}}{%- endif %}{%- endif %}{%- endfor -%}{% if ns.is_tool %}{{'<｜tool▁outputs▁end｜>'}}{% endif %}{% if add_generation_prompt and not ns.is_tool %}{{'<｜Assistant｜><think>\\n'}}{% endif %}"""

T["command_r"] = """{{ bos_token }}{%- macro json_to_python_type(json_spec) %}
{%- set basic_type_map = {
    "string": "str",
    "number": "float",
    "integer": "int",
    "boolean": "bool"
} %}
{%- if basic_type_map[json_spec.type] is defined %}
    {{- basic_type_map[json_spec.type] }}
{%- elif json_spec.type == "array" %}
    {{- "List[" +  json_to_python_type(json_spec.items) + "]"}}
{%- elif json_spec.type == "object" %}
    {{- "Dict[str, " + json_to_python_type(json_spec.additionalProperties) + ']'}}
{%- elif json_spec.type is iterable %}
    {{- "Union[" }}
    {%- for t in json_spec.type %}
      {{- json_to_python_type({"type": t}) }}
      {%- if not loop.last %}
        {{- "," }}
    {%- endif %}
    {%- endfor %}
    {{- "]" }}
{%- else %}
    {{- "Any" }}
{%- endif %}
{%- endmacro %}
{%- macro tool_parser(tools) %}
{%- for tool in tools %}
    {%- if tool.type is defined %}
        {%- set tool = tool.function %}
    {%- endif %}
    {{-"\\n\\n```python\\ndef " + tool.name + "("}}
    {%- for param_name, param_fields in tool.parameters.properties.items() %}
        {%- if loop.index > 1 %}
            {{- ", " }}
        {%- endif %}
        {{- param_name + ": " }}
        {%- if not param_name in tool.parameters.required %}
            {{- "Optional[" + json_to_python_type(param_fields) + "] = None"}}
        {%- else %}
            {{- json_to_python_type(param_fields) }}
        {%- endif %}
    {%- endfor %}
    {{- ") -> List[Dict]:\\n    \\"\\"\\"" + tool.description }}
    {%- if tool.parameters.properties|length != 0 %}
        {{- "\\n\\n    Args:\\n        " }}
        {%- for param_name, param_fields in tool.parameters.properties.items() %}
            {%- if loop.index > 1 %}
                {{- "\\n        " }}
            {%- endif %}
            {{- param_name + " ("+ json_to_python_type(param_fields) + "): " + param_fields.description|default("", true) }}
        {%- endfor %}
    {%- endif %}
    {{- "\\n    \\"\\"\\"\\n    pass\\n```" }}
{%- endfor %}
{%- endmacro %}
{%- if messages[0]['role'] == 'system' %}
  {%- set loop_messages = messages[1:] %}
  {%- set system_message = messages[0]['content'] %}
{%- else %}
  {%- set loop_messages = messages %}
  {%- set system_message = 'You are Command-R.' %}
{%- endif %}
{{- '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' + system_message }}
{%- if tools %}{{ tool_parser(tools) }}{% endif %}
{{- '<|END_OF_TURN_TOKEN|>' }}
{%- for message in loop_messages %}
  {%- set content = message['content'] %}
  {%- if message.role == 'user' %}
    {{- '<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>' }}
  {%- elif message.role == 'assistant' and message.tool_calls is defined and message.tool_calls %}
    {{- '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>Action: ```json\\n[\\n' }}
    {%- for tool_call in message.tool_calls|map(attribute="function") %}
    {{ {"tool_name": tool_call.name, "parameters": tool_call.arguments}|tojson(indent=4)|indent(4, true) }}
    {%- if not loop.last %},{% endif %}
    {%- endfor %}
    {{- '\\n]```\\n<|END_OF_TURN_TOKEN|>' }}
  {%- elif message.role == 'assistant' %}
    {{- '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>' }}
  {%- elif message.role == 'tool' %}
    {{- '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|><results>\\nDocument: ' + loop.index0|string + '\\n' + content|string + '</results><|END_OF_TURN_TOKEN|>' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}
"""

T["granite3"] = """{%- if messages[0]['role'] == 'system' %}
     {%- set system_message = messages[0]['content'] %}
     {%- set loop_messages = messages[1:] %}
 {%- else %}
     {%- set system_message = "Knowledge Cutoff Date: April 2024.
Today's Date: " + strftime_now('%B %d, %Y') + ".
You are Granite, developed by IBM." %}
     {%- if tools and documents %}
         {%- set system_message = system_message + " You are a helpful AI assistant with access to the following tools and documents." %}
     {%- elif tools %}
         {%- set system_message = system_message + " You are a helpful AI assistant with access to the following tools. When a tool is required to answer the user's query, respond with <|tool_call|> followed by a JSON list of tools used." %}
     {%- elif thinking %}
         {%- set system_message = system_message + " Respond to every user query in a comprehensive and detailed way." %}
     {%- else %}
         {%- set system_message = system_message + " You are a helpful AI assistant." %}
     {%- endif %}
     {%- if 'citations' in controls and documents %}
         {%- set system_message = system_message + '

In your response, use the symbols <co> and </co>.' %}
     {%- endif %}
     {%- set loop_messages = messages %}
 {%- endif %}
 {{- '<|start_of_role|>system<|end_of_role|>' + system_message + '<|end_of_text|>
' }}
 {%- if tools %}
     {{- '<|start_of_role|>tools<|end_of_role|>' }}
     {{- tools | tojson(indent=4) }}
     {{- '<|end_of_text|>
' }}
 {%- endif %}
 {%- for message in loop_messages %}
     {{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' }}
     {%- if message.tool_calls %}{{- '<|tool_call|>' + (message.tool_calls | map(attribute='function') | list | tojson) }}{%- endif %}
     {{- (message['content'] or '') + '<|end_of_text|>
' }}
     {%- if loop.last and add_generation_prompt %}
         {{- '<|start_of_role|>assistant' }}
             {%- if controls %}
                 {{- ' ' + controls | tojson()}}
             {%- endif %}
         {{- '<|end_of_role|>' }}
     {%- endif %}
 {%- endfor %}"""

T["zephyr"] = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>
'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""

T["falcon3"] = """{%- if tools %}
{{- '<|system|>\\n' }}
{%- if messages[0]['role'] == 'system' %}
{{- messages[0]['content'] }}
{%- set remaining_messages = messages[1:] %}
{%- else %}
{%- set remaining_messages = messages %}
{%- endif %}
{{- 'You are a Falcon assistant skilled in function calling.\\n\\n# Available Functions:\\n' }}
{{- tools|tojson(indent=2) }}
{%- else %}
{%- set remaining_messages = messages %}
{%- endif %}
{%- for message in remaining_messages %}
{%- if message['role'] == 'system' %}
{{- '<|system|>\\n' + message['content'] + '\\n' }}
{%- elif message['role'] == 'user' %}
{{- '<|user|>\\n' + message['content'] + '\\n' }}
{%- elif message['role'] == 'assistant' %}
{%- if not loop.last %}
{{- '<|assistant|>\\n' + (message['content'] or '') + eos_token + '\\n' }}
{%- else %}
{{- '<|assistant|>\\n' + (message['content'] or '') + eos_token }}
{%- endif %}
{%- endif %}
{%- if loop.last and add_generation_prompt %}
{{- '<|assistant|>\\n' }}
{%- endif %}
{%- endfor %}"""

T["glm4"] = """[gMASK]<sop>{%- if tools -%}
<|system|>
# 可用工具
{% for tool in tools %}
{%- set function = tool.function if tool.get("function") else tool %}

## {{ function.name }}

{{ function | tojson(indent=4, ensure_ascii=False) }}
在调用上述函数时，请使用 Json 格式表示调用的参数。
{%- endfor %}
{%- endif -%}

{%- for msg in messages %}
{%- if msg.role == 'system' %}
<|system|>
{{ msg.content }}
{%- endif %}
{%- endfor %}

{%- for message in messages if message.role != 'system' %}
{%- set role = message['role'] %}
{%- set content = message['content'] %}
{%- set meta = message.get("metadata", "") %}

{%- if role == 'user' %}
<|user|>
{{ content }}
{%- elif role == 'assistant' and not meta %}
<|assistant|>
{{ content }}
{%- elif role == 'assistant' and meta %}
<|assistant|>{{ meta }}
{{ content }}
{%- elif role == 'tool' %}
<|observation|>
{{ content }}
{%- endif %}
{%- endfor %}
{% if add_generation_prompt %}<|assistant|>{% endif %}"""

T["smollm3"] = """{# ───── defaults ───── #}
{%- if enable_thinking is not defined -%}
{%- set enable_thinking = true -%}
{%- endif -%}
{# ───── reasoning mode ───── #}
{%- if enable_thinking -%}
  {%- set reasoning_mode = "/think" -%}
{%- else -%}
  {%- set reasoning_mode = "/no_think" -%}
{%- endif -%}
{# ───── header (system message) ───── #}
{{- "<|im_start|>system\\n" -}}
{%- if messages[0].role == "system" -%}
  {%- set system_message = messages[0].content -%}
  {%- if "/no_think" in system_message -%}
    {%- set reasoning_mode = "/no_think" -%}
  {%- elif "/think" in system_message -%}
    {%- set reasoning_mode = "/think" -%}
  {%- endif -%}
  {%- set custom_instructions = system_message.replace("/no_think", "").replace("/think", "").rstrip() -%}
{%- endif -%}
{%- if "/system_override" in system_message -%}
  {{- custom_instructions.replace("/system_override", "").rstrip() -}}
  {{- "<|im_end|>\\n" -}}
{%- else -%}
  {{- "## Metadata\\n\\n" -}}
  {{- "Knowledge Cutoff Date: June 2025\\n" -}}
  {%- set today = strftime_now("%d %B %Y") -%}
  {{- "Today Date: " ~ today ~ "\\n" -}}
  {{- "Reasoning Mode: " + reasoning_mode + "\\n\\n" -}}
  {{- "## Custom Instructions\\n\\n" -}}
  {%- if custom_instructions -%}
    {{- custom_instructions + "\\n\\n" -}}
  {%- elif reasoning_mode == "/think" -%}
    {{- "You are a helpful AI assistant named SmolLM. Think first.\\n\\n" -}}
  {%- else -%}
    {{- "You are a helpful AI assistant named SmolLM.\\n\\n" -}}
  {%- endif -%}
  {%- if xml_tools or python_tools or tools -%}
    {{- "### Tools\\n\\n" -}}
    {%- if xml_tools or tools -%}
      {%- if tools -%}
        {%- set xml_tools = tools -%}
      {%- endif -%}
      {%- set ns = namespace(xml_tool_string="You may call one or more functions.\\n\\n<tools>\\n") -%}
      {%- for tool in xml_tools[:] -%}
        {%- set ns.xml_tool_string = ns.xml_tool_string ~ (tool | string) ~ "\\n" -%}
      {%- endfor -%}
      {%- set xml_tool_string = ns.xml_tool_string + "</tools>" -%}
      {{- xml_tool_string -}}
    {%- endif -%}
    {{- "\\n\\n" -}}
    {{- "<|im_end|>\\n" -}}
  {%- endif -%}
{%- endif -%}
{# ───── main loop ───── #}
{%- for message in messages -%}
    {%- set content = message.content if message.content is string else "" -%}
    {%- if message.role == "user" -%}
        {{ "<|im_start|>" + message.role + "\\n"  + content + "<|im_end|>\\n" }}
    {%- elif message.role == "assistant" -%}
        {% generation %}
        {%- if reasoning_mode == "/think" -%}
            {{ "<|im_start|>assistant\\n" + content.lstrip("\\n") + "<|im_end|>\\n" }}
        {%- else -%}
            {{ "<|im_start|>assistant\\n" + "<think>\\n\\n</think>\\n" + content.lstrip("\\n") + "<|im_end|>\\n" }}
        {%- endif -%}
        {% endgeneration %}
    {%- elif message.role == "tool" -%}
    {{ "<|im_start|>" + "user\\n"  + content + "<|im_end|>\\n" }}
    {%- endif -%}
{%- endfor -%}
{# ───── generation prompt ───── #}
{%- if add_generation_prompt -%}
    {%- if reasoning_mode == "/think" -%}
        {{ "<|im_start|>assistant\\n" }}
    {%- else -%}
        {{ "<|im_start|>assistant\\n" + "<think>\\n\\n</think>\\n"  }}
    {%- endif -%}
{%- endif -%}"""

T["olmo2"] = """{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{{ '<|system|>
' + message['content'] + '
' }}{% elif message['role'] == 'user' %}{{ '<|user|>
' + message['content'] + '
' }}{% elif message['role'] == 'assistant' %}{% if not loop.last %}{{ '<|assistant|>
'  + message['content'] + eos_token + '
' }}{% else %}{{ '<|assistant|>
'  + message['content'] + eos_token }}{% endif %}{% endif %}{% if loop.last and add_generation_prompt %}{{ '<|assistant|>
' }}{% endif %}{% endfor %}"""

T["internlm2"] = """{{ bos_token }}{% for message in messages %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""

# A schema printer with nested and recursive macros, keyword arguments and call blocks, as the newest templates have.
T["schema_macros"] = """{%- macro render_type(spec, is_nullable=false) -%}
    {%- if spec.type == "array" -%}
        {%- if spec['items'] -%}
            {%- set inner = render_type(spec['items'], is_nullable=true) -%}
            {{- inner + "[]" if inner|length < 50 else "any[]" -}}
        {%- else -%}any[]{%- endif -%}
        {%- if spec.nullable %} | null{% endif -%}
    {%- elif spec.type is defined and spec.type is iterable and spec.type is not string and spec.type is not mapping and spec.type[0] is defined -%}
        {{- spec.type | join(" | ") -}}
    {%- elif spec.oneOf -%}
        {%- for variant in spec.oneOf -%}
            {{- render_type(variant) -}}
            {%- if variant.description %}{{- "// " + variant.description }}{%- endif -%}
            {%- if not loop.last %}{{ " | " }}{%- endif -%}
        {%- endfor -%}
    {%- elif spec.type == "string" -%}
        {%- if spec.enum %}{{ '"' + spec.enum|join('" | "') + '"' }}{% else %}string{% endif -%}
    {%- elif spec.type in ("number", "integer") -%}number
    {%- elif spec.type == "object" -%}
        {%- if spec.properties -%}
            {{- "{\\n" }}
            {%- for name, prop in spec.properties.items() %}
                {{- "  " ~ name }}{%- if name not in (spec.required or []) %}?{% endif %}{{ ": " ~ render_type(prop) }}
                {%- if prop.default is defined %}{{ " /* default: " ~ prop.default|tojson ~ " */" }}{% endif %}
                {%- if not loop.last %}{{ ",\\n" }}{% else %}{{ "\\n" }}{% endif %}
            {%- endfor -%}
            {{- "}" }}
        {%- else -%}object{%- endif -%}
    {%- else -%}any{%- endif -%}
{%- endmacro -%}
{%- macro section(title, level=2) -%}
{{ "#" * level }} {{ title }}
{{ caller() | indent(2, true) }}
{%- endmacro -%}
{%- for message in messages %}<|start|>{{ message.role }}<|message|>{{ message.content or "" }}<|end|>
{% endfor %}
{%- for tool in tools or [] %}
{% call section(tool.function.name, level=loop.index + 1) %}
{{ tool.function.description }}
type {{ tool.function.name }} = (_: {{ render_type(tool.function.parameters) }}) => any;
{% endcall %}
{% else %}
{% filter upper %}no tools{% endfilter %}

{% endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}"""

# ---- the conversations ---------------------------------------------------------------------------------------

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


# ---- small templates for one rule each -----------------------------------------------------------------------

V = {"a": 1, "b": 2.5, "s": "Hello World", "n": None, "t": True, "e": "", "neg": -7, "x": [3, 1, 2], "y": [],
     "d": {"k": "v", "items": 5, "z": {"q": [10, 20]}}, "u": "\u00e4\u00df\u4e2d\U0001f600e", "words": ["b", "A", "c", "a"],
     "ms": [{"r": "u", "c": "one", "n": 2}, {"r": "a", "c": "two", "n": 1}, {"r": "u", "c": "three"}],
     "big": 1e16, "small": 1.5e-7, "html": "<a href=\"x\">&'</a>", "lines": "one\n\n  two\nthree\n"}

MICRO = """{{ a + 1 }} {{ a - 2 }} {{ 7 // 2 }} {{ neg // 2 }} {{ neg % 3 }} {{ 7 % -3 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 7 / 2 }} {{ 4 / 2 }}
{{ -a }} {{ +b }} {{ -2 ** 2 }} {{ - a | abs }} {{ 1.0 }} {{ 1e3 }} {{ 1.5e-10 }} {{ big }} {{ small }} {{ 0.1 + 0.2 }} {{ 1e22 }} {{ 123456789012345680.0 }}
{{ b // 1 }} {{ -b // 1 }} {{ b % 1 }} {{ -b % 2 }} {{ true + 1 }} {{ true }} {{ none }} {{ n }} {{ [1, 'a', none, true, 1.5, 'it\\'s', "q\\"", "both'\\""] }}
{{ {'a': 1, 'b': [1, {'c': ()}], 2: (1,), none: 'x'} }} {{ (1, 2) }} {{ () }} {{ 1, 2 }}
{{ "a\\nb\\t\\\\ \\x41 \\u00e9 \\101 \\q" }} {{ ["\\n\\x07\\u200b\\u00e9"] }}
{{ s[0] }}{{ s[-1] }}{{ s[1:4] }}{{ s[::-1] }}{{ s[::2] }}{{ s[-3:] }}{{ s[:-3] }}{{ s[20:] }}{{ s[5:2] }}{{ s[4:1:-1] }}{{ s[:3:-2] }}
{{ u[0] }}{{ u[2] }}{{ u[-1] }}{{ u[1:4] }}{{ u[::-1] }}{{ u | length }}{{ u | upper }}{{ u.upper() }}
{{ x[0] }}{{ x[-1] }}{{ x[5] }}{{ x[1:] }}{{ x[::-1] }}{{ x[-2:] }}{{ (1,2,3)[1:] }}{{ range(5)[1:3] }}{{ range(10)[::3] }}{{ range(3) }}
{{ d.k }} {{ d['k'] }} {{ d['items'] }} {{ d.z.q[1] }} {{ d.missing }} {{ d['missing'] }} {{ d.items() | list }} {{ d.keys() }} {{ d.values() | list }}
{{ d.missing.deeper }}
{{ missing }}|{{ missing ~ 'x' }}|{{ missing | default('d') }}|{{ missing is defined }}|{{ [missing] }}
{{ missing + 1 }}
{{ missing.x }}
{{ missing() }}
{{ missing[0] }}
{{ n.x }}|{{ n['x'] }}
{{ n.x.y }}
{{ 'x' if missing }}|{{ 'x' if t else 'y' }}|{{ 'a' if n else 'b' if t else 'c' }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 'a' == 1 }} {{ n == none }} {{ x == [3, 1, 2] }} {{ 1 != 2 }}
{{ 'a' < 1 }}
{{ 1 in x }} {{ 9 not in x }} {{ 'll' in s }} {{ 'k' in d }} {{ 'v' in d }} {{ 'a' in missing }} {{ not t }} {{ not 1 in x }}
{{ 1 in s }}
{{ 1 in 5 }}
{{ t and 'x' }} {{ n or 'y' }} {{ e or n or 0 }} {{ n and 1 }}
{{ 'a' ~ 1 ~ none ~ 2.0 ~ [1] }} {{ 'a' + 'b' }} {{ 'ab' * 3 }} {{ 2 * 'x' }} {{ [1] * 2 + [3] }} {{ (1,) + (2,) }}
{{ 'a' + 1 }}
{{ 1 + none }}
{{ 1 / 0 }}
{{ 1 % 0 }}
{{ s.split() }} {{ s.split('o') }} {{ s.split('o', 1) }} {{ s.rsplit('o', 1) }} {{ ' a  b '.split() }} {{ ' a  b c '.split(none, 1) }} {{ ' a  b c '.rsplit(none, 1) }} {{ ''.split() }} {{ ''.split(',') }} {{ 'a,b,'.split(',') }}
{{ s.strip('Hd') }} {{ '  x '.lstrip() }}| {{ '  x '.rstrip() }}| {{ 'xxabxx'.strip('x') }} {{ s.lower() }} {{ s.title() }} {{ "they're here".title() }} {{ 'hELLO'.capitalize() }} {{ 'aB'.swapcase() }}
{{ s.replace('l', 'L') }} {{ s.replace('l', 'L', 1) }} {{ 'ab'.replace('', '-') }} {{ s.find('o') }} {{ s.find('o', 5) }} {{ s.rfind('o') }} {{ s.find('zz') }} {{ s.count('l') }} {{ s.index('W') }} {{ u.find('\\u4e2d') }}
{{ s.startswith('He') }} {{ s.endswith(('x', 'd')) }} {{ s.startswith('l', 2) }} {{ ','.join(['a', 'b']) }} {{ 'a\\nb\\r\\nc'.splitlines() }} {{ 'a\\nb\\n'.splitlines(true) }} {{ 'a-b-c'.partition('-') }} {{ 'a-b-c'.rpartition('-') }}
{{ '12'.isdigit() }} {{ 'a1'.isalnum() }} {{ 'ab'.isalpha() }} {{ ''.isdigit() }} {{ ' '.isspace() }} {{ 'AB'.isupper() }} {{ 'ab1'.islower() }} {{ '5'.zfill(3) }} {{ '-5'.zfill(4) }} {{ 'x'.center(5, '*') }} {{ 'x'.ljust(3) }}| {{ 'x'.rjust(3) }} {{ 'prefix_x'.removeprefix('prefix_') }} {{ 'x.py'.removesuffix('.py') }}
{{ ','.join([1]) }}
{{ s.nothing() }}
{{ x.append(4) }}
{{ d.update({'a': 1}) }}
{{ d.pop('k') }}
{{ x.append }}|{{ s.__class__ }}
{{ s.__class__.x }}
{{ d.get('k') }} {{ d.get('zz') }} {{ d.get('zz', 'dflt') }} {{ x.index(1) }} {{ x.count(1) }}
{{ x | length }} {{ s | length }} {{ d | count }} {{ missing | length }} {{ x | first }} {{ x | last }} {{ y | first }} {{ s | first }} {{ d | first }}
{{ 5 | length }}
{{ x | sort }} {{ x | sort(reverse=true) }} {{ words | sort }} {{ words | sort(case_sensitive=true) }} {{ x | reverse | list }} {{ s | reverse }} {{ x | sum }} {{ x | min }} {{ x | max }} {{ words | max }} {{ ['a', 'A', 'b'] | unique | list }} {{ y | max }}
{{ [1, 'a'] | sort }}
{{ ms | map(attribute='c') | join(', ') }} {{ ms | map(attribute='n', default=0) | list }} {{ words | map('upper') | list }} {{ words | map('replace', 'a', 'Z') | list }} {{ ms | selectattr('r', 'equalto', 'u') | map(attribute='c') | list }} {{ ms | rejectattr('n') | list }} {{ ms | selectattr('n', 'defined') | list | length }} {{ [1, 2, 3, 4] | select('odd') | list }} {{ [0, 1, '', 'x'] | select | list }} {{ [1, 2, 3] | reject('ge', 2) | list }} {{ ms | sort(attribute='c') | map(attribute='c') | list }} {{ ms | sum(attribute='zz', start=0) }}
{{ x | join }} {{ x | join('-') }} {{ ms | join(',', attribute='r') }} {{ s | join('.') }} {{ s | upper }} {{ s | lower }} {{ s | title }} {{ 'aBC dEF' | capitalize }} {{ 'foo-bar (baz)' | title }} {{ '  x ' | trim }}| {{ 'xxaxx' | trim('x') }} {{ s | replace('o', '0') }} {{ 5 | string + '6' }} {{ none | string }}
{{ '42' | int }} {{ 'x' | int }} {{ 'x' | int(7) }} {{ '3.7' | int }} {{ 3.9 | int }} {{ -3.9 | int }} {{ 'ff' | int(0, 16) }} {{ '0x1A' | int(0, 16) }} {{ ' 12 ' | int }} {{ none | int(5) }} {{ '1.5' | float }} {{ 'x' | float }} {{ 3 | float }} {{ neg | abs }} {{ 2.567 | round }} {{ 2.5 | round }} {{ 3.5 | round }} {{ 2.567 | round(2) }} {{ 2.111 | round(1, 'ceil') }} {{ 2.19 | round(1, 'floor') }} {{ 5 | round }} {{ 1234 | round(-2) }}
{{ d | tojson }} {{ x | tojson(indent=2) }} {{ {} | tojson(indent=2) }} {{ [] | tojson(indent=2) }} {{ u | tojson }} {{ u | tojson(ensure_ascii=true) }} {{ html | tojson }} {{ d | tojson(sort_keys=true) }} {{ d | tojson(separators=(',', ':')) }} {{ none | tojson }} {{ true | tojson }} {{ 1.0 | tojson }} {{ (1, 2) | tojson }} {{ {1: 2, none: 3, true: 4, 1.5: 5} | tojson }} {{ "\\x07\\x7f/" | tojson }} {{ d | tojson(indent='--') }} {{ x | tojson(indent=0) }}
{{ missing | tojson }}
{{ x | map('upper') | tojson }}
{{ d | dictsort }} {{ {'b': 1, 'A': 2} | dictsort }} {{ {'b': 1, 'a': 2} | dictsort(by='value') }} {{ {'b': 1, 'a': 2} | dictsort(reverse=true) }} {{ d | items | list }} {{ missing | items | list }}
{{ lines | indent }}|{{ lines | indent(2, true) }}|{{ lines | indent(2, blank=true) }}|{{ lines | indent('> ', first=true) }}|
{{ html | escape }} {{ html | e }} {{ html | safe }} {{ missing | default }} {{ n | default('x') }} {{ n | default('x', true) }} {{ n | d('y', boolean=true) }} {{ x | list }} {{ s | list }} {{ d | list }}
{{ '%s is %d and %.2f' | format('a', 3, 2.5) }} {{ '%s' % 'x' }} {{ '%05d|%-5s|%5s|%+d|%x|%%' % (42, 'ab', 'cd', 3, 255) }} {{ '%(k)s' % d }} {{ '%r' % ('a',) }} {{ '%.3s' % ('abcdef',) }} {{ '%e' % 12345.678 }} {{ '%g' % 0.0001 }}
{{ '%d' % 'x' }}
{{ '%s %s' % ('x',) }}
{{ '%s' % (1, 2) }}
{{ '{} {}'.format(1, 'b') }} {{ '{1}{0}'.format('a', 'b') }} {{ '{x:>5}|{y:<5}|{z:^5}'.format(x='a', y='b', z='c') }} {{ '{:05d} {:.2f} {:,} {:x} {:%}'.format(42, 3.14159, 1234567, 255, 0.25) }} {{ '{{}}'.format() }} {{ '{!r}'.format('a') }} {{ '{:*^9}'.format('mid') }}
{{ '{}'.format() }}
{{ [1, 2, 3, 4, 5] | batch(2) | list }} {{ [1, 2, 3] | batch(2, 0) | list }} {{ 'long text here to cut' | truncate(10) }} {{ 'long text here to cut' | truncate(10, true) }} {{ 'short' | truncate(10) }} {{ 'x' | center(5) }}|
{{ a is defined }} {{ a is number }} {{ t is number }} {{ t is integer }} {{ a is integer }} {{ b is float }} {{ s is string }} {{ x is sequence }} {{ s is sequence }} {{ d is mapping }} {{ d is iterable }} {{ a is iterable }} {{ n is none }} {{ t is boolean }} {{ t is true }} {{ a is true }} {{ n is false }} {{ missing is undefined }} {{ missing is iterable }} {{ missing is sequence }} {{ range is callable }} {{ s is callable }}
{{ a is odd }} {{ a is even }} {{ 6 is divisibleby 3 }} {{ 6 is divisibleby(4) }} {{ a is eq 1 }} {{ a is equalto(2) }} {{ a is ne 2 }} {{ a is lt 2 }} {{ a is in x }} {{ a is not in x }} {{ 'ab' is lower }} {{ 'AB' is upper }} {{ a is sameas 1 }} {{ n is not none }} {{ 'upper' is filter }} {{ 'odd' is test }} {{ 2 is gt(1) and 2 is ge(2) }} {{ d.items is defined }}
{{ x | nosuchfilter }}
{{ x is nosuchtest }}
{% for i in x %}{{ i }}{{ ',' if not loop.last }}{% endfor %} {% for i in y %}x{% else %}empty{% endfor %} {% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %} {% for k in d %}{{ k }}{% endfor %} {% for c in 'abc' %}{{ loop.index }}{{ c }}{% endfor %} {% for i in missing %}x{% else %}none{% endfor %}
{% for i in x %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }};{% endfor %}
{% for i in x if i > 1 %}{{ i }}{{ loop.index }}/{{ loop.length }} {% endfor %}{% for i in x if i > 5 %}x{% else %}else{% endfor %} {% for i in x if i != 1 %}{{ i }}{% endfor %}
{% for i in [1, 2, 3, 4] %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %} {% for i in [1] %}{% break %}{% else %}never{% endfor %}
{% for i in [[1, [2, 3]], [4, [5, 6]]] %}{% for a, (b, c) in [i] %}{{ a }}{{ b }}{{ c }}{{ loop.depth }}{% endfor %}{% endfor %}
{% for a, b in [[1, 2, 3]] %}{{ a }}{% endfor %}
{% for i in 5 %}{% endfor %}
{% for i in [1, 1, 2] %}{{ loop.changed(i) }}{% endfor %}
{% set q = 1 %}{% for i in x %}{% set q = q + i %}{{ q }}{% endfor %}{{ q }} {% set ns = namespace(c=0) %}{% for i in x %}{% set ns.c = ns.c + i %}{% endfor %}{{ ns.c }} {% if t %}{% set w = 5 %}{% endif %}{{ w }} {% set p, q = 1, 2 %}{{ p }}{{ q }} {% set (p, q) = [3, 4] %}{{ p }}{{ q }}
{% set d.k = 1 %}
{% set z %}block {{ a }}{% endset %}{{ z }} {% set z | upper %}block{% endset %}{{ z }} {% set z | replace('b', 'c') | upper %}b{% endset %}{{ z }} {{ z | length }}
{% macro m(a, b=2, c=a) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(1, c=9) }}{{ m(b=5, a=4) }}{{ m() }} {{ m.name }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}
{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, z=4) }}
{% macro m(x) %}<{{ caller(x) }}>{% endmacro %}{% call(v) m(5) %}got {{ v }}{% endcall %} {% macro k() %}{{ caller() }}{{ caller() }}{% endmacro %}{% call k() %}z{{ a }}{% endcall %}
{% macro m() %}{{ later }}{% endmacro %}{% set later = 'L' %}{{ m() }} {% macro fact(n) %}{{ n * (fact(n - 1) | int) if n > 1 else 1 }}{% endmacro %}{{ fact(5) }}
{% filter upper %}abc {{ s }}{% endfilter %} {% filter replace('a', 'b') | trim %} aaa {% endfilter %}| {% with p = 1, q = a %}{{ p }}{{ q }}{% endwith %}{{ p }} {% generation %}gen{{ a }}{% endgeneration %} {% raw %}{{ raw }} {% x %}{% endraw %} {# comment {{ x }} #}end
{% if a == 1 %}one{% elif a == 2 %}two{% else %}other{% endif %} {% if not t %}x{% elif n %}y{% else %}z{% endif %}
{{ namespace(a=1) }} {{ namespace({'b': 2}, c=3).b }} {{ dict(a=1, b=2) }} {{ dict([('x', 1)]) }} {{ range(3) | list }} {{ range(5, 1, -2) | list }} {{ range(1, 4) | list }} {% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }} {% set j = joiner('|') %}{% for i in x %}{{ j() }}{{ i }}{% endfor %}
{{ range(200000) }}
{{ raise_exception('stop: ' ~ s) }}
{{ strftime_now('%Y-%m-%d %H:%M:%S %B %b %A %a %j %y %p %I %-d %% %e') }} {{ strftime_now('%d %b %Y') }}
{{ 'a' 'b' "c" }} {{ 1_000 }} {{ 0x1f }} {{ 0b101 }} {{ x.0 }} {{ d.z.q.1 }} {{ (a) }} {{ [1, 2,] }} {{ {'a': 1,} }} {{ [] }} {{ {} }} {{ (1,) }}
{{ foo(*[1]) }}
{{ dict(**{'a': 1}) }} {{ '{}{}'.format(*[1, 2]) }}
{{ }}
{{ a
{% if a %}
{% endif %}
{% unknown %}
{% for %}{% endfor %}
{{ a b }}
{{ 'abc }}
{{ (1 }}
{{ 1 = 2 }}
{% set 1 = 2 %}
{% set true = 2 %}
{% break %}
{% include 'x' %}
{{ [1, 2] is iterable and 'x' is string or false }} {{ not a is none }} {{ (not a) is none }} {{ 'x' is in ['x'] }} {{ a if a is defined else 'no' }}
{{ [a, b] | map('string') | join(',') | upper | length }} {{ (s | lower).split(' ')[0] }} {{ s.split(' ')[-1].lower() | replace('w', 'v') }} {{ s.upper().lower().title() }} {{ [s][0][1:][::-1] }}
{{ s is string and (s | length > 3) }} {{ x | length == 3 }} {{ x | length - 1 }} {{ 2 * x | length }} {{ -1 | abs }} {{ a + x | first }} {{ 'a' ~ 'b' | upper }} {{ 1 + 2 ~ 3 }} {{ 2 * 3 ~ 4 }}
{{ {'a': {'b': [1, 2, {'c': 'deep'}]}}.a.b[2].c }} {{ [[1, 2], [3, 4]][1][0] }} {{ ms[0]['c'][0] }} {{ ms[-1].c }} {{ ms[0].r == 'u' }}"""

WHITESPACE = [
    "a\n{% if true %}\nb\n{% endif %}\nc\n", "a\n  {% if true %}  \n b {%- if true %} c {% endif -%} \n d{% endif %}\n\n",
    "  {{ 1 }}  \n  {# c #}  \n x", "x {%+ if true %} y {%+ endif %} z", "\n\n{%- set a = 1 -%}\n\n{{- a -}}\n\n", "{{ 1 }}\n", "{{ 1 }}\n\n",
    "a\r\nb\rc{% if 1 %}\r\nd{% endif %}", "   {% raw %}\n {{ x }}  {% endraw %}\n y", "{%- raw -%} \n a {%- endraw -%} \n b",
    " \t{%- for i in [1,2] %}\n  {{ i }}\n {%- endfor %}\nend", "{#- a -#}\n x {#+ b +#}\n y", "x{% if true +%}\ny{% endif %}", "{% if true %}x{% endif %}   \n  {% if true %}\ty{% endif %}",
    "{{ 'a' }}{% if true %}\n\n{% endif %}b", "    {{- 'x' }}    {{ 'y' -}}    z", "\u00a0{%- if 1 %}x{% endif -%}\u2003y", "a {#\n multi\n line #}\nb", "{{ '{%' }}{{ '%}' }}{{ '}}' }}", "{{'{{'}}", "{ {{ 1 }} } {% raw %}{{% endraw %}",
    "{% set x = {'a': {'b': 1}} %}{{x['a']}}{{ {'a': {'b': 1}}}}", "", "\n", "plain", "{{ 1 }}{# unclosed", "{% raw %}x", "a{% if true %}b", "{% endif %}", "{{ 1 }}}", "%} }} #}",
]

SCOPES = [
    "{% for i in x %}{% if loop.first %}{% set f = i %}{% endif %}{{ f }}{% endfor %}{{ f }}",
    "{% set f = 0 %}{% for i in x %}{{ f }}{% set f = i %}{{ f }}{% endfor %}{{ f }}",
    "{% set ns = namespace(found=false) %}{% for m in ms %}{% if m.r == 'a' %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.found }}",
    "{% for i in x %}{% for j in x %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% macro f() %}{% set z = 5 %}{{ z }}{% endmacro %}{{ f() }}{{ z }}",
    "{% set z = 1 %}{% macro f(z) %}{{ z }}{% endmacro %}{{ f(2) }}{{ z }}",
    "{% set z = 1 %}{% set w %}{% set z = 2 %}{{ z }}{% endset %}{{ w }}{{ z }}",
    "{% set z = 1 %}{% with z = 3 %}{{ z }}{% set z = 4 %}{{ z }}{% endwith %}{{ z }}",
    "{% set z = 1 %}{% filter upper %}{% set z = 2 %}{{ z }}{% endfilter %}{{ z }}",
    "{% set z = 1 %}{% generation %}{% set z = 2 %}{{ z }}{% endgeneration %}{{ z }}",
    "{% set messages = ms[1:] %}{{ messages | length }}{% for m in messages %}{{ m.c }}{% endfor %}",
    "{% macro outer() %}{% macro inner() %}in{{ a }}{% endmacro %}{{ inner() }}{% endmacro %}{{ outer() }}",
    "{% set g = x | map('string') %}{{ g | join }}|{{ g | join }}",
    "{% set ns = namespace(stop=false) %}{% for i in x if not ns.stop %}{{ i }}{% set ns.stop = true %}{% endfor %}",
    "{% for i in x %}{% macro f() %}{{ i }}{% endmacro %}{{ f() }}{% endfor %}",
    "{% if true %}{% set v = 1 %}{% else %}{% set v = 2 %}{% endif %}{{ v }}",
    "{{ loop }}|{% for i in [1] %}{{ loop is defined }}{% endfor %}{{ loop is defined }}",
    "{% set range = 5 %}{{ range }}", "{% set ns = namespace() %}{% set ns.a = [] %}{% for i in x %}{% set ns.a = ns.a + [i] %}{% endfor %}{{ ns.a }}",
    "{% set ns = namespace(_x=1) %}", "{% set ns = namespace() %}{% set ns._x = 1 %}{{ 1 }}",
]


# ---- random templates ----------------------------------------------------------------------------------------

class Grammar:
    """Random expressions and statements over V. Both sides must agree on the text, or both fail."""

    def __init__(self, seed):
        self.r = random.Random(seed)

    def pick(self, *options):
        return self.r.choice(options)

    def expr(self, depth=0):
        if depth > 3 or self.r.random() < 0.25:
            return self.pick("a", "b", "s", "n", "t", "e", "neg", "x", "y", "d", "u", "words", "ms", "lines", "missing",
                             "1", "0", "-2", "2.5", "'q'", "'a b'", "''", "true", "none", "[1, 2]", "['b', 'a']", "{'k': 1}",
                             "(1, 'z')", "d.k", "d.z", "x[0]", "ms[0]", "s[1]")
        e = lambda: self.expr(depth + 1)
        kind = self.r.randrange(11)
        if kind == 0:
            return f"({e()} {self.pick('+', '-', '*', '//', '%', '/', '~', '~', '+')} {e()})"
        if kind == 1:
            return f"({e()} {self.pick('==', '!=', '<', '<=', '>', '>=', 'in', 'not in', 'and', 'or')} {e()})"
        if kind == 2:
            return f"({e()} if {e()} else {e()})"
        if kind == 3:
            return f"{e()}[{self.pick('0', '-1', '1:', ':-1', '::-1', '::2', '1:3', chr(39) + 'k' + chr(39))}]"
        if kind == 4:
            return f"({e()} | {self.filter(depth)})"
        if kind == 5:
            return f"({e()} is {self.pick('', 'not ')}{self.test()})"
        if kind == 6:
            return f"({e()}).{self.method()}"
        if kind == 7:
            return f"[{e()}, {e()}]"
        if kind == 8:
            return "{" + f"'k': {e()}, 'j': {e()}" + "}"
        if kind == 9:
            return f"(not {e()})"
        return f"({e()} | string)"

    def filter(self, depth):
        e = lambda: self.expr(depth + 2)
        return self.pick("length", "upper", "lower", "trim", "title", "capitalize", "first", "last", "list", "sort", "reverse | list",
                         "unique | list", "sum", "min", "max", "join", "join(', ')", f"join({e()})", "tojson", "tojson(indent=2)", "int",
                         "float", "abs", "round", "string", "default('D')", "default('D', true)", "replace('a', 'b')", f"default({e()})",
                         "map('string') | list", "map('upper') | list", "select | list", "reject('none') | list", "select('string') | list",
                         "map(attribute='c') | list", "selectattr('r', 'equalto', 'u') | list", "items | list", "dictsort", "indent",
                         "sort(reverse=true)", "batch(2) | list", "count", "center(9)", "truncate(7)")

    def test(self):
        return self.pick("defined", "undefined", "none", "string", "number", "integer", "float", "mapping", "sequence", "iterable",
                         "boolean", "true", "false", "odd", "even", "lower", "upper", "divisibleby(2)", "eq(1)", "in([1, 'q'])",
                         "lt(2)", "sameas(none)")

    def method(self):
        return self.pick("strip()", "upper()", "lower()", "split()", "split('a')", "split('l', 1)", "rsplit('o', 1)", "title()", "get('k')",
                         "items() | list", "keys() | list", "values() | list", "startswith('a')", "endswith('d')", "replace('l', '')",
                         "find('o')", "count('o')", "index(1)", "splitlines()", "isdigit()", "capitalize()", "k", "missing", "join(words)",
                         "zfill(6)", "partition(' ')", "lstrip('H')", "rstrip()", "format(1)", "swapcase()", "isalpha()", "rfind('l')")

    def statement(self, depth=0):
        ws = lambda: self.pick("", "", "-")
        nl = lambda: self.pick("", "\n", " ", "  \n ")
        kind = self.r.randrange(8 if depth < 3 else 2)
        if kind <= 1:
            return f"{{{{{ws()} {self.expr()} {ws()}}}}}{nl()}"
        body = lambda: nl().join(self.statement(depth + 1) for _ in range(self.r.randrange(1, 3)))
        if kind == 2:
            return (f"{{%{ws()} for i in {self.expr(1)} {ws()}%}}{nl()}{{{{ i }}}}{self.pick('', '{{ loop.index }}', '{{ loop.last }}')}"
                    f"{body()}{{%{ws()} endfor {ws()}%}}{nl()}")
        if kind == 3:
            return f"{{%{ws()} if {self.expr(1)} {ws()}%}}{nl()}{body()}{{% else {ws()}%}}{body()}{{%{ws()} endif %}}{nl()}"
        if kind == 4:
            return f"{{%{ws()} set {self.pick('q', 'w')} = {self.expr(1)} {ws()}%}}{nl()}"
        if kind == 5:
            return f"{{% set q %}}{body()}{{% endset {ws()}%}}{{{{ q }}}}"
        if kind == 6:
            return f"{{% macro m(p, o={self.expr(3)}) %}}{{{{ p }}}}{{{{ o }}}}{body()}{{% endmacro %}}{{{{ m({self.expr(2)}) }}}}"
        return f"{{% set ns = namespace(v={self.expr(2)}) %}}{{% set ns.v = {self.expr(2)} %}}{{{{ ns.v }}}}{nl()}"

    def template(self):
        return "".join(self.statement() for _ in range(self.r.randrange(1, 4)))


def fuzz_cases(n, seed):
    grammar, cases = Grammar(seed), []
    while len(cases) < n:
        template = grammar.template()
        case = dict(template=template, variables={}, **outcome(template, V))
        if "expected" not in case and grammar.r.random() < 0.9:
            continue  # most random texts fail in Python; those that do not say more
        if "expected" in case and outcome(template, V, unfolded) != outcome(template, V):
            continue
        if " object at 0x" in case.get("expected", "") or "bound method" in case.get("expected", "") or "built-in" in case.get("expected", ""):
            continue
        if len(case.get("expected", "")) < 3000 and not has_long_int(case.get("expected", "")):
            cases.append(case)
    return cases


def has_long_int(text):
    """Integers beyond 64 bits are refused by nibble, by design."""
    run = 0
    for c in text:
        run = run + 1 if c.isdigit() else 0
        if run > 17:
            return True
    return False


def write(folder, name, data):
    path = os.path.join(folder, name + ".json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(data, f, ensure_ascii=False, indent=1)
        f.write("\n")


def main():
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser()
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("out", nargs="?", default=os.path.join(here, "..", "tests", "data", "templates"))
    parser.add_argument("--fuzz", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    if args.fuzz:
        write(args.out, "fuzz", {"now": NOW, "globals": V, "templates": fuzz_cases(args.fuzz, args.seed)})
        return
    for name, template in T.items():
        cases = [dict(variables=v, **outcome(template, v)) for v in conversations()]
        write(args.out, name, {"template": template, "now": NOW, "cases": cases})
    small = []
    for line in MICRO.split("\n"):
        pieces = [line] if "{%" in line else ["{{ " + p for p in line.split("{{ ")[1:]] or [line]
        for piece in pieces:
            small.append(dict(template=piece, variables={}, **outcome(piece, V)))
        small.append(dict(template=line, variables={}, **outcome(line, V)))
    for template in WHITESPACE + SCOPES:
        small.append(dict(template=template, variables={}, **outcome(template, V)))
    write(args.out, "small", {"now": NOW, "globals": V, "templates": small})
    write(args.out, "random", {"now": NOW, "globals": V, "templates": fuzz_cases(300, 7)})


if __name__ == "__main__":
    main()
