/* options.c - reads the environment and the command line by the rows of options.def. A flag beats
 * NIBBLE_<FLAG>, which beats the default. */
#include "cli/options.h"

#include "base/num.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

const cli_option cli_options[] = {
#define OPT_FLAG(field, letter, groups, help)                                                                \
    {#field, letter, groups, OPTION_FLAG, NULL, help, offsetof(cli_args, field), 0, 0, 0},
#define OPT_NUMBER(kind, field, letter, groups, arg, fallback, min, max, help)                               \
    {#field,        letter,       groups, kind, arg, help, offsetof(cli_args, field), (double)(fallback),    \
     (double)(min), (double)(max)},
#define OPT_INT(...)   OPT_NUMBER(OPTION_INT, __VA_ARGS__)
#define OPT_FLOAT(...) OPT_NUMBER(OPTION_FLOAT, __VA_ARGS__)
#define OPT_SIZE(field, letter, groups, arg, help)                                                           \
    {#field, letter, groups, OPTION_SIZE, arg, help, offsetof(cli_args, field), 0, 0, 0},
#define OPT_TEXT(field, letter, groups, arg, help)                                                           \
    {#field, letter, groups, OPTION_TEXT, arg, help, offsetof(cli_args, field), 0, 0, 0},
#define OPT_LIST(field, letter, groups, arg, help)                                                           \
    {#field, letter, groups, OPTION_LIST, arg, help, offsetof(cli_args, field), 0, 0, 0},
#include "cli/options.def"
#undef OPT_FLAG
#undef OPT_NUMBER
#undef OPT_INT
#undef OPT_FLOAT
#undef OPT_SIZE
#undef OPT_TEXT
#undef OPT_LIST
};
const size_t cli_n_option = NUM_COUNT(cli_options);

void cli_option_flag(const cli_option *o, char *out, size_t size) {
    snprintf(out, size, "--%s", o->field);
    for (char *c = out; *c; c++)
        if (*c == '_')
            *c = '-';
}

static void *field_of(cli_args *args, const cli_option *o) {
    return (char *)args + o->offset;
}

static bool list_append(cli_strings *list, const char *text) {
    const char **grown = realloc(list->data, (list->n + 1) * sizeof *grown);
    if (!grown)
        return false;
    grown[list->n++] = text;
    list->data = grown;
    return true;
}

static bool set_number(cli_args *args, const cli_option *o, const char *text, const char *where) {
    char *end;
    errno = 0;
    double value;
    if (o->kind == OPTION_INT) {
        int64_t i = strtoll(text, &end, 10);
        value = (double)i;
        *(int64_t *)field_of(args, o) = i;
    } else {
        value = strtod(text, &end);
        *(double *)field_of(args, o) = value;
    }
    if (end == text || *end || errno || !(value >= o->min && value <= o->max)) {
        cli_usage_error("%s: expected %s from %.15g to %.15g, found '%s'", where,
                        o->kind == OPTION_INT ? "a whole number" : "a number", o->min, o->max, text);
        return false;
    }
    return true;
}

static bool set_value(cli_args *args, const cli_option *o, const char *text, const char *where) {
    switch (o->kind) {
    case OPTION_FLAG: *(bool *)field_of(args, o) = true; return true;
    case OPTION_INT:
    case OPTION_FLOAT: return set_number(args, o, text, where);
    case OPTION_TEXT: *(const char **)field_of(args, o) = text; return true;
    case OPTION_LIST: return list_append(field_of(args, o), text);
    case OPTION_SIZE:
        if (num_parse_size(text, field_of(args, o)))
            return true;
        cli_usage_error("%s: expected a size such as 512M, 2G, 1.5GiB or auto, found '%s'", where, text);
        return false;
    }
    return false;
}

static bool takes(const cli_command *command, const cli_option *o) {
    return ((command->groups | CLI_COMMON) & o->groups) != 0;
}

static bool read_environment(const cli_command *command, cli_args *args) {
    for (size_t i = 0; i < cli_n_option; i++) {
        const cli_option *o = &cli_options[i];
        char name[64] = "NIBBLE_";
        size_t n = strlen(name);
        for (const char *c = o->field; *c && n + 1 < sizeof name; c++)
            name[n++] = (char)toupper((unsigned char)*c);
        name[n] = 0;
        const char *value = getenv(name);
        if (!value || !*value || !takes(command, o) || !strcmp(o->field, "help"))
            continue;
        if (o->kind == OPTION_FLAG && (!strcmp(value, "0") || !strcmp(value, "false")))
            continue;
        if (!set_value(args, o, value, name))
            return false;
    }
    return true;
}

static const cli_option *find_long(const cli_command *command, const char *flag, size_t n) {
    const cli_option *elsewhere = NULL;
    for (size_t i = 0; i < cli_n_option; i++) {
        const cli_option *o = &cli_options[i];
        bool same = strlen(o->field) == n;
        for (size_t c = 0; same && c < n; c++)
            same = o->field[c] == (flag[c] == '-' ? '_' : flag[c]);
        if (same && takes(command, o))
            return o;
        if (same)
            elsewhere = o;
    }
    if (elsewhere)
        cli_usage_error("'%s' does not take --%.*s; see 'nibble %s --help'", command->name, (int)n, flag,
                        command->name);
    else
        cli_usage_error("unknown option --%.*s; see 'nibble %s --help'", (int)n, flag, command->name);
    return NULL;
}

static const cli_option *find_short(const cli_command *command, char letter) {
    for (size_t i = 0; i < cli_n_option; i++)
        if (cli_options[i].letter == letter && takes(command, &cli_options[i]))
            return &cli_options[i];
    cli_usage_error("unknown option -%c; see 'nibble %s --help'", letter, command->name);
    return NULL;
}

/* One argument that begins with a dash; *i moves on when the value is the next argument. */
static bool read_flag(const cli_command *command, int argc, char **argv, int *i, cli_args *args) {
    const char *word = argv[*i], *value = NULL;
    const cli_option *o;
    if (word[1] == '-') {
        size_t n = strcspn(word + 2, "=");
        o = find_long(command, word + 2, n);
        if (word[2 + n])
            value = word + 3 + n;
    } else {
        o = find_short(command, word[1]);
        while (o && o->kind == OPTION_FLAG && word[2]) { /* -qv */
            set_value(args, o, NULL, word);
            o = find_short(command, (++word)[1]);
        }
        if (o && word[2])
            value = word + 2;
    }
    if (!o)
        return false;
    if (o->kind == OPTION_FLAG && value) {
        cli_usage_error("%s takes no value", word);
        return false;
    }
    if (o->kind != OPTION_FLAG && !value) {
        if (*i + 1 >= argc) {
            cli_usage_error("%s needs a value (%s)", word, o->arg);
            return false;
        }
        value = argv[++*i];
    }
    return set_value(args, o, value, word);
}

static void set_defaults(cli_args *args) {
    memset(args, 0, sizeof *args);
    for (size_t i = 0; i < cli_n_option; i++) {
        const cli_option *o = &cli_options[i];
        if (o->kind == OPTION_INT)
            *(int64_t *)field_of(args, o) = (int64_t)o->fallback;
        if (o->kind == OPTION_FLOAT)
            *(double *)field_of(args, o) = o->fallback;
        if (o->kind == OPTION_SIZE)
            *(uint64_t *)field_of(args, o) = NIB_AUTO;
    }
}

/* A number after a dash is a value ("-1"), a lone dash is stdin. */
static bool is_flag(const char *word) {
    return word[0] == '-' && word[1] && !isdigit((unsigned char)word[1]);
}

bool cli_parse(const cli_command *command, int argc, char **argv, cli_args *args) {
    set_defaults(args);
    if (!read_environment(command, args))
        return false;
    const char *from_environment = args->model; /* a model given as the first argument beats it */
    args->model = NULL;
    bool only_words = false;
    for (int i = 0; i < argc; i++) {
        if (!only_words && !strcmp(argv[i], "--")) {
            only_words = true;
        } else if (!only_words && is_flag(argv[i])) {
            if (!read_flag(command, argc, argv, &i, args))
                return false;
        } else if ((command->groups & CLI_MODEL) && !args->model) {
            args->model = argv[i];
        } else if (!list_append(&args->rest, argv[i])) {
            cli_usage_error("out of memory");
            return false;
        }
    }
    if (!args->model)
        args->model = from_environment;
    return true;
}

void cli_args_clear(cli_args *args) {
    free(args->rest.data);
    free(args->stop.data);
    memset(args, 0, sizeof *args);
}
