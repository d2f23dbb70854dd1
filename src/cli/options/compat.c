/* compat.c - see compat.h. */
#include "cli/options/compat.h"

#include "base/num.h"

#include <string.h>

const cli_compat cli_compat_rows[] = {
#define COMPAT_SAME(flags, field)                                                                            \
    {flags, COMPAT_IS_OPTION, 0, offsetof(cli_args, field), 0, NULL, NULL, {NULL}},
#define COMPAT_EITHER(flags, number, text)                                                                   \
    {flags, COMPAT_IS_OPTION, 0, offsetof(cli_args, number), offsetof(cli_args, text), NULL, NULL, {NULL}},
#define COMPAT_WORDS(flags, field, ...)                                                                      \
    {flags, COMPAT_IS_OPTION, 0, offsetof(cli_args, field), 0, NULL, NULL, {__VA_ARGS__}},
#define COMPAT_IGNORED(flags, groups, arg, why) {flags, COMPAT_IS_IGNORED, groups, 0, 0, arg, why, {NULL}},
#define COMPAT_INSTEAD(flags, groups, what)     {flags, COMPAT_IS_REFUSED, groups, 0, 0, NULL, what, {NULL}},
#define COMPAT_COMMAND(names, what)
#include "cli/options/compat.def"
#undef COMPAT_SAME
#undef COMPAT_EITHER
#undef COMPAT_WORDS
#undef COMPAT_IGNORED
#undef COMPAT_INSTEAD
#undef COMPAT_COMMAND
};
const size_t cli_n_compat = NUM_COUNT(cli_compat_rows);

static const struct {
    const char *names, *what;
} commands[] = {
#define COMPAT_SAME(...)
#define COMPAT_EITHER(...)
#define COMPAT_WORDS(...)
#define COMPAT_IGNORED(...)
#define COMPAT_INSTEAD(...)
#define COMPAT_COMMAND(names, what) {names, what},
#include "cli/options/compat.def"
#undef COMPAT_SAME
#undef COMPAT_EITHER
#undef COMPAT_WORDS
#undef COMPAT_IGNORED
#undef COMPAT_INSTEAD
#undef COMPAT_COMMAND
};

size_t cli_word_at(const char *list, const char *between, size_t n, const char **word) {
    size_t length = strcspn(list, between);
    for (; n > 0 && list[length]; n--) {
        list += length + 1;
        length = strcspn(list, between);
    }
    *word = list;
    return n ? 0 : length;
}

static bool holds(const char *list, const char *between, const char *word, size_t n_word) {
    const char *at;
    size_t n;
    for (size_t i = 0; (n = cli_word_at(list, between, i, &at)) > 0; i++)
        if (n == n_word && !strncmp(at, word, n))
            return true;
    return false;
}

static const cli_option *option_at(const cli_command *command, size_t offset) {
    for (size_t i = 0; i < cli_n_option; i++)
        if (cli_options[i].offset == offset && cli_command_takes(command, &cli_options[i]))
            return &cli_options[i];
    return NULL;
}

const cli_option *cli_compat_option(const cli_command *command, const cli_compat *row, const char *value) {
    const bool is_text = row->text_offset && value && value[strspn(value, "0123456789")];
    if (row->kind != COMPAT_IS_OPTION)
        return NULL;
    return option_at(command, is_text ? row->text_offset : row->offset);
}

const cli_compat *cli_compat_find(const cli_command *command, const char *flag, size_t n) {
    for (size_t i = 0; i < cli_n_compat; i++) {
        const cli_compat *h = &cli_compat_rows[i];
        if (holds(h->flags, " ", flag, n) &&
            ((h->groups & command->groups) || cli_compat_option(command, h, NULL)))
            return h;
    }
    return NULL;
}

const char *cli_compat_value(const cli_compat *row, const char *value) {
    for (const char *const *word = row->words; *word; word += 2)
        if (!strcmp(word[0], value))
            return word[1];
    return value;
}

bool cli_compat_takes(const cli_compat *row, const char *next) {
    if (!row->arg || !next)
        return false;
    return row->arg[0] != '[' || holds(row->arg + 1, "|]", next, strlen(next));
}

const char *cli_compat_command(const char *name) {
    for (size_t i = 0; i < NUM_COUNT(commands); i++)
        if (holds(commands[i].names, " ", name, strlen(name)))
            return commands[i].what;
    return NULL;
}
