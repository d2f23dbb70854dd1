/* cli.h - shared by the sub-commands: one table of options, one place for output, one way to open a model.
 *
 * A sub-command is one file, cmd_NAME.c, that defines `const cli_command cmd_NAME`; the build finds it. Its
 * options are groups of rows of options.def, so --help, the man page and the shell completions come from the
 * table that parses the command line. Answers go to stdout, everything else to stderr. */
#ifndef NIB_CLI_CLI_H
#define NIB_CLI_CLI_H

#include "nib.h"

#include <jansson.h>
#include <stdio.h>

enum {                        /* groups of options that a command takes */
       CLI_COMMON = 1 << 0,   /* every command */
       CLI_MODEL = 1 << 1,    /* which model, how many threads */
       CLI_MEMORY = 1 << 2,   /* budgets and the context they pay for */
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
       CLI_TARGETS = 1 << 15,        /* how a plan is chosen */
       CLI_PLANNED = 1 << 16,        /* a plan that is given */
       CLI_PLAN = 1 << 17,           /* what a plan is made for */
       CLI_RUN = 1 << 18,            /* one prompt, and what follows it */
       CLI_TURN = 1 << 19,           /* a user's turn by the model's chat template */
       CLI_FETCH = 1 << 20,          /* how a model is fetched */
       CLI_SERVE = 1 << 21,          /* who may ask a server, and how much */
       CLI_QUANTIZE = 1 << 22        /* what a model's weights become */
};

enum { CLI_PREDICT_UNSET = -2 }; /* -n is not given */
enum { CLI_K_CHUNK_UNSET = -1 };
enum { CLI_CTX_UNSET = -1 };   /* -c is not given */
enum { CLI_LOGITS_ROWS = 16 }; /* of logits computed together where all are wanted, also under a cap */

typedef struct cli_strings {
    const char **data;
    size_t n;
} cli_strings;

/* One field a row of options.def, named as its long flag with - as _. */
typedef struct cli_args {
#define OPT_FLAG(field, letter, groups, help)                           bool field;
#define OPT_INT(field, letter, groups, arg, fallback, min, max, help)   int64_t field;
#define OPT_FLOAT(field, letter, groups, arg, fallback, min, max, help) double field;
#define OPT_SIZE(field, letter, groups, arg, help)                      uint64_t field;
#define OPT_TEXT(field, letter, groups, arg, help)                      const char *field;
#define OPT_LIST(field, letter, groups, arg, help)                      cli_strings field;
#include "cli/options.def"
#undef OPT_FLAG
#undef OPT_INT
#undef OPT_FLOAT
#undef OPT_SIZE
#undef OPT_TEXT
#undef OPT_LIST
    cli_strings rest;  /* arguments that are no options, the model's name taken out */
    cli_strings owned; /* copies that stand in for arguments; freed with them */
} cli_args;

typedef struct cli_command {
    const char *name;
    const char *usage;   /* "MODEL [options]" */
    const char *summary; /* one line */
    const char *details; /* some lines and examples, shown by --help */
    const char *words;   /* that the first argument may be, for completions; NULL: the model, or anything */
    int n_rest;          /* arguments that it takes beside MODEL and options */
    unsigned groups;     /* of options; CLI_MODEL: the first argument is the model when -m is not given */
    int (*run)(cli_args *args); /* returns an exit code */
} cli_command;

extern const cli_command *const cli_registry[]; /* by name, NULL after the last; made by the build */

/* ---- options.c ---- */
/* Environment, then flags, into *args. On a mistake it says what was wrong on stderr and returns false. */
bool cli_parse(const cli_command *command, int argc, char **argv, cli_args *args);
void cli_args_clear(cli_args *args);
bool cli_strings_add(cli_strings *list, const char *text); /* false: no memory */

/* ---- escape.c ---- */
/* \n, \t and others in the texts of the command line (prompt, system message, stop strings) become what they
 * stand for, unless --no-escape. An exit code. */
