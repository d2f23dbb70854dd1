/* options.h - the rows of options.def as data, for help, man page and completions. */
#ifndef NIB_CLI_OPTIONS_OPTIONS_H
#define NIB_CLI_OPTIONS_OPTIONS_H

#include "cli/cli.h"

typedef enum option_kind {
    OPTION_FLAG,
    OPTION_INT,
    OPTION_FLOAT,
    OPTION_SIZE,
    OPTION_TEXT,
    OPTION_LIST
} option_kind;

typedef struct cli_option {
    const char *field;
    char letter; /* 0: none */
    unsigned groups;
    option_kind kind;
    const char *arg; /* name of its value; NULL: a flag */
    const char *help;
    size_t offset;
    double fallback, min, max;
} cli_option;

extern const cli_option cli_options[];
extern const size_t cli_n_option;

bool cli_command_takes(const cli_command *command, const cli_option *o);
void cli_option_flag(const cli_option *o, char *out, size_t size); /* "--top-k" */
/* " (default 40)"; empty where there is none to tell: 0, or a number out of range that stands for "not
 * given". */
void cli_option_default(const cli_option *o, char *out, size_t size);

#endif
