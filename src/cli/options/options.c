/* options.c - parses the environment and the command line by the rows of options.def. A flag overrides
 * NIBBLE_<FLAG>, which overrides the default. */
#include "cli/options/options.h"

#include "base/num.h"
#include "base/similar.h"
#include "cli/options/compat.h"

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
#include "cli/options/options.def"
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

bool cli_command_takes(const cli_command *command, const cli_option *o) {
    return ((command->groups | CLI_COMMON) & o->groups) != 0;
}

void cli_option_default(const cli_option *o, char *out, size_t size) {
    const bool number = o->kind == OPTION_INT || o->kind == OPTION_FLOAT;
    out[0] = 0;
    if (number && o->fallback != 0 && o->fallback >= o->min)
        snprintf(out, size, " (default %s)", num_text(o->fallback, 15));
}

static void *field_of(cli_args *args, const cli_option *o) {
    return (char *)args + o->offset;
}

bool cli_strings_add(cli_strings *list, const char *text) {
    const char **grown = realloc(list->data, (list->n + 1) * sizeof *grown);
    if (!grown) {
        cli_no_memory();
        return false;
    }
    grown[list->n++] = text;
    list->data = grown;
    return true;
}

/* A maximum above this is not shown in messages. */
#define NO_LIMIT 1e15

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
        if (*end == '%' && end != text && !strcmp(o->arg, "PERCENT"))
            end++;
        *(double *)field_of(args, o) = value;
    }
    if (end != text && !*end && !errno && value >= o->min && value <= o->max)
        return true;
    const char *kind = o->kind == OPTION_INT ? "a whole number" : "a number";
    if (o->max >= NO_LIMIT)
        cli_usage_error("%s: expected %s of at least %s, found '%s'", where, kind, num_text(o->min, 15),
                        text);
    else
        cli_usage_error("%s: expected %s from %s to %s, found '%s'", where, kind, num_text(o->min, 15),
                        num_text(o->max, 15), text);
    return false;
}

static bool set_value(cli_args *args, const cli_option *o, const char *text, const char *where) {
    switch (o->kind) {
    case OPTION_FLAG: *(bool *)field_of(args, o) = true; return true;
    case OPTION_INT:
    case OPTION_FLOAT: return set_number(args, o, text, where);
    case OPTION_TEXT: *(const char **)field_of(args, o) = text; return true;
    case OPTION_LIST: return cli_strings_add(field_of(args, o), text);
    case OPTION_SIZE:
        if (num_parse_size(text, field_of(args, o)))
            return true;
        cli_usage_error("%s: expected a size such as 512M, 2G, 1.5GiB or auto, found '%s'", where, text);
        return false;
    }
    return false;
}

/* False for options that the environment cannot set: --help, and --models, since NIBBLE_MODELS is the models
 * folder (document.c). */
static bool is_of_environment(const cli_option *o) {
    return strcmp(o->field, "help") != 0 && strcmp(o->field, "models") != 0;
}

/* An empty variable is no value, but an empty API key must not open the server to everybody. */
static bool is_set_when_empty(const cli_option *o) {
    return !strcmp(o->field, "api_key");
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
        if (!value || (!*value && !is_set_when_empty(o)) || !cli_command_takes(command, o) ||
            !is_of_environment(o))
            continue;
        if (o->kind == OPTION_FLAG && (!strcmp(value, "0") || !strcmp(value, "false")))
            continue;
        if (!set_value(args, o, value, name))
            return false;
    }
    return true;
}

typedef struct parser {
    const cli_command *command;
    int argc, at; /* argv[at] is being read */
    char **argv;
    cli_args *args;
    cli_strings ignored;       /* flags without effect, printed when all are parsed */
    const cli_compat *renamed; /* the flag whose value was renamed, and that value */
    const char *renamed_value;
} parser;

/* A flag as typed: "--top-k" in "--top-k=3", "-n" in "-n64". */
typedef struct flag {
    const char *text;
    size_t n;
    const char *value; /* NULL: none in the same argument */
} flag;

static bool is_named(const cli_option *o, const char *name, size_t n) {
    if (strlen(o->field) != n)
        return false;
    for (size_t c = 0; c < n; c++)
        if (o->field[c] != (name[c] == '-' ? '_' : name[c]))
            return false;
    return true;
}

/* The option with a long name [n], without dashes, of this command, else of any; NULL: none. */
static const cli_option *find_long(const cli_command *command, const char *name, size_t n) {
    const cli_option *elsewhere = NULL;
    for (size_t i = 0; i < cli_n_option; i++) {
        const cli_option *o = &cli_options[i];
        if (!is_named(o, name, n))
            continue;
        if (cli_command_takes(command, o))
            return o;
        elsewhere = o;
    }
    return elsewhere;
}

