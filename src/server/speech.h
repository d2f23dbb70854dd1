/* speech.h - an answer's text, taken apart as it comes: what the model thinks, what it says, and the tools
 * that it calls.
 *
 * Models write calls in the ways of their families, which differ in what stands around the JSON:
 *
 *     tagged   <tool_call>{"name": ..., "arguments": {...}}</tool_call>        Hermes, Qwen
 *     listed   [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]            Mistral
 *     bare     {"name": ..., "parameters": {...}}, perhaps behind <|python_tag|>   Llama 3
 *
 * A call is given when it is whole. What was held back for one and is none comes as text, so nothing that the
 * model wrote is lost. One thread at a time. */
#ifndef NIB_SERVER_SPEECH_H
#define NIB_SERVER_SPEECH_H

#include "server/buffer.h"

typedef enum speech_tools { SPEECH_NO_TOOLS, SPEECH_TAGGED, SPEECH_LISTED, SPEECH_BARE } speech_tools;

enum { SPEECH_MAX_CALLS = 128 };

typedef struct speech_part {
    enum { SPEECH_TEXT, SPEECH_THOUGHT, SPEECH_CALL } kind;
    const char *text; /* [n_byte]; of a call its arguments, a JSON object */
    size_t n_byte;
    const char *name; /* of a call */
    int index;        /* of a call, from 0 */
} speech_part;
typedef void (*speech_fn)(void *user, const speech_part *part);

typedef struct speech {
    speech_tools tools;
    bool thinks; /* now */
    bool calls;  /* now: the text is a call's */
    bool begun;  /* something was said, so no thought follows */
    bool spaces; /* white space is not to be said: a tag was before it */
    int n_call;  /* so far */
    buffer held; /* that may still become something else */
} speech;

/* thinks, calls: the prompt has ended with the tag that begins the one or the other. */
void speech_init(speech *s, speech_tools tools, bool thinks, bool calls);
void speech_clear(speech *s);
/* The next piece; `last`: there is no more. Parts go to `out`, which may be called several times. False: no
 * memory. */
bool speech_feed(speech *s, const char *text, size_t n_byte, bool last, speech_fn out, void *user);

#endif
