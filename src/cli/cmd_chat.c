/* cmd_chat.c - nibble chat: a conversation, in the terminal or line by line from a pipe.
 * Each turn renders the whole conversation with the model's own template and hands it to the session, which
 * computes only what it does not hold yet. When the context is full, the oldest turns are left out, and said
 * so. */
#include "cli/cli.h"

#include "base/num.h"
#include "cli/input.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct conversation {
    cli_args *args;
    nib_engine *engine;
    nib_session *session;
    json_t *messages;
    nib_sampling sampling;
    int64_t n_ctx;
    bool terminal;
    input *input;
    char *answer; /* of the turn that is being generated */
    size_t n_answer, cap_answer;
    bool answer_lost; /* no memory to keep it */
} conversation;

static const char help_text[] =
    "/help            this list\n"
    "/system [TEXT]   set the system message (none: remove it) and begin again\n"
    "/reset           forget the conversation, keep the system message\n"
    "/exit            leave (as Ctrl-D)\n"
    "A line that ends in \\ goes on in the next one. Ctrl-C stops an answer; arrow up\n"
    "and Ctrl-R bring back earlier lines.\n";

static bool is_system(const json_t *message) {
    const char *role = json_string_value(json_object_get(message, "role"));
    return role && !strcmp(role, "system");
}

static void add_message(conversation *c, const char *role, const char *text, size_t n_byte) {
    json_array_append_new(c->messages,
                          json_pack("{s:s, s:o}", "role", role, "content", cli_text_json(text, n_byte)));
}

static void forget(conversation *c, bool system_too) {
    size_t keep = !system_too && is_system(json_array_get(c->messages, 0));
    while (json_array_size(c->messages) > keep)
        json_array_remove(c->messages, keep);
}

/* The conversation as tokens. *tokens is freed with nib_free. */
static nib_status conversation_tokens(conversation *c, int32_t **tokens, size_t *n_token, nib_error *err) {
    char *text, *json = json_dumps(c->messages, JSON_COMPACT);
    if (!json) {
        *err = (nib_error){NIB_E_NOMEM, "out of memory"};
        return NIB_E_NOMEM;
    }
    nib_status status = nib_chat_render(c->engine, json, NULL, true, &text, err);
    free(json);
    if (status)
        return status;
    status = nib_tokenize(c->engine, text, strlen(text), NIB_TOKENIZE_BOS | NIB_TOKENIZE_SPECIAL, tokens,
                          n_token, err);
    nib_free(text);
    return status;
}

/* Leaves out the oldest question with its answer; false when only the newest question is left. */
static bool drop_oldest(conversation *c) {
    size_t first = is_system(json_array_get(c->messages, 0));
    if (json_array_size(c->messages) < first + 3)
        return false;
    json_array_remove(c->messages, first);
    json_array_remove(c->messages, first);
    return true;
}

static nib_status too_long(const conversation *c, size_t n_token, nib_error *err) {
    err->status = NIB_E_USAGE;
    snprintf(err->message, sizeof err->message,
             "the message needs %zu tokens, the context holds %lld (-c makes it longer)", n_token,
             (long long)c->n_ctx);
    return err->status;
}

/* As conversation_tokens, with room for an answer. What is left out changes what comes before everything
 * else, so the session computes all of it anew: enough is left out at once that the next turns fit, too. */
static nib_status fitting_tokens(conversation *c, int32_t **tokens, size_t *n_token, nib_error *err) {
    int64_t wanted = c->args->predict >= 0 ? c->args->predict : 256;
    int64_t room = c->n_ctx - NUM_MIN(wanted, c->n_ctx / 4);
    int dropped = 0;
    for (;;) {
        nib_status status = conversation_tokens(c, tokens, n_token, err);
        if (status)
            return status;
        int64_t fits = dropped ? room * 3 / 4 : room;
        if ((int64_t)*n_token <= fits || !drop_oldest(c))
            break;
        nib_free(*tokens);
        dropped++;
    }
    if ((int64_t)*n_token >= c->n_ctx) { /* a question alone may take some of the answer's room */
        nib_free(*tokens);
        return too_long(c, *n_token, err);
    }
    if (dropped)
        cli_note(c->args, "[the context of %lld tokens is full: the oldest %d %s left out]",
                 (long long)c->n_ctx, dropped, dropped == 1 ? "turn is" : "turns are");
    return NIB_OK;
}

static bool on_text(void *user, const char *text, size_t n_byte) {
    conversation *c = user;
    if (c->cap_answer - c->n_answer < n_byte && !c->answer_lost) {
        size_t cap = 2 * c->cap_answer + n_byte + 256;
        char *grown = realloc(c->answer, cap);
        c->answer_lost = !grown;
        if (grown) {
            c->answer = grown;
            c->cap_answer = cap;
        }
    }
    if (!c->answer_lost) {
        memcpy(c->answer + c->n_answer, text, n_byte);
        c->n_answer += n_byte;
    }
    return c->args->json || cli_write(text, n_byte);
}

