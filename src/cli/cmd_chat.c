/* cmd_chat.c - nibble chat: a conversation, in the terminal or line by line from a pipe. */
#include "cli/chat/chat.h"

#include "base/mem.h"
#include "cli/terminal/input.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct message {
    char *text; /* grown with realloc, NUL-terminated */
    size_t n_byte;
} message;

static bool append(message *m, const char *text, size_t n_byte) {
    char *grown = realloc(m->text, m->n_byte + n_byte + 1);
    if (!grown)
        return false;
    memcpy(grown + m->n_byte, text, n_byte);
    m->text = grown;
    m->n_byte += n_byte;
    grown[m->n_byte] = 0;
    return true;
}

/* Reads a message: a line, or several lines of which all but the last end with a backslash. */
static input_result read_message(input *in, message *m) {
    m->n_byte = 0;
    for (bool more = true, first = true; more; first = false) {
        const char *line;
        size_t n;
        const input_result got = input_line(in, first ? "> " : ". ", &line, &n);
        if (got != INPUT_LINE)
            return got == INPUT_END && m->n_byte > 0 ? INPUT_LINE : got;
        more = n > 0 && line[n - 1] == '\\';
        if (!append(m, line, n - more) || (more && !append(m, "\n", 1)))
            return INPUT_END;
    }
    return INPUT_LINE;
}

static bool is_blank(const message *m) {
    return !m->text || m->text[strspn(m->text, " \t\r\n")] == 0;
}

/* Handles any result but a line. *done: no more input will come. Returns an exit code. */
static int no_line(const chat *c, input_result got, bool *done) {
    *done = got == INPUT_END || got == INPUT_FAILED || cli_ending() || !c->terminal;
    if (got == INPUT_END)
        return 0;
    if (got == INPUT_FAILED) {
        nib_error err = {NIB_E_IO, ""};
        snprintf(err.message, sizeof err.message, "cannot read stdin: %s", strerror(errno));
        return cli_fail(&err);
    }
    if (*done)
        return nib_status_exit_code(NIB_E_CANCELLED);
    cli_interrupt_clear();
    cli_note(c->args, got == INPUT_CLEARED ? "" : "\n(/bye or Ctrl-D leaves)");
    return 0;
}

static int converse(chat *c, input *in) {
    message m = {0};
    int code = 0;
    bool done = false;
    while (!done && !c->leave && !code) {
        const input_result got = read_message(in, &m);
        if (got != INPUT_LINE)
            code = no_line(c, got, &done);
        else if (is_blank(&m))
            continue;
        else if (m.text[0] == '/')
            code = chat_command(c, m.text);
        else
            code = chat_send(c, m.text, m.n_byte);
    }
    if (c->terminal && !c->leave)
        fputc('\n', stderr);
    free(m.text);
    return code;
}

/* Sends the first message, from -p, TEXT or -f. At a terminal it is shown as if it had been typed. */
static int first_message(chat *c) {
    message m = {0};
    if (!c->args->prompt && !c->args->file && !c->args->rest.n)
        return 0;
    int code = cli_read_text(c->args, c->engine, 0, &m.text, &m.n_byte);
    if (code)
        return code;
    while (m.n_byte && strchr("\r\n", m.text[m.n_byte - 1])) /* the newline at the end of a file */
        m.text[--m.n_byte] = 0;
    if (!is_blank(&m)) {
        if (c->terminal)
            cli_note(c->args, "> %s", m.text);
        code = chat_send(c, m.text, m.n_byte);
    }
    free(m.text);
    return code;
}

/* Begins the conversation with the system message. Fails if the model has no chat template. */
static int begin(chat *c) {
    nib_error err;
    const nib_session_options how = {.n_draft_min = (int32_t)c->args->draft_min, .draft = c->draft};
    nib_status status = conversation_init(&c->conversation, c->engine, c->args->special_in_messages, &err);
    if (status == NIB_OK)
        status = conversation_check(&c->conversation, &err);
    if (status == NIB_OK)
        status = conversation_begin(&c->conversation, c->args->system, &err);
    if (status == NIB_OK && c->args->system)
        status = conversation_check(&c->conversation, &err);
    if (status == NIB_OK)
        status = nib_session_open(c->engine, &how, &c->session, &err);
    if (status == NIB_OK)
        return 0;
    const int code = cli_fail(&err);
    if (status == NIB_E_NOTFOUND)
        cli_note(c->args, "nibble: the model has no chat template; 'nibble run' continues a text with it");
    return code;
}

