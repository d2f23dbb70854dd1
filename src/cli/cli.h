/* cli.h - shared by the sub-commands: one table of options, one place for output, one way to open a model.
 *
 * A sub-command is one file, cmd_NAME.c, that defines `const cli_command cmd_NAME`; the build finds it. Its
 * options are groups of rows of options.def, so --help, the man page and the shell completions come from the
 * table that parses the command line. Answers go to stdout, everything else to stderr. */
#ifndef NIB_CLI_CLI_H
#define NIB_CLI_CLI_H

#include "nib.h"
#include "server/memory.h"

#include <jansson.h>
#include <stdio.h>

enum {                        /* groups of options that a command takes */
       CLI_COMMON = 1 << 0,   /* every command */
       CLI_MODEL = 1 << 1,    /* which model, how many threads */
       CLI_MEMORY = 1 << 2,   /* budgets, and the context that they must hold */
       CLI_PROMPT = 1 << 3,   /* text from an argument, a file or stdin */
       CLI_SAMPLING = 1 << 4, /* how tokens are chosen, and when to stop */
       CLI_TOKENIZE = 1 << 5,
       CLI_LOGITS = 1 << 6,
       CLI_EVAL = 1 << 7,
       CLI_BENCH = 1 << 8,
       CLI_INFO = 1 << 9,
       CLI_CHAT = 1 << 10,
       CLI_SYNTH = 1 << 11,
       CLI_KERNELS = 1 << 12, /* timing the strategies of products */
       CLI_PROFILE = 1 << 13,
       CLI_MODEL_OPTIONAL = 1 << 14, /* no option's group: the model may be left out */
       CLI_TARGETS = 1 << 15,        /* targets of a plan */
       CLI_PLANNED = 1 << 16,        /* a given plan */
       CLI_PLAN = 1 << 17,           /* the workload of a plan */
       CLI_RUN = 1 << 18,            /* one prompt and its answer */
       CLI_TURN = 1 << 19,           /* a user's turn by the model's chat template */
       CLI_FETCH = 1 << 20,          /* how a model is fetched */
       CLI_SERVE = 1 << 21,          /* access to a server, and its limits */
       CLI_QUANTIZE = 1 << 22,       /* formats of a converted model */
       CLI_BATCH = 1 << 23           /* requests from a file */
};

enum { CLI_PREDICT_UNSET = -2 }; /* -n is not given */
enum { CLI_K_CHUNK_UNSET = -1 };
enum { CLI_CTX_UNSET = -1 };   /* -c is not given */
enum { CLI_LOGITS_ROWS = 16 }; /* rows of logits computed together if all are needed, also under a cap */

typedef struct cli_strings {
    const char **data;
    size_t n;
} cli_strings;

/* One field for each row of options.def, named as its long flag with _ for -. */
typedef struct cli_args {
#define OPT_FLAG(field, letter, groups, help)                           bool field;
#define OPT_INT(field, letter, groups, arg, fallback, min, max, help)   int64_t field;
#define OPT_FLOAT(field, letter, groups, arg, fallback, min, max, help) double field;
#define OPT_SIZE(field, letter, groups, arg, help)                      uint64_t field;
#define OPT_TEXT(field, letter, groups, arg, help)                      const char *field;
#define OPT_LIST(field, letter, groups, arg, help)                      cli_strings field;
#include "cli/options/options.def"
#undef OPT_FLAG
#undef OPT_INT
#undef OPT_FLOAT
#undef OPT_SIZE
#undef OPT_TEXT
#undef OPT_LIST
    cli_strings rest;  /* arguments that are not options, without the model's name */
    cli_strings owned; /* copies that replace arguments; freed by cli_args_clear */
    uint64_t beside;   /* bytes of the cap on RAM that the engine of `model` does not get (draft.c) */
} cli_args;

typedef struct cli_command {
    const char *name;
    const char *usage;   /* "MODEL [options]" */
    const char *summary; /* one line */
    const char *details; /* some lines and examples, shown by --help */
    const char *words;   /* possible first arguments, for completions; NULL: the model, or anything */
    int n_rest;          /* maximum number of arguments besides MODEL and options */
    unsigned groups;     /* of options; CLI_MODEL: the first argument is the model unless -m is given */
    int (*run)(cli_args *args); /* returns an exit code */
} cli_command;

extern const cli_command *const cli_registry[]; /* by name, NULL after the last; made by the build */