int cli_unescape(cli_args *args);

/* ---- help.c ---- */
void cli_print_overview(FILE *out);
void cli_print_help(const cli_command *command, FILE *out);

/* ---- console.c ---- */
/* Says an error on stderr and returns the exit code that belongs to it. Quiet about interruption. */
int cli_fail(const nib_error *err);
int cli_usage_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
void cli_note(const cli_args *args, const char *format, ...)
    __attribute__((format(printf, 2, 3))); /* not with -q */
/* Whether to go on after what was measured was kept, or could not be (status): that is said, unless the file
 * was asked for, which is an error. */
bool cli_keep_going(const cli_args *args, bool asked, nib_status status, const nib_error *err);
bool cli_colour(FILE *stream); /* a terminal, and NO_COLOR not set */
/* A standard stream that is closed would be the first file that is opened: something takes its place, from
 * which nothing comes, and which cannot be written but for stderr. To be called first. */
void cli_hold_closed(void);
bool cli_stdin_closed(void);         /* it was when the program began */
bool cli_log_open(const char *path); /* --log; NULL: none. False, and said, when it cannot be written. */
/* Writes to stdout; false when that is no longer possible (closed pipe, full disk). cli_finish reports it. */
bool cli_write(const char *data, size_t n_byte);
/* A document that the library has made: *out is json_decref'd, text is freed. An exit code. */
int cli_document(char *text, json_t **out);
/* The same of a call that may fail with a part made: that part goes with the error. text may be NULL then. */
int cli_document_of(nib_status status, char *text, const nib_error *err, json_t **out);
int cli_write_json(json_t *document, const cli_args *args); /* takes the reference; an exit code */
bool cli_wrote_json(void);                                  /* the document is on stdout */
int cli_finish(int exit_code); /* flushes stdout; the exit code, or 1 when the output was lost */
/* A progress line on stderr when it is a terminal; nib_progress_fn, user is the cli_args. */
bool cli_progress(void *user, const char *what, uint64_t done, uint64_t total);
void cli_progress_line(const cli_args *args, const char *line); /* the same, with any words */
void cli_log(void *user, const char *line);                     /* nib_log_fn, user is the cli_args */

/* ---- signals.c ---- */
/* Ctrl-C stops what is going on; SIGTERM and SIGHUP end the program, which then exits with 128 and the
 * signal's number. Both interrupt; either of them a second time leaves at once, and so does what has not
 * ended some seconds later. */
void cli_signals_init(void);
/* From now on what goes on is finished after the first signal, however long it takes; the second one still
 * leaves at once. */
void cli_signals_drain(void);
void cli_signals_leave(void); /* in a child: signals do again what they do to any process */
bool cli_interrupted(void);
bool cli_cancel(void *user);        /* the same, a nib_cancel_fn: whatever takes long asks it */
bool cli_ending(void);              /* SIGTERM or SIGHUP came */
void cli_interrupt_clear(void);     /* Ctrl-C has been dealt with; the others stay */
int cli_signal_code(int exit_code); /* of what was cancelled: by SIGTERM and SIGHUP 128 and their number */
/* Until fd can be read; false: interrupted, cli_wake was called, or max_ms (-1: none) went by. */
bool cli_wait_input(int fd, int max_ms);
void cli_wake(void);          /* ends cli_wait_input; for signal handlers */
void cli_save_terminal(void); /* as stdin's terminal is now, it is left when a signal ends the program */
/* A sequence (static; NULL: none) that puts the terminal at stderr back when a signal ends the program at
 * once. */
void cli_undo_terminal(const char *sequence);

/* ---- failure.c ---- */
/* With --json a command that fails prints {"error":{"status","message"}} and what was made until then. */
void cli_failed(nib_status status, const char *message); /* cli_fail and cli_usage_error tell it */
void cli_made(json_t *part); /* what a failing command has made, an object; takes the reference */
void cli_print_failure(int exit_code, const cli_args *args);

