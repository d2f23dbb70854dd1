/* habits.c - see habits.h. */
#include "cli/habits.h"

#include "base/num.h"

#include <string.h>

const cli_habit cli_habits[] = {
#define HABIT_SAME(flags, field) {flags, HABIT_IS_OPTION, 0, offsetof(cli_args, field), NULL, NULL, {NULL}},
#define HABIT_WORDS(flags, field, ...)                                                                       \
    {flags, HABIT_IS_OPTION, 0, offsetof(cli_args, field), NULL, NULL, {__VA_ARGS__}},
#define HABIT_IGNORED(flags, groups, arg, why) {flags, HABIT_IS_IGNORED, groups, 0, arg, why, {NULL}},
#define HABIT_INSTEAD(flags, groups, what)     {flags, HABIT_IS_REFUSED, groups, 0, NULL, what, {NULL}},
#define HABIT_COMMAND(names, what)
#include "cli/habits.def"
#undef HABIT_SAME
#undef HABIT_WORDS
#undef HABIT_IGNORED
#undef HABIT_INSTEAD
#undef HABIT_COMMAND
};
const size_t cli_n_habit = NUM_COUNT(cli_habits);

static const struct {
    const char *names, *what;
} commands[] = {
#define HABIT_SAME(...)
#define HABIT_WORDS(...)
#define HABIT_IGNORED(...)
#define HABIT_INSTEAD(...)
#define HABIT_COMMAND(names, what) {names, what},
#include "cli/habits.def"
#undef HABIT_SAME
#undef HABIT_WORDS
#undef HABIT_IGNORED
#undef HABIT_INSTEAD
#undef HABIT_COMMAND
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

const cli_option *cli_habit_option(const cli_command *command, const cli_habit *habit) {
    for (size_t i = 0; habit->kind == HABIT_IS_OPTION && i < cli_n_option; i++)
        if (cli_options[i].offset == habit->offset && cli_command_takes(command, &cli_options[i]))
            return &cli_options[i];
    return NULL;
}

const cli_habit *cli_habit_find(const cli_command *command, const char *flag, size_t n) {
    for (size_t i = 0; i < cli_n_habit; i++) {
        const cli_habit *h = &cli_habits[i];
        if (holds(h->flags, " ", flag, n) && ((h->groups & command->groups) || cli_habit_option(command, h)))
            return h;
    }
    return NULL;
}

const char *cli_habit_value(const cli_habit *habit, const char *value) {
    for (const char *const *word = habit->words; *word; word += 2)
        if (!strcmp(word[0], value))
            return word[1];
    return value;
}

bool cli_habit_takes(const cli_habit *habit, const char *next) {
    if (!habit->arg || !next)
        return false;
    return habit->arg[0] != '[' || holds(habit->arg + 1, "|]", next, strlen(next));
}

const char *cli_habit_command(const char *name) {
    for (size_t i = 0; i < NUM_COUNT(commands); i++)
        if (holds(commands[i].names, " ", name, strlen(name)))
            return commands[i].what;
    return NULL;
}