/* ---- options.c ---- */
/* Reads the environment, then the flags, into *args. False: an error, which is printed on stderr. */
bool cli_parse(const cli_command *command, int argc, char **argv, cli_args *args);
void cli_args_clear(cli_args *args);
bool cli_strings_add(cli_strings *list, const char *text); /* false: out of memory, which is printed */

/* ---- escape.c ---- */
/* Replaces escapes (\n, \t, ...) in the texts of the command line (prompt, system message, stop strings),
 * unless --no-escape is given. Returns an exit code. */
int cli_unescape(cli_args *args);

/* ---- help.c ---- */
void cli_print_overview(FILE *out);
void cli_print_help(const cli_command *command, FILE *out);

/* ---- console.c ---- */
/* Prints an error on stderr and returns its exit code. Does not print an interruption. */
int cli_fail(const nib_error *err);
int cli_usage_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
int cli_no_memory(void);
void cli_note(const cli_args *args, const char *format, ...)
    __attribute__((format(printf, 2, 3))); /* not with -q */
bool cli_colour(FILE *stream);             /* a terminal, and NO_COLOR not set */
/* Opens a placeholder for each closed standard stream, so that no file gets its number. It reads as empty and
 * cannot be written, except stderr's, which discards. To be called first. */
void cli_hold_closed(void);
bool cli_stdin_closed(void);         /* stdin was closed when the program began */
bool cli_log_open(const char *path); /* --log; NULL: none. False: it cannot be written, which is printed. */
/* Writes to stdout; false: no longer possible (closed pipe, full disk), which cli_finish reports. */
bool cli_write(const char *data, size_t n_byte);
/* Parses a document of the library and frees text. The caller frees *out with json_decref. Returns an exit
 * code. */
int cli_document(char *text, json_t **out);
/* The same for a call that may fail after a part of the document was made, which is printed with the error.
 * text may be NULL then. */
int cli_document_of(nib_status status, char *text, const nib_error *err, json_t **out);
int cli_write_json(json_t *document, const cli_args *args); /* takes the reference; returns an exit code */
bool cli_wrote_json(void);                                  /* the document was written to stdout */
int cli_finish(int exit_code); /* flushes stdout; returns the exit code, or 1 if output was lost */
/* Shows a progress line if stderr is a terminal; a nib_progress_fn, user: the cli_args. */
bool cli_progress(void *user, const char *what, uint64_t done, uint64_t total);
void cli_progress_line(const cli_args *args, const char *line); /* the same with any text */
void cli_log(void *user, const char *line);                     /* a nib_log_fn, user: the cli_args */

/* ---- signals.c ---- */
/* Ctrl-C cancels the current work; SIGTERM and SIGHUP also end the program, with exit code 128 plus the
 * signal's number. A second signal ends the program at once, and so does work that continues for some
 * seconds. */
void cli_signals_init(void);
/* From now on the current work is finished after the first signal, however long it takes; the second signal
 * still ends the program at once. */
void cli_signals_drain(void);
void cli_signals_leave(void); /* in a child process: restores the default actions */
bool cli_interrupted(void);
bool cli_cancel(void *user);        /* the same as a nib_cancel_fn */
bool cli_ending(void);              /* SIGTERM or SIGHUP was received */
void cli_interrupt_clear(void);     /* clears Ctrl-C; the other signals stay set */
int cli_signal_code(int exit_code); /* of cancelled work: with SIGTERM and SIGHUP 128 plus their number */
/* Waits until fd is readable; false: interrupted, woken by cli_wake, or max_ms (-1: no limit) passed. */
bool cli_wait_input(int fd, int max_ms);
void cli_wake(void); /* ends cli_wait_input; for signal handlers */
void cli_save_terminal(
    void); /* saves the state of stdin's terminal, which is restored if a signal ends the program */
/* Sets a static sequence (NULL: none) that restores the terminal at stderr if a signal ends the program at
 * once. */
void cli_undo_terminal(const char *sequence);

/* ---- failure.c ---- */
/* With --json a failing command prints {"error": {"status", "message"}} and the part of the document that was
 * made. */
void cli_failed(nib_status status, const char *message); /* called by cli_fail and cli_usage_error */
int cli_failure_code(void);                              /* exit code of the latest error */
void cli_made(json_t *part);                             /* sets that part, an object; takes the reference */
void cli_print_failure(int exit_code, const cli_args *args);