/* ---- open.c ---- */
/* Options of residuals without an original are refused: an exit code. */
int cli_check_residual(const cli_args *args);
/* What --quality high makes of --residual alone, before a plan is made: --slowdown, or no residuals where RAM
 * is not idle. An exit code. */
int cli_idle_residuals(cli_args *args, const char *model, nib_engine_options *options,
                       const nib_plan_options *how);
int cli_open_engine(cli_args *args, nib_engine_options *options, nib_engine **out); /* an exit code */
/* --slowdown of an engine with residuals, said in notes, max_s as nib_residuals_tune; json NULL, or what that
 * gives (caller frees with mem_free). An exit code. */
int cli_tune_residuals(const cli_args *args, nib_engine *engine, double max_s, char **json);
#define CLI_SCORING_S 60.0 /* in which steps of residuals get a perplexity */
/* A step of what that gives, as a line of a table; NULL: the table's head. */
void cli_residual_step(const json_t *step, char *out, size_t size);
/* The options that are names, checked; how a plan is chosen. Exit codes. */
int cli_named_options(const cli_args *args, nib_engine_options *options);
int cli_plan_options(const cli_args *args, nib_plan_options *how);
void cli_engine_options(const cli_args *args, nib_engine_options *options);
/* -p, -f, the arguments or stdin, in that order: *text is freed with free(). An exit code. engine: whose
 * context is to hold the text; NULL: nobody's. Under a cap on RAM no more is read than could be held, since
 * nothing else bounds what a text takes until its tokens are counted. */
int cli_read_text(const cli_args *args, const nib_engine *engine, size_t first_rest, char **text,
                  size_t *n_byte);
/* What cli_read_text would find wrong before it reads: two texts, or a stdin that is closed. An exit code. */
int cli_check_text(const cli_args *args, size_t first_rest);
/* "1,2 3" -> ids, freed with free(). An exit code. */
int cli_parse_tokens(const char *list, int32_t **tokens, size_t *n_token);
/* ---- cmd_run.c ---- */
void cli_sampling(const cli_args *args, nib_sampling *sampling);
/* How many of the largest logits that sampling looks at; 0: all. */
int32_t cli_n_best(const cli_args *args);
/* The grammar that the answer is to be a text of (caller frees with nib_free); NULL: none. An exit code. */
int cli_grammar(const cli_args *args, char **grammar);
/* What an engine needs for it; after n_best was set. */
void cli_grammar_options(const cli_args *args, nib_engine_options *options);
/* Says when an answer to a prompt of n_prompt tokens did not end by itself; `more` says what allows a longer
 * one than the n_predict tokens that it may have (-1: no such limit). */
void cli_note_cut(const cli_args *args, const nib_engine *engine, size_t n_prompt, int64_t n_predict,
                  const nib_result *result, const char *more);
json_t *cli_tokens_json(const int32_t *tokens, size_t n_token);

/* ---- memory.c, placement.c ---- */
json_t *cli_prediction_json(const nib_prediction *p);
const char *cli_prediction_source(const nib_prediction *p); /* "runs", "profile" or "guess" */
json_t *cli_memory_json(const nib_engine *engine);
void cli_print_memory(const cli_args *args, const nib_engine *engine, FILE *out);
json_t *cli_traffic_json(nib_engine *engine); /* bytes read from disk, planned and actual */
void cli_print_traffic(const cli_args *args, nib_engine *engine, FILE *out);
json_t *cli_placement_json(const nib_engine *engine);
void cli_print_placement(const cli_args *args, const nib_engine *engine); /* on stderr */
/* Ascending numbers as "0-10" or "1,3..29" (every second one): runs of one step; what has no room ends in
 * "...".
 */
void cli_write_members(const int32_t *members, size_t n_member, char *out, size_t size);

#endif