static const cli_option *find_letter(const cli_command *command, char letter) {
    for (size_t i = 0; i < cli_n_option; i++)
        if (cli_options[i].letter == letter && cli_command_takes(command, &cli_options[i]))
            return &cli_options[i];
    return NULL;
}

/* Prints an error for an unknown flag, with the most similar flag that the command accepts. */
static bool unknown_flag(const cli_command *command, const flag *f) {
    char typed[SIMILAR_LONGEST + 1], word[SIMILAR_LONGEST + 1];
    const char *at;
    size_t n;
    snprintf(typed, sizeof typed, "%.*s", (int)f->n, f->text);
    similar meant = similar_to(typed);
    for (size_t i = 0; i < cli_n_option; i++)
        if (cli_command_takes(command, &cli_options[i])) {
            cli_option_flag(&cli_options[i], word, sizeof word);
            similar_offer(&meant, word);
        }
    for (size_t i = 0; i < cli_n_compat; i++)
        for (size_t w = 0; (n = cli_word_at(cli_compat_rows[i].flags, " ", w, &at)) > 0; w++)
            if (cli_compat_find(command, at, n) == &cli_compat_rows[i]) {
                snprintf(word, sizeof word, "%.*s", (int)n, at);
                similar_offer(&meant, word);
            }
    if (meant.best[0])
        cli_usage_error("unknown option %s; did you mean %s? ('nibble %s --help' lists all)", typed,
                        meant.best, command->name);
    else
        cli_usage_error("unknown option %s; see 'nibble %s --help'", typed, command->name);
    return false;
}

/* Sets *value to the option's value, from the same argument or the next one. */
static bool read_value(parser *p, const cli_option *o, const flag *f, const char **value) {
    *value = f->value;
    if (o->kind == OPTION_FLAG && f->value) {
        cli_usage_error("%.*s: expected no value", (int)f->n, f->text);
        return false;
    }
    if (o->kind == OPTION_FLAG || f->value)
        return true;
    if (p->at + 1 >= p->argc) {
        cli_usage_error("%.*s: expected a value (%s), found none", (int)f->n, f->text, o->arg);
        return false;
    }
    *value = p->argv[++p->at];
    return true;
}

static bool read_option(parser *p, const cli_option *o, const flag *f) {
    char where[64];
    const char *value;
    snprintf(where, sizeof where, "%.*s", (int)f->n, f->text);
    return read_value(p, o, f, &value) && set_value(p->args, o, value, where);
}

/* Parses a flag with another program's name for an option; its value may be renamed as well. */
static bool read_renamed(parser *p, const cli_compat *h, const flag *f) {
    const cli_option *o = cli_compat_option(p->command, h, NULL);
    flag ours = *f;
    if (!read_value(p, o, f, &ours.value))
        return false;
    o = cli_compat_option(p->command, h, ours.value);
    if (!ours.value || !h->words[0])
        return read_option(p, o, &ours);
    ours.value = cli_compat_value(h, ours.value);
    if (p->renamed == h && strcmp(p->renamed_value, ours.value)) {
        cli_usage_error("%.*s: nibble has one --%s for both, found '%s' and '%s'", (int)f->n, f->text,
                        o->field, p->renamed_value, ours.value);
        return false;
    }
    p->renamed = h;
    p->renamed_value = ours.value;
    return read_option(p, o, &ours);
}

static bool read_compat(parser *p, const cli_compat *h, const flag *f) {
    if (h->kind == COMPAT_IS_OPTION)
        return read_renamed(p, h, f);
    if (h->kind == COMPAT_IS_REFUSED) {
        cli_usage_error("%.*s: %s", (int)f->n, f->text, h->text);
        return false;
    }
    if (!f->value && cli_compat_takes(h, p->at + 1 < p->argc ? p->argv[p->at + 1] : NULL))
        p->at++;
    return cli_strings_add(&p->ignored, f->text);
}

static void report_ignored(const parser *p) {
    for (size_t i = 0; i < p->ignored.n; i++) {
        const char *text = p->ignored.data[i];
        const size_t n = strcspn(text, "=");
        cli_note(p->args, "nibble: %.*s is ignored: %s", (int)n, text,
                 cli_compat_find(p->command, text, n)->text);
    }
}

