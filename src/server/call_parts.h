/* call_parts.h - shared by the files that parse bodies: values by a table, messages, stop strings. */
#ifndef NIB_SERVER_CALL_PARTS_H
#define NIB_SERVER_CALL_PARTS_H

#include "server/call.h"

#define MIN_MEMBER_NO (-1e300) /* member.min and member.max: no limit */
#define MAX_MEMBER_NO 1e300

const char *json_type_name(const json_t *v); /* "an object"; NULL: "nothing" */
/* A member (borrowed); NULL: it is missing or null. */
json_t *member_get(const json_t *object, const char *name);

/* A member that would change the answer and is not supported. */
typedef struct refused_member {
    const char *name;
    const char *usual; /* the JSON of the value that changes nothing; NULL: any that says "none", such as 0 */
} refused_member;
/* Refuses these members by name, unless their values change nothing. */
bool members_refuse(const json_t *object, const refused_member *rows, size_t n, fault *why);

int32_t json_id(const json_t *v); /* a token id; -1: not an id */
/* Whether v is an array of at least one token id and nothing else. */
bool json_is_ids(const json_t *v);

/* Sets the defaults and parses the body into out->body. False: *why is set. */
bool call_begin(call_kind kind, const char *text, size_t n_byte, const server_defaults *usual, call *out,
                fault *why);
/* Computes the members that depend on others, after the numbers of object `from` were read. */
void call_resolve(call *c, const json_t *from);
/* Reads the samplers of sampler_members and "dry_sequence_breakers" from an object. */
bool samplers_read(call *c, const json_t *from, fault *why);
/* Reads stop strings: a text or an array of texts; stop NULL: none. field: its name, for *why. */
bool stop_read(call *c, const char *field, const json_t *stop, fault *why);
/* Adds messages to the call, each with one text as content; content parts are joined. */
bool messages_read(call *c, const json_t *messages, fault *why);
/* The answer continues the last message if that is the assistant's, as the APIs of Anthropic and Ollama do.
 */
void messages_continue(call *c);
/* Adds a variable for the template. False: *why is set. */
bool variable_set(call *c, const char *name, json_t *value, fault *why);
/* Set the grammar of the answer from: "response_format", "json_schema" and "grammar" of OpenAI's API and
 * llama-server; a format {"type", "schema"}; Ollama's "format"; a schema. */
bool format_read(call *c, fault *why);
bool format_typed(call *c, const char *field, const json_t *format, fault *why);
bool format_ollama(call *c, const json_t *format, fault *why);
/* A schema of the body as the request spells it, numbers included. */
const char *schema_text(const call *c, const json_t *schema, size_t *n_byte);
/* Checks the call's tools: an array of objects, or none. False: *why is set. */
bool tools_read(call *c, fault *why);
/* The same for an API whose functions have no object "function" around them: converts tools of this type, or
 * without a type, whose schema is in member schema_name. *why names the index of any other. */
bool tools_wrap(call *c, const char *type, const char *schema_name, fault *why);
/* Require a call: of any tool, or of the named one (NULL counts as "", which is not a name). */
bool tools_require(call *c, fault *why);
bool tools_require_one(call *c, const char *name, fault *why);
/* Leaves only the allowed tools: {"mode": "auto" or "required", "tools": [names as in a choice]}. */
bool tools_allow(call *c, const json_t *allowed, fault *why);
/* Appends an earlier call to "tool_calls" of the last message if that is the assistant's, else of a new one.
 * Takes the reference to arguments, a text or an object. False: out of memory. */
bool tool_call_append(json_t *messages, const char *id, const char *name, json_t *arguments);
/* Appends a tool's result, a text or parts of text. False: *why is set. */
bool tool_result_append(json_t *messages, const char *id, const json_t *content, const char *field,
                        fault *why);
/* Joins parts {"type": "text", "text"} to one text; a new reference. NULL: *why names `field`. */
json_t *parts_join(const json_t *parts, const char *field, fault *why);

#endif
