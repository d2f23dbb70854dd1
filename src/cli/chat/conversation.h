/* conversation.h - the messages of a conversation, and their tokens for a model.
 *
 * Operations that may be refused work on a copy, which replaces the conversation on success, so a refusal
 * changes nothing. A message never changes; copies share them. One thread. */
#ifndef NIB_CLI_CHAT_CONVERSATION_H
#define NIB_CLI_CHAT_CONVERSATION_H

#include "nib.h"

#include <jansson.h>

typedef struct conversation {
    const nib_engine *engine;
    bool special;     /* special tokens that messages name are parsed; otherwise they are text */
    json_t *messages; /* of {"role", "content"} as in the OpenAI chat API, a system message first */
} conversation;

nib_status conversation_init(conversation *c, const nib_engine *engine, bool special, nib_error *err);
void conversation_deinit(conversation *c);
nib_status conversation_copy(const conversation *from, conversation *to, nib_error *err);
void conversation_replace(conversation *c, conversation *by); /* `by` is empty afterwards */

/* Adds a message. Invalid UTF-8 and NULs become U+FFFD. */
nib_status conversation_add(conversation *c, const char *role, const char *text, size_t n_byte,
                            nib_error *err);
/* Starts again with a system message; empty or NULL: without one. */
nib_status conversation_begin(conversation *c, const char *system, nib_error *err);
void conversation_forget(conversation *c); /* removes all but the system message */
/* The last message's text if its role is `role`, else NULL. Owned by the conversation. */
const char *conversation_last(const conversation *c, const char *role);
void conversation_remove_last(conversation *c);

/* Checks that the template accepts these messages, followed by a question. */
nib_status conversation_check(const conversation *c, nib_error *err);

/* Renders all messages and the beginning of an answer with the template, appends `begun` (NULL: nothing), and
 * tokenizes. The caller frees *tokens with nib_free. */
nib_status conversation_tokens(const conversation *c, const char *begun, int32_t **tokens, size_t *n_token,
                               nib_error *err);

/* As conversation_tokens, within a context of n_ctx positions, n_answer of them for the answer: removes the
 * oldest questions with their answers until the rest fits. *n_dropped: their number. NIB_E_USAGE: the newest
 * question alone is too long. */
nib_status conversation_fit(conversation *c, const char *begun, int64_t n_ctx, int64_t n_answer,
                            int32_t **tokens, size_t *n_token, int *n_dropped, nib_error *err);

/* Saves or loads {"messages": [...]}. A failed save leaves the file as it was. Loading also accepts an array
 * of messages alone; each has a role (system, only the first; user; assistant) and a string as content.
 * NIB_E_USAGE: the file or the template does not allow it; the conversation stays as it was. */
nib_status conversation_save(const conversation *c, const char *path, nib_error *err);
nib_status conversation_load(conversation *c, const char *path, nib_error *err);

#endif