static bool read_long(parser *p, const flag *f) {
    const cli_option *o = find_long(p->command, f->text + 2, f->n - 2);
    if (o && cli_command_takes(p->command, o))
        return read_option(p, o, f);
    const cli_compat *h = cli_compat_find(p->command, f->text, f->n);
    if (h)
        return read_compat(p, h, f);
    if (!o)
        return unknown_flag(p->command, f);
    cli_usage_error("'%s' does not take %.*s; see 'nibble %s --help'", p->command->name, (int)f->n, f->text,
                    p->command->name);
    return false;
}

/* Whether `text`, typed without a space after the letter of an option, can be its value: -n64, but not -np.
 */
static bool can_follow(const cli_option *o, const char *text) {
    const bool number = o->kind == OPTION_INT || o->kind == OPTION_FLOAT || o->kind == OPTION_SIZE;
    return !number || *text == '=' || isdigit((unsigned char)text[*text == '-' || *text == '.']);
}

/* Parses letters: -v, -n 64, -n64, -qv. */
static bool read_letters(parser *p, const flag *whole) {
    for (const char *c = whole->text + 1; *c; c++) {
        const char typed[] = {'-', *c, 0};
        flag f = {typed, 2, NULL};
        const cli_option *o = find_letter(p->command, *c);
        if (!o || (c[1] && !can_follow(o, c + 1)))
            return unknown_flag(p->command, c == whole->text + 1 ? whole : &f);
        if (o->kind != OPTION_FLAG && c[1])
            f.value = c + 1;
        if (!read_option(p, o, &f))
            return false;
        if (o->kind != OPTION_FLAG)
            break;
    }
    return true;
}

/* Parses an argument with one dash. Flags of other programs precede letters: -ngl is not -n gl. */
static bool read_short(parser *p, const flag *f) {
    const bool letter = f->n == 2 && find_letter(p->command, f->text[1]);
    const cli_compat *h = letter ? NULL : cli_compat_find(p->command, f->text, f->n);
    if (h)
        return read_compat(p, h, f);
    if (f->n > 2 && find_long(p->command, f->text + 1, f->n - 1)) /* -temp is probably --temp */
        return unknown_flag(p->command, f);
    return read_letters(p, f);
}

/* Parses one argument that begins with a dash, and advances p->at if its value is the next argument. */
static bool read_flag(parser *p) {
    const char *word = p->argv[p->at];
    flag f = {word, strcspn(word, "="), NULL};
    if (word[f.n])
        f.value = word + f.n + 1;
    return word[1] == '-' ? read_long(p, &f) : read_short(p, &f);
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

/* False for negative numbers ("-1") and a lone dash (stdin), which are values. */
static bool is_flag(const char *word) {
    return word[0] == '-' && word[1] && !isdigit((unsigned char)word[1]);
}

static bool read_words(parser *p) {
    bool only_words = false;
    for (; p->at < p->argc; p->at++) {
        const char *word = p->argv[p->at];
        if (!only_words && !strcmp(word, "--")) {
            only_words = true;
        } else if (!only_words && is_flag(word)) {
            if (!read_flag(p))
                return false;
        } else if (!cli_strings_add(&p->args->rest, word)) {
            return false;
        }
    }
    return true;
}

/* Makes the first word the model if no flag names one. It overrides the environment. */
static void take_model(const cli_command *command, const cli_args *from_environment, cli_args *args) {
    if (!(command->groups & CLI_MODEL) || args->model || args->hf_repo)
        return;
    if (args->rest.n == 0) {
        args->model = from_environment->model;
        args->hf_repo = args->model ? NULL : from_environment->hf_repo;
        return;
    }
    args->model = args->rest.data[0];
    memmove(args->rest.data, args->rest.data + 1, --args->rest.n * sizeof *args->rest.data);
}

bool cli_parse(const cli_command *command, int argc, char **argv, cli_args *args) {
    set_defaults(args);
    if (!read_environment(command, args))
        return false;
    const cli_args from_environment = *args;
    args->model = args->hf_repo = NULL;
    parser p = {.command = command, .argc = argc, .argv = argv, .args = args};
    const bool good = read_words(&p);
    if (good)
        report_ignored(&p);
    free(p.ignored.data);
    take_model(command, &from_environment, args);
    return good;
}

void cli_args_clear(cli_args *args) {
    free(args->rest.data);
    for (size_t i = 0; i < cli_n_option; i++)
        if (cli_options[i].kind == OPTION_LIST)
            free(((cli_strings *)field_of(args, &cli_options[i]))->data);
    for (size_t i = 0; i < args->owned.n; i++)
        free((void *)args->owned.data[i]);
    free(args->owned.data);
    memset(args, 0, sizeof *args);
}
