/* compat.h - the rows of compat.def as data: flags and commands of other programs (mainly llama.cpp). */
#ifndef NIB_CLI_OPTIONS_COMPAT_H
#define NIB_CLI_OPTIONS_COMPAT_H

#include "cli/options/options.h"

typedef enum compat_kind { COMPAT_IS_OPTION, COMPAT_IS_IGNORED, COMPAT_IS_REFUSED } compat_kind;

enum { COMPAT_MAX_WORDS = 4 };

typedef struct cli_compat {
    const char *flags; /* with their dashes, separated by spaces */
    compat_kind kind;
    unsigned groups;    /* of the commands that accept it; 0: those that take the option */
    size_t offset;      /* of the option's field in cli_args */
    size_t text_offset; /* of the option that gets a value which is no number; 0: the same */
    const char *arg;  /* of an ignored flag: NULL, the name of a value, or "[word|word]", an optional value */
    const char *text; /* why it is ignored, or what to use instead */
    const char *words[COMPAT_MAX_WORDS + 1]; /* of the option's values: theirs, ours, theirs, ours, NULL */
} cli_compat;

extern const cli_compat cli_compat_rows[];
extern const size_t cli_n_compat;

/* The row for a flag [n], with its dashes, that applies to `command`; NULL: none. */
const cli_compat *cli_compat_find(const cli_command *command, const char *flag, size_t n);
/* The option of a row of kind COMPAT_IS_OPTION for this value (NULL: any); NULL: `command` does not take it.
 */
const cli_option *cli_compat_option(const cli_command *command, const cli_compat *row, const char *value);
/* nibble's name for the value, or the value itself if the row does not rename it. */
const char *cli_compat_value(const cli_compat *row, const char *value);
/* True if `next`, the argument after an ignored flag (NULL: none), is its value. */
bool cli_compat_takes(const cli_compat *row, const char *next);
/* What to use instead of another program's command; NULL: not known. */
const char *cli_compat_command(const char *name);

/* Sets *word to word n (from 0) of a list separated by `between`, and returns its length; 0: there is none.
 */
size_t cli_word_at(const char *list, const char *between, size_t n, const char **word);

#endif
