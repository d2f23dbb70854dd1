/* chat.h - a conversation in the terminal: shared by its loop (cmd_chat.c), its turns (chat_turn.c) and its
 * commands (chat_commands.c). */
#ifndef NIB_CLI_CHAT_CHAT_H
#define NIB_CLI_CHAT_CHAT_H

#include "cli/cli.h"
#include "cli/chat/conversation.h"
#include "cli/terminal/wrap.h"

typedef struct chat {
    cli_args *args;
    nib_engine *engine, *draft; /* draft NULL: no draft model */
    nib_session *session;
    conversation conversation;
    nib_sampling sampling;
    char *grammar;        /* for every answer; NULL: none */
    nib_logit_bias *bias; /* likewise */
    int64_t n_predict;    /* maximum tokens of an answer; -1: until it ends */
    wrap screen;
    bool terminal; /* input is typed: errors are printed, and the conversation continues */
    bool leave;    /* the user asked to leave */
} chat;

/* Each returns 0, or the exit code with which the program ends. If it is refused, or stopped before any
 * answer text, the conversation stays as it was. */
int chat_send(chat *c, const char *text, size_t n_byte); /* a message and its answer */
int chat_again(chat *c);                                 /* another answer to the last message */
int chat_continue(chat *c);                              /* continues the last answer */
int chat_refused(const chat *c, const nib_error *err);   /* prints the error; returns as above */

int chat_command(chat *c, const char *line); /* begins with '/' */

#endif
