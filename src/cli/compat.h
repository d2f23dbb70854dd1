/* compat.h - the rows of compat.def as data: flags and commands of other programs (mainly llama.cpp). */
#ifndef NIB_CLI_COMPAT_H
#define NIB_CLI_COMPAT_H

#include "cli/options.h"

typedef enum compat_kind { COMPAT_IS_OPTION, COMPAT_IS_IGNORED, COMPAT_IS_REFUSED } compat_kind;

enum { COMPAT_MAX_WORDS = 4 };

typedef struct cli_compat {
    const char *flags; /* with their dashes, a space between them */
    compat_kind kind;
    unsigned groups;  /* of the commands that know it; 0: those that take the option */
    size_t offset;    /* in cli_args, of the option that is meant */
    const char *arg;  /* of an ignored flag: NULL, the name of a value, or "[words it may be|left out]" */
    const char *text; /* why it is ignored, or what to use instead */
    const char *words[COMPAT_MAX_WORDS + 1]; /* of the option's values: theirs, ours, theirs, ours, NULL */
} cli_compat;

extern const cli_compat cli_compat_rows[];
extern const size_t cli_n_compat;

/* The row for a flag of n letters, dashes included, as `command` knows it; NULL: none. */
const cli_compat *cli_compat_find(const cli_command *command, const char *flag, size_t n);
/* The option that a row of kind COMPAT_IS_OPTION means, as `command` takes it; NULL: it does not. */
const cli_option *cli_compat_option(const cli_command *command, const cli_compat *row);
/* What the value is called here; the value itself when the row has no other name for it. */
const char *cli_compat_value(const cli_compat *row, const char *value);
/* Whether `next`, the argument after an ignored flag, is its value. NULL: there is no argument. */
bool cli_compat_takes(const cli_compat *row, const char *next);
/* What to use instead of a command that there is not; NULL: not known. */
const char *cli_compat_command(const char *name);

/* The n-th word (from 0) of a list with `between` between its words: its length, 0 behind the last; *word. */
size_t cli_word_at(const char *list, const char *between, size_t n, const char **word);

#endif
