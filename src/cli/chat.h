/* chat.h - a conversation in the terminal: shared by its loop (cmd_chat.c), its turns (chat_turn.c) and its
 * commands (chat_commands.c). */
#ifndef NIB_CLI_CHAT_H
#define NIB_CLI_CHAT_H

#include "cli/cli.h"
#include "cli/conversation.h"
#include "cli/wrap.h"

typedef struct chat {
    cli_args *args;
    nib_engine *engine;
    nib_session *session;
    conversation conversation;
    nib_sampling sampling;
    char *grammar;     /* of every answer; NULL: none */
    int64_t n_predict; /* the most tokens of an answer; -1: until it ends */
    wrap screen;
    bool terminal; /* someone types: what is refused is said, and the conversation goes on */
    bool leave;    /* asked for */
} chat;

/* Each returns 0, or the exit code with which the program ends. What is refused or stopped before anything
 * was said leaves the conversation as it was. */
int chat_send(chat *c, const char *text, size_t n_byte); /* a message and its answer */
int chat_again(chat *c);                                 /* another answer to the last message */
int chat_continue(chat *c);                              /* the last answer, longer */
int chat_refused(const chat *c, const nib_error *err);   /* says it */

int chat_command(chat *c, const char *line); /* begins with '/' */

#endif