static bool on_prompt(void *user, const char *what, uint64_t done, uint64_t total) {
    conversation *c = user;
    return cli_progress(c->args, what, done, total);
}

static nib_status generate(conversation *c, const int32_t *tokens, size_t n_token, nib_result *result,
                           nib_error *err) {
    nib_generate_options options;
    nib_generate_options_init(&options);
    options.prompt = tokens;
    options.n_prompt = n_token;
    options.n_predict =
        NUM_MIN(c->args->predict < 0 ? c->n_ctx : c->args->predict, c->n_ctx - (int64_t)n_token);
    options.ignore_eos = c->args->ignore_eos;
    options.stop = c->args->stop.data;
    options.n_stop = c->args->stop.n;
    options.sampling = c->sampling;
    options.on_text = on_text;
    options.on_prompt = on_prompt;
    options.user = c;
    c->n_answer = 0;
    cli_interrupt_session(c->session);
    nib_status status = nib_generate(c->session, &options, result, err);
    cli_interrupt_session(NULL);
    c->sampling.seed++; /* the same question again gets another answer */
    return status;
}

static void say_timings(const conversation *c, size_t n_token, const nib_result *r) {
    if (c->args->verbose)
        cli_note(c->args, "[%zu tokens before, %lld of them computed in %.2f s; %lld generated, %.1f tok/s]",
                 n_token, (long long)r->prompt_n, r->prompt_s, (long long)r->predicted_n,
                 r->token_s > 0 ? (double)r->token_n / r->token_s : 0);
}

/* One question and its answer. What the model or its template refuses is taken back and said; only what ends
 * the program (output gone, memory) returns an exit code. */
static int turn(conversation *c, const char *text, size_t n_byte) {
    nib_error err = {NIB_OK, ""};
    nib_result result = {0};
    int32_t *tokens;
    size_t n_token;
    add_message(c, "user", text, n_byte);
    nib_status status = fitting_tokens(c, &tokens, &n_token, &err);
    if (status == NIB_OK) {
        status = generate(c, tokens, n_token, &result, &err);
        nib_free(tokens);
    }
    if (status == NIB_E_CANCELLED && cli_ending()) {
        nib_result_clear(&result);
        return cli_fail(&err);
    }
    bool stopped = status == NIB_E_CANCELLED;
    if (stopped)
        cli_interrupt_clear();
    if (status != NIB_OK && !stopped) {
        json_array_remove(c->messages, json_array_size(c->messages) - 1);
        int code = cli_fail(&err);
        return status == NIB_E_USAGE && c->terminal ? 0 : code;
    }
    add_message(c, "assistant", c->answer ? c->answer : "", c->n_answer);
    if (!c->args->json && !cli_write("\n", 1))
        return 1;
    if (stopped)
        cli_note(c->args, "[stopped]");
    else if (result.finish == NIB_FINISH_LENGTH)
        cli_note(c->args, "[the answer is cut at %zu tokens; -n allows more]", result.n_token);
    say_timings(c, n_token, &result);
    nib_result_clear(&result);
    return 0;
}

static void set_system(conversation *c, const char *text) {
    forget(c, true);
    if (*text)
        add_message(c, "system", text, strlen(text));
}

/* A line that begins with '/'. *leave: it was /exit. */
static void command(conversation *c, const char *line, bool *leave) {
    size_t n = strcspn(line, " \t");
    const char *rest = line + n + strspn(line + n, " \t");
    bool is_exit = (n == 5 && !strncmp(line, "/exit", n)) || (n == 5 && !strncmp(line, "/quit", n));
    if (is_exit)
        *leave = true;
    else if (n == 6 && !strncmp(line, "/reset", n))
        forget(c, false);
    else if (n == 7 && !strncmp(line, "/system", n))
        set_system(c, rest);
    else if (n == 5 && !strncmp(line, "/help", n))
        fputs(help_text, stderr);
    else
        cli_note(c->args, "unknown command %.*s; /help lists them", (int)n, line);
}

/* Reads one message into *text (grown with realloc): a line, or several joined by a backslash at the end. */
static input_result read_message(conversation *c, char **text, size_t *n_byte) {
    *n_byte = 0;
    for (bool more = true, first = true; more; first = false) {
        const char *line;
        size_t n;
        input_result got = input_line(c->input, first ? "> " : ". ", &line, &n);
        if (got != INPUT_LINE)
            return got == INPUT_END && *n_byte > 0 ? INPUT_LINE : got;
        more = n > 0 && line[n - 1] == '\\';
        n -= more;
        char *grown = realloc(*text, *n_byte + n + 2);
        if (!grown)
            return INPUT_END;
        *text = grown;
        memcpy(grown + *n_byte, line, n);
        *n_byte += n;
        if (more)
            grown[(*n_byte)++] = '\n';
        grown[*n_byte] = 0;
    }
    return INPUT_LINE;
}