/* ---- draft.c ---- */
int64_t cli_draft_max(const cli_args *args); /* nib_engine_options.n_draft */
/* If there is a draft model, opens it with these options, except those that only the target model has. To be
 * called before the target model is opened, so that its memory counts as part of the process. *n_byte: what
 * it may still make resident. The caller closes *draft. Returns an exit code. */
int cli_open_draft(const cli_args *args, const nib_engine_options *options, nib_engine **draft,
                   uint64_t *n_byte);
/* Takes the VRAM that a draft model has from the cap of its target. draft NULL: nothing is done. */
void cli_leave_vram(const nib_engine *draft, nib_engine_options *options);
/* For one session of a model that is opened with *options afterwards: opens the draft model unless *draft is
 * open, and takes its memory from the cap. */
int cli_session_draft(cli_args *args, nib_engine_options *options, nib_engine **draft);

/* ---- open.c ---- */
int cli_open_engine(cli_args *args, nib_engine_options *options, nib_engine **out); /* an exit code */
/* Check options that are names, and set them; set the targets of a plan. Return exit codes. */
int cli_named_options(const cli_args *args, nib_engine_options *options);
int cli_plan_options(const cli_args *args, nib_plan_options *how);
/* Sets *ram to the RAM cap of a plan's file, if it has one. Returns an exit code. */
int cli_plan_cap(const char *path, uint64_t *ram);
/* --parallel as one number; `usual` if it is not given. */
int cli_parallel(const cli_args *args, int usual, int *out);
void cli_engine_options(const cli_args *args, nib_engine_options *options);
/* Reads the text from -p, -f, the arguments or stdin, in that order; the caller frees *text with free().
 * Returns an exit code. engine: its context must hold the text; NULL: no limit. Under a cap on RAM a text
 * that is too long for the context is refused while it is read. */
int cli_read_text(const cli_args *args, const nib_engine *engine, size_t first_rest, char **text,
                  size_t *n_byte);
/* Checks the arguments of cli_read_text without reading: two texts, or a closed stdin. Returns an exit code.
 */
int cli_check_text(const cli_args *args, size_t first_rest);
/* Parses "1,2 3" to ids; the caller frees them with free(). Returns an exit code. */
int cli_parse_tokens(const char *list, int32_t **tokens, size_t *n_token);
/* ---- cmd_run.c ---- */
/* Checks the options of sampling. *bias: those of tokens [args->logit_bias.n], which the caller frees with
 * mem_free; NULL: not wanted. Returns an exit code. */
int cli_sampling_check(const cli_args *args, nib_logit_bias **bias);
void cli_sampling(const cli_args *args, nib_sampling *sampling);
/* Number of the largest logits that sampling reads (NULL: that of the options); 0: all. */
int32_t cli_n_best(const cli_args *args, const nib_sampling *sampling);
/* The grammar for the answer (caller frees with nib_free); NULL: none. Returns an exit code. */
int cli_grammar(const cli_args *args, char **grammar);
/* Sets an engine's options for a grammar; after n_best was set. */
void cli_grammar_options(const cli_args *args, nib_engine_options *options);
/* Says when an answer to a prompt of n_prompt tokens did not end by itself; `more` says what allows a longer
 * one than the n_predict tokens that it may have (-1: no such limit). */
void cli_note_cut(const cli_args *args, const nib_engine *engine, size_t n_prompt, int64_t n_predict,
                  const nib_result *result, const char *more);
json_t *cli_tokens_json(const int32_t *tokens, size_t n_token);

/* ---- memory.c, placement.c ---- */
json_t *cli_prediction_json(const nib_prediction *p);
const char *cli_prediction_source(const nib_prediction *p); /* "runs", "profile" or "guess" */
void cli_print_memory(const cli_args *args, memory_use of, FILE *out);
/* The same of an engine that is closed; draft: bytes of a draft model. */
void cli_print_used_memory(const cli_args *args, const nib_memory *used, uint64_t draft, FILE *out);
json_t *cli_traffic_json(nib_engine *engine); /* bytes read from disk, planned and actual */
void cli_print_traffic(const cli_args *args, nib_engine *engine, FILE *out);
json_t *cli_placement_json(const nib_engine *engine);
void cli_print_placement(const cli_args *args, const nib_engine *engine); /* on stderr */
/* Ascending numbers as "0-10" or "1,3..29" (every second one): runs of one step. If they do not fit, the text
 * ends in "...". */
void cli_write_members(const int32_t *members, size_t n_member, char *out, size_t size);

#endif
