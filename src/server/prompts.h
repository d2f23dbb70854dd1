/* prompts.h - texts and messages of a call to tokens. */
#ifndef NIB_SERVER_PROMPTS_H
#define NIB_SERVER_PROMPTS_H

#include "server/call.h"
#include "server/models.h"

typedef struct call_tokens {
    int32_t *tokens; /* freed by nib_free */
    size_t n;
    bool thinks; /* the answer begins with reasoning */
} call_tokens;
/* Tokenizes a text; flags and marks (NULL: none) of nib_tokenize_marked. False: *why. The caller frees
 * out->tokens in any case. */
bool prompt_tokenize(const nib_engine *e, const char *text, const uint8_t *marks, size_t n_byte,
                     unsigned flags, call_tokens *out, fault *why);
/* Renders the messages with the model's template. *marks: of nib_chat_render_marked. The caller frees both
 * with nib_free. False: *why. */
bool prompt_render(const served *m, const call *c, char **text, uint8_t **marks, fault *why);
/* Adds the text of an array of token ids; ids that are no tokens have none. False: out of memory. */
bool prompt_ids_text(const nib_engine *e, const json_t *ids, buffer *out);
/* Counts the tokens of the rendered messages. False: *why. */
bool prompt_count(const served *m, const call *c, size_t *n, fault *why);
size_t prompts_count(const call *c); /* number of prompts */
/* Makes prompt `index`, with at least one token and at most the context. False: *why. The caller frees
 * out->tokens in any case. */
bool prompt_make(const served *m, const call *c, size_t index, call_tokens *out, fault *why);

/* Tokens of a text or an array of ids. False: *why names `field`. The caller frees out->tokens in any case.
 */
bool prompt_one(const nib_engine *e, const json_t *given, const char *field, call_tokens *out, fault *why);

#endif
