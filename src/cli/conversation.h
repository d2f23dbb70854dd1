/* conversation.h - the messages of a conversation, and their tokens for a model.
 *
 * Operations that may be refused work on a copy, which replaces the conversation on success, so a refusal
 * changes nothing. A message never changes; copies share them. One thread. */
#ifndef NIB_CLI_CONVERSATION_H
#define NIB_CLI_CONVERSATION_H

#include "nib.h"

#include <jansson.h>

typedef struct conversation {
    const nib_engine *engine;
    json_t *messages; /* of {"role", "content"} as in the OpenAI chat API, a system message first */
} conversation;

nib_status conversation_init(conversation *c, const nib_engine *engine, nib_error *err);
void conversation_deinit(conversation *c);
nib_status conversation_copy(const conversation *from, conversation *to, nib_error *err);
void conversation_replace(conversation *c, conversation *by); /* `by` is empty afterwards */

/* Bytes that are no UTF-8 become U+FFFD, and so do NULs. */
nib_status conversation_add(conversation *c, const char *role, const char *text, size_t n_byte,
                            nib_error *err);
/* Begins anew with a system message; empty or NULL: without one. */
nib_status conversation_begin(conversation *c, const char *system, nib_error *err);
void conversation_forget(conversation *c); /* all but the system message */
/* The last message's text when `role` said it, else NULL. */
const char *conversation_last(const conversation *c, const char *role);
void conversation_remove_last(conversation *c);

/* Whether the template takes these messages, with a question after them. */
nib_status conversation_check(const conversation *c, nib_error *err);

/* The template's text of all messages and of how an answer begins, then `begun` (NULL: nothing), as *tokens
 * (caller frees with nib_free). */
nib_status conversation_tokens(const conversation *c, const char *begun, int32_t **tokens, size_t *n_token,
                               nib_error *err);

/* As conversation_tokens, within a context of n_ctx positions of which the answer wants n_answer: the oldest
 * questions go with their answers until the rest fits; *n_dropped counts them. NIB_E_USAGE: the newest alone
 * is too long. */
nib_status conversation_fit(conversation *c, const char *begun, int64_t n_ctx, int64_t n_answer,
                            int32_t **tokens, size_t *n_token, int *n_dropped, nib_error *err);

/* {"messages": [...]}; the file is whole or as it was. Loading takes an array of messages alone as well, each
 * with a role (system, the first only; user; assistant) and a content that is a string. What the template
 * refuses is refused: NIB_E_USAGE, and the conversation is as it was. */
nib_status conversation_save(const conversation *c, const char *path, nib_error *err);
nib_status conversation_load(conversation *c, const char *path, nib_error *err);

#endif
