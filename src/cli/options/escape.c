/* escape.c - replaces \n, \t and others in texts of the command line, as llama.cpp does. */
#include "base/num.h"
#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>

/* Sets *byte to the byte that the escape at text (a backslash) stands for, and returns the escape's length;
 * 0: it is not an escape. */
static size_t escape_at(const char *text, char *byte) {
    static const char letters[] = "nrt'\"\\", bytes[] = "\n\r\t'\"\\";
    const char *letter = text[1] ? strchr(letters, text[1]) : NULL;
    if (letter) {
        *byte = bytes[letter - letters];
        return 2;
    }
    const int64_t value = text[1] == 'x' ? num_hex(text + 2, 2) : -1;
    *byte = (char)value;
    return value > 0 ? 4 : 0; /* not NUL, which would end the string */
}

static void unescape(char *text) {
    char *out = text;
    while (*text) {
        char byte;
        const size_t n = *text == '\\' ? escape_at(text, &byte) : 0;
        *out++ = n ? byte : *text;
        text += n ? n : 1;
    }
    *out = 0;
}

/* Replaces a text by an unescaped copy; NULL stays. */
static bool replace(cli_args *args, const char **text) {
    if (!*text)
        return true;
    char *copy = strdup(*text);
    if (!copy) {
        cli_no_memory();
        return false;
    }
    if (!cli_strings_add(&args->owned, copy)) {
        free(copy);
        return false;
    }
    unescape(copy);
    *text = copy;
    return true;
}

int cli_unescape(cli_args *args) {
    bool ok = true;
    if (args->no_escape && !args->escape)
        return 0;
    ok = replace(args, &args->prompt) && replace(args, &args->system);
    for (size_t i = 0; ok && i < args->rest.n; i++)
        ok = replace(args, &args->rest.data[i]);
    for (size_t i = 0; ok && i < args->stop.n; i++)
        ok = replace(args, &args->stop.data[i]);
    for (size_t i = 0; ok && i < args->dry_sequence_breaker.n; i++)
        ok = replace(args, &args->dry_sequence_breaker.data[i]);
    return ok ? 0 : cli_failure_code();
}
