/* chat_commands.c - the commands of a conversation: rows of a table. */
#include "cli/chat/chat.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct chat_row {
    const char *names; /* the first one is shown */
    const char *arg;   /* NULL: none; in brackets: optional */
    const char *help;
    int (*run)(chat *c, const char *arg); /* as chat_send */
} chat_row;

static int help(chat *c, const char *arg);

static int wrong_number(const char *what, double min, double max, const char *found) {
    nib_error err = {NIB_E_USAGE, ""};
    snprintf(err.message, sizeof err.message, "expected %s from %s to %s, found '%.40s'", what,
             num_text(min, 15), num_text(max, 15), found);
    cli_fail(&err);
    return 0;
}

static int set_temperature(chat *c, const char *arg) {
    enum { HOTTEST = 100 };
    char *end;
    const double t = strtod(arg, &end);
    if (*arg && (*end || !(t >= 0 && t <= HOTTEST)))
        return wrong_number("a temperature", 0, HOTTEST, arg);
    if (*arg)
        c->sampling.temperature = (float)t;
    cli_note(c->args, "the temperature is %s", num_text(c->sampling.temperature, 4));
    return 0;
}

static int set_n(chat *c, const char *arg) {
    enum { MAX = 1 << 24 };
    char *end;
    errno = 0;
    const long long n = strtoll(arg, &end, 10);
    if (*arg && (*end || errno || n < -1 || n > MAX))
        return wrong_number("a number of tokens", -1, MAX, arg);
    if (*arg)
        c->n_predict = n;
    if (c->n_predict < 0)
        cli_note(c->args, "answers have no length limit");
    else
        cli_note(c->args, "answers have at most %lld tokens", (long long)c->n_predict);
    return 0;
}

static int set_system(chat *c, const char *arg) {
    nib_error err;
    conversation trial;
    nib_status status = conversation_copy(&c->conversation, &trial, &err);
    if (status == NIB_OK)
        status = conversation_begin(&trial, arg, &err);
    if (status == NIB_OK)
        status = conversation_check(&trial, &err);
    if (status == NIB_OK)
        conversation_replace(&c->conversation, &trial);
    conversation_deinit(&trial);
    if (status != NIB_OK)
        return chat_refused(c, &err);
    cli_note(c->args, *arg ? "a new conversation begins, with this system message"
                           : "a new conversation begins, without a system message");
    return 0;
}

static int clear(chat *c, const char *arg) {
    (void)arg;
    conversation_forget(&c->conversation);
    cli_note(c->args, "a new conversation begins");
    return 0;
}

static int again(chat *c, const char *arg) {
    (void)arg;
    return chat_again(c);
}

static int go_on(chat *c, const char *arg) {
    (void)arg;
    return chat_continue(c);
}

static int leave(chat *c, const char *arg) {
    (void)arg;
    c->leave = true;
    return 0;
}

/* Expands ~/ in a typed path to the home folder. Freed with mem_free; NULL: out of memory. */
static char *typed_path(const char *arg) {
    const char *home = getenv("HOME");
    return !strncmp(arg, "~/", 2) && home ? path_join(home, arg + 2) : mem_strdup(arg);
}

typedef nib_status (*file_fn)(conversation *c, const char *path, nib_error *err);

static int with_file(chat *c, const char *arg, file_fn fn, const char *done) {
    nib_error err;
    if (!*arg) {
        cli_note(c->args, "expected a file: see /help");
        return 0;
    }
    char *path = typed_path(arg);
    const nib_status status = path ? fn(&c->conversation, path, &err) : NIB_E_NOMEM;
    if (!path)
        err = (nib_error){NIB_E_NOMEM, "out of memory"};
    const size_t n = json_array_size(c->conversation.messages);
    if (status == NIB_OK)
        cli_note(c->args, "%zu %s %s %s", n, n == 1 ? "message is" : "messages are", done, path);
    mem_free(path);
    return status == NIB_OK ? 0 : chat_refused(c, &err);
}

static nib_status save_to(conversation *c, const char *path, nib_error *err) {
    return conversation_save(c, path, err);
}

static int save(chat *c, const char *arg) {
    return with_file(c, arg, save_to, "in");
}

static int load(chat *c, const char *arg) {
    return with_file(c, arg, conversation_load, "loaded from");
}

static const chat_row rows[] = {
    {"/help, /?", NULL, "this list", help},
    {"/system", "[TEXT]", "start again with a system message (no TEXT: without one)", set_system},
    {"/clear, /reset", NULL, "start again with the same system message", clear},
    {"/regen", NULL, "another answer to the last message", again},
    {"/continue", NULL, "continue the last answer", go_on},
    {"/temp", "[T]", "set the temperature, or show it; 0: always the most likely token", set_temperature},
    {"/n", "[N]", "set the maximum number of tokens of an answer, or show it; -1: no limit", set_n},
    {"/save", "FILE", "write the conversation to a JSON file", save},
    {"/load", "FILE", "load a conversation from such a file", load},
    {"/bye, /exit, /quit", NULL, "leave (also Ctrl-D)", leave},
    {NULL, NULL, NULL, NULL},
};

static int help(chat *c, const char *arg) {
    (void)c, (void)arg;
    for (const chat_row *row = rows; row->names; row++) {
        const int shown =
            fprintf(stderr, "%s%s%s", row->names, row->arg ? " " : "", row->arg ? row->arg : "");
        fprintf(stderr, "%*s %s\n", shown < 26 ? 26 - shown : 0, "", row->help);
    }
    fputs("A line that ends in \\ goes on in the next one, Alt-Enter begins one, and pasted lines stay\n"
          "together. A space before / makes it a message. Ctrl-C stops an answer; arrow up and\n"
          "Ctrl-R bring back earlier messages.\n",
          stderr);
    return 0;
}

/* True if `word` [n] is one of the names, which are separated by ", ". */
static bool is_named(const char *names, const char *word, size_t n) {
    for (const char *name = names;; name += strspn(name, ", ")) {
        const size_t length = strcspn(name, ",");
        if (length == n && !memcmp(name, word, n))
            return true;
        name += length;
        if (!*name)
            return false;
    }
}

int chat_command(chat *c, const char *line) {
    const size_t n = strcspn(line, " \t\r\n");
    const char *rest = line + n + strspn(line + n, " \t\r\n");
    size_t n_rest = strlen(rest);
    while (n_rest && strchr(" \t\r\n", rest[n_rest - 1]))
        n_rest--;
    const chat_row *row = rows;
    while (row->names && !is_named(row->names, line, n))
        row++;
    if (!row->names || (n_rest && !row->arg)) {
        cli_note(c->args,
                 row->names ? "%.*s: expected no argument; /help lists the commands"
                            : "unknown command %.*s; /help lists them",
                 (int)n, line);
        return 0;
    }
    char *arg = mem_strndup(rest, n_rest);
    if (!arg)
        return cli_no_memory();
    const int code = row->run(c, arg);
    mem_free(arg);
    return code;
}