static int converse(conversation *c) {
    char *text = NULL;
    size_t n_byte;
    int code = 0;
    bool leave = false;
    while (!leave && !code) {
        input_result got = read_message(c, &text, &n_byte);
        if (got == INPUT_END)
            break;
        if (got != INPUT_LINE && (cli_ending() || !c->terminal)) {
            code = nib_status_exit_code(NIB_E_CANCELLED);
            break;
        }
        if (got != INPUT_LINE) {
            cli_interrupt_clear();
            cli_note(c->args, got == INPUT_CLEARED ? "" : "\n(/exit or Ctrl-D leaves)");
            continue;
        }
        if (n_byte == 0)
            continue;
        if (text[0] == '/')
            command(c, text, &leave);
        else
            code = turn(c, text, n_byte);
    }
    if (c->terminal && !leave)
        fputc('\n', stderr);
    free(text);
    return code;
}

/* Says at once when the model cannot hold a conversation at all. */
static int check_template(conversation *c) {
    char *text;
    nib_error err;
    nib_status status =
        nib_chat_render(c->engine, "[{\"role\":\"user\",\"content\":\"Hi\"}]", NULL, true, &text, &err);
    if (status == NIB_OK) {
        nib_free(text);
        return 0;
    }
    int code = cli_fail(&err);
    if (status == NIB_E_NOTFOUND)
        cli_note(c->args, "nibble: it was not made for conversations; 'nibble run' continues a text with it");
    return code;
}

static int hold(conversation *c) {
    nib_error err;
    const nib_model_info *info = nib_engine_info(c->engine);
    int code = check_template(c);
    if (code)
        return code;
    c->n_ctx = info->n_ctx;
    if (nib_session_open(c->engine, NULL, &c->session, &err))
        return cli_fail(&err);
    if (c->args->system)
        set_system(c, c->args->system);
    if (c->terminal)
        cli_note(c->args, "%s, %lld tokens of context. /help lists the commands.", info->name,
                 (long long)c->n_ctx);
    if (c->args->verbose && !c->args->json)
        cli_print_placement(c->args, c->engine);
    const input_options from = {c->terminal, c->terminal && cli_colour(stderr), !c->args->no_history};
    c->input = input_open(&from);
    code = c->input ? converse(c) : cli_usage_error("out of memory");
    input_close(c->input);
    if (!code && c->args->json)
        code = cli_write_json(
            json_pack("{s:O, s:o}", "messages", c->messages, "memory", cli_memory_json(c->engine)), c->args);
    if (c->args->verbose && !c->args->json)
        cli_print_memory(c->args, c->engine, stderr);
    nib_session_close(c->session);
    return code;
}

static int chat(cli_args *args) {
    conversation c = {.args = args, .messages = json_array()};
    nib_engine_options options;
    c.terminal = isatty(STDIN_FILENO) && !args->json;
    cli_engine_options(args, &options);
    cli_sampling(args, &c.sampling);
    options.n_best = nib_sampling_n_best(&c.sampling);
    int code = cli_open_engine(args, &options, &c.engine);
    if (!code)
        code = hold(&c);
    free(c.answer);
    json_decref(c.messages);
    nib_engine_close(c.engine);
    return code;
}

const cli_command cmd_chat = {
    .name = "chat",
    .usage = "MODEL [options]",
    .summary = "hold a conversation with a model",
    .details =
        "The model's own chat template is used. In a terminal, /help lists the commands; Ctrl-C stops an "
        "answer,\n"
        "Ctrl-D leaves; arrows, Ctrl-A, Ctrl-E, Ctrl-R and the other emacs keys edit the line (~/.editrc "
        "changes\n"
        "them). What was typed is remembered in $XDG_STATE_HOME/nibble/history, else "
        "~/.local/state/nibble/history.\n"
        "Without a terminal each line of stdin is a message. With --json the whole conversation is printed "
        "at the\n"
        "end.\n\n"
        "  nibble chat smollm2\n"
        "  nibble chat smollm2 --system \"Answer in one sentence.\" --temp 0.2\n"
        "  echo \"Why is the sky blue?\" | nibble chat smollm2 --temp 0\n",
    .groups = CLI_MODEL | CLI_MEMORY | CLI_WISHES | CLI_OBEY | CLI_SAMPLING | CLI_CHAT,
    .run = chat,
};
