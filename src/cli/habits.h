/* habits.h - the rows of habits.def as data: what people type because other programs have it. */
#ifndef NIB_CLI_HABITS_H
#define NIB_CLI_HABITS_H

#include "cli/options.h"

typedef enum habit_kind { HABIT_IS_OPTION, HABIT_IS_IGNORED, HABIT_IS_REFUSED } habit_kind;

enum { HABIT_MAX_WORDS = 4 };

typedef struct cli_habit {
    const char *flags; /* with their dashes, a space between them */
    habit_kind kind;
    unsigned groups;  /* of the commands that know it; 0: those that take the option */
    size_t offset;    /* in cli_args, of the option that is meant */
    const char *arg;  /* of an ignored flag: NULL, the name of a value, or "[words it may be|left out]" */
    const char *text; /* why it is ignored, or what to use instead */
    const char *words[HABIT_MAX_WORDS + 1]; /* of the option's values: theirs, ours, theirs, ours, NULL */
} cli_habit;

extern const cli_habit cli_habits[];
extern const size_t cli_n_habit;

/* The row for a flag of n letters, dashes included, as `command` knows it; NULL: none. */
const cli_habit *cli_habit_find(const cli_command *command, const char *flag, size_t n);
/* The option that a row of kind HABIT_IS_OPTION means, as `command` takes it; NULL: it does not. */
const cli_option *cli_habit_option(const cli_command *command, const cli_habit *habit);
/* What the value is called here; the value itself when the row has no other name for it. */
const char *cli_habit_value(const cli_habit *habit, const char *value);
/* Whether `next`, the argument after an ignored flag, is its value. NULL: there is no argument. */
bool cli_habit_takes(const cli_habit *habit, const char *next);
/* What to use instead of a command that there is not; NULL: not known. */
const char *cli_habit_command(const char *name);

/* The n-th word (from 0) of a list with `between` between its words: its length, 0 behind the last; *word. */
size_t cli_word_at(const char *list, const char *between, size_t n, const char **word);

#endif
