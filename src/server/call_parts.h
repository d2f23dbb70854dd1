/* call_parts.h - shared by the readers of bodies: values by a table, messages, stop strings. */
#ifndef NIB_SERVER_CALL_PARTS_H
#define NIB_SERVER_CALL_PARTS_H

#include "server/call.h"

#define MIN_MEMBER_NO (-1e300)
#define MAX_MEMBER_NO 1e300

const char *json_type_name(const json_t *v); /* "an object"; NULL: "nothing" */
/* NULL where it is null, too. */
json_t *member_get(const json_t *object, const char *name);

int32_t json_id(const json_t *v); /* a token's; -1: it is none */
/* A token's id at least, and nothing else. */
bool json_is_ids(const json_t *v);

/* The defaults, and the body. False: *why. */
bool call_begin(call_kind kind, const char *text, size_t n_byte, call *out, fault *why);
/* After the numbers of object `from` were read. */
void call_resolve(call *c, const json_t *from);
/* A text or an array of them; NULL: none. `field` is its name. */
bool stop_read(call *c, const char *field, const json_t *stop, fault *why);
/* Adds the messages to the call's, each with a text as content; parts become one text. */
bool messages_read(call *c, const json_t *messages, fault *why);
/* The grammar of the answer: "response_format", "json_schema" and "grammar" as OpenAI's API and llama-server
 * have them; a format {"type", "schema"}; Ollama's "format"; a schema. */
bool format_read(call *c, fault *why);
bool format_typed(call *c, const char *field, const json_t *format, fault *why);
bool format_ollama(call *c, const json_t *format, fault *why);
bool format_schema(call *c, const char *field, const json_t *schema, fault *why);
/* The call's tools: an array of objects, or none. */
bool tools_read(call *c, fault *why);
/* The same of an API that has functions without a "function" around them: those whose type is `type` or not
 * said, with their schema under that name. Others are refused by their place. */
bool tools_wrap(call *c, const char *type, const char *schema_name, fault *why);
/* One has to be called: any, or the one of that name (NULL: "" is no name). */
bool tools_require(call *c, fault *why);
bool tools_require_one(call *c, const char *name, fault *why);
/* {"role", ...} with "tool_calls" of what was called before: a call is added to the last message, when that
 * is the assistant's, or to a new one. Takes the reference to arguments, a text or an object. False: no
 * memory. */
bool tool_call_append(json_t *messages, const char *id, const char *name, json_t *arguments);
/* What a tool has answered, a text or parts of text; false: *why. */
bool tool_result_append(json_t *messages, const char *id, const json_t *content, const char *field,
                        fault *why);
/* The text of parts {"type": "text", "text"}; a new reference. NULL: *why names `field`. */
json_t *parts_join(const json_t *parts, const char *field, fault *why);

#endif
