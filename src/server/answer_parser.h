/* answer_parser.h - parses an answer's text while it is generated: reasoning, text, and tool calls.
 *
 * Models write calls in the form of their family. The forms differ in the text around the JSON:
 *
 *     tagged   <tool_call>{"name": ..., "arguments": {...}}</tool_call>        Hermes, Qwen
 *     listed   [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]            Mistral
 *     bare     {"name": ..., "parameters": {...}}, perhaps after <|python_tag|>    Llama 3
 *
 * A call is returned when it is complete. Text that was held back as a possible call but is not one is
 * returned as text, so no output of the model is lost. One thread at a time. */
#ifndef NIB_SERVER_ANSWER_PARSER_H
#define NIB_SERVER_ANSWER_PARSER_H

#include "base/buffer.h"

typedef enum tool_style { TOOLS_NONE, TOOLS_TAGGED, TOOLS_LISTED, TOOLS_BARE } tool_style;

enum { ANSWER_MAX_CALLS = 128 };

typedef struct answer_part {
    enum { PART_TEXT, PART_THOUGHT, PART_CALL } kind;
    const char *text; /* [n_byte], not terminated; for a call its arguments, a JSON object */
    size_t n_byte;
    const char *name; /* PART_CALL: the tool's name */
    int index;        /* PART_CALL: number of the call, from 0 */
} answer_part;
/* Receives a part, which is valid during the call. */
typedef void (*answer_part_fn)(void *user, const answer_part *part);

typedef struct answer_parser {
    tool_style tools;
    bool thinks; /* the current text is reasoning */
    bool calls;  /* the current text is a call */
    bool begun;  /* some text was returned, so reasoning can no longer follow */
    bool spaces; /* white space is skipped, because it follows a tag */
    int n_call;  /* calls so far */
    buffer held; /* text whose kind is not known yet */
} answer_parser;

/* thinks, calls: the prompt ends with the tag that begins reasoning or a call. */
void answer_parser_init(answer_parser *s, tool_style tools, bool thinks, bool calls);
void answer_parser_clear(answer_parser *s);
/* Parses the next piece of text; last: it is the final one. Calls `out` for each part, possibly several
 * times. False: out of memory. */
bool answer_parser_feed(answer_parser *s, const char *text, size_t n_byte, bool last, answer_part_fn out,
                        void *user);

#endif