static int hold(chat *c) {
    const nib_model_info *info = nib_engine_info(c->engine);
    const memory_use use = {c->engine, c->draft, c->args->beside};
    const input_options from = {c->terminal, c->terminal && cli_colour(stderr), !c->args->no_history};
    int code = begin(c);
    if (code)
        return code;
    if (c->terminal)
        cli_note(c->args, "%s, %lld tokens of context. /help lists the commands.", info->name,
                 (long long)info->n_ctx);
    if (c->args->verbose && !c->args->json)
        cli_print_placement(c->args, c->engine);
    code = first_message(c);
    input *in = code ? NULL : input_open(&from);
    if (!code)
        code = in ? converse(c, in) : cli_no_memory();
    input_close(in);
    if (!code && c->args->json)
        code = cli_write_json(
            json_pack("{s:O, s:o}", "messages", c->conversation.messages, "memory", memory_json(use)),
            c->args);
    if (code)
        cli_made(json_pack("{s:O}", "messages", c->conversation.messages));
    if (c->args->verbose && !c->args->json)
        cli_print_memory(c->args, use, stderr);
    return code;
}

static int open_engine(chat *c) {
    nib_engine_options options;
    nib_sampling warm = c->sampling;
    if (c->terminal && warm.temperature <= 0)
        warm.temperature = 1; /* /temp may set it later */
    cli_engine_options(c->args, &options);
    options.n_best = cli_n_best(c->args, &warm);
    cli_grammar_options(c->args, &options);
    const int code = cli_session_draft(c->args, &options, &c->draft);
    return code ? code : cli_open_engine(c->args, &options, &c->engine);
}

static int run(cli_args *args) {
    chat c = {.args = args, .n_predict = args->predict == CLI_PREDICT_UNSET ? -1 : args->predict};
    const bool given = args->prompt || args->file || args->rest.n;
    c.terminal = isatty(STDIN_FILENO) && !args->json;
    cli_sampling(args, &c.sampling);
    wrap_init(&c.screen);
    int code = cli_unescape(args);
    if (!code)
        code = cli_sampling_check(args, &c.bias);
    if (!code && given)
        code = cli_check_text(args, 0);
    if (!code)
        code = cli_grammar(args, &c.grammar);
    if (!code)
        code = open_engine(&c);
    if (!code)
        code = hold(&c);
    conversation_deinit(&c.conversation);
    nib_session_close(c.session);
    nib_engine_close(c.engine);
    nib_engine_close(c.draft);
    nib_free(c.grammar);
    mem_free(c.bias);
    return code;
}

const cli_command cmd_chat = {
    .name = "chat",
    .usage = "MODEL [TEXT | -p TEXT | -f FILE] [options]",
    .summary = "hold a conversation with a model",
    .details =
        "The model's own chat template is used. TEXT, -p or -f FILE is the first message. In a terminal,\n"
        "/help lists the commands; Ctrl-C stops an answer, Ctrl-D leaves; arrows, Ctrl-A, Ctrl-E, Ctrl-R\n"
        "and the other emacs keys edit the line (~/.editrc changes them). Typed lines are stored in\n"
        "$XDG_STATE_HOME/nibble/history, else ~/.local/state/nibble/history. Without a terminal each line\n"
        "of stdin is a message. With --json the whole conversation is printed at the end. /save writes\n"
        "{\"messages\": [{\"role\": ..., \"content\": ...}, ...]}, and /load reads it.\n\n"
        "  nibble chat smollm2\n"
        "  nibble chat smollm2 --system \"Answer in one sentence.\" --temp 0.2\n"
        "  echo \"Why is the sky blue?\" | nibble chat smollm2 --temp 0\n",
    .groups = CLI_MODEL | CLI_MEMORY | CLI_TARGETS | CLI_PLANNED | CLI_SAMPLING | CLI_TURN | CLI_CHAT,
    .n_rest = 1,
    .run = run,
};
