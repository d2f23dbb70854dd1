/* answer_parser.h - parses an answer's text while it is generated: reasoning, text, and tool calls.
 *
 * Models write calls in the form of their family. The forms differ in the text around the JSON:
 *
 *     tagged   <tool_call>{"name": ..., "arguments": {...}}</tool_call>        Hermes, Qwen
 *     listed   [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]            Mistral
 *     bare     {"name": ..., "parameters": {...}}, perhaps after <|python_tag|>    Llama 3
 *
 * A call is returned when it is complete. Text that was held back for a call and is none is returned as text,
 * so nothing that the model wrote is lost. One thread at a time. */
#ifndef NIB_SERVER_ANSWER_PARSER_H
#define NIB_SERVER_ANSWER_PARSER_H

#include "server/buffer.h"

typedef enum tool_style { TOOLS_NONE, TOOLS_TAGGED, TOOLS_LISTED, TOOLS_BARE } tool_style;

enum { ANSWER_MAX_CALLS = 128 };

typedef struct answer_part {
    enum { PART_TEXT, PART_THOUGHT, PART_CALL } kind;
    const char *text; /* [n_byte]; of a call its arguments, a JSON object */
    size_t n_byte;
    const char *name; /* of a call */
    int index;        /* of a call, from 0 */
} answer_part;
typedef void (*answer_part_fn)(void *user, const answer_part *part);

typedef struct answer_parser {
    tool_style tools;
    bool thinks; /* now */
    bool calls;  /* now: the text is a call's */
    bool begun;  /* something was said, so no thought follows */
    bool spaces; /* white space is not to be said: a tag was before it */
    int n_call;  /* so far */
    buffer held; /* that may still become something else */
} answer_parser;

/* thinks, calls: the prompt has ended with the tag that begins the one or the other. */
void answer_parser_init(answer_parser *s, tool_style tools, bool thinks, bool calls);
void answer_parser_clear(answer_parser *s);
/* The next piece; `last`: there is no more. Parts go to `out`, which may be called several times. False: no
 * memory. */
bool answer_parser_feed(answer_parser *s, const char *text, size_t n_byte, bool last, answer_part_fn out,
                        void *user);

#endif
