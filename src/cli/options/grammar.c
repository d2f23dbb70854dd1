/* grammar.c - the grammar given by --grammar, --json-schema or their files. */
#include "cli/cli.h"

#include "base/file.h"
#include "base/mem.h"

#include <string.h>

enum { MAX_TEXT = 1 << 20 };

static bool is_asked(const cli_args *args) {
    return args->grammar || args->grammar_file || args->json_schema || args->json_schema_file;
}

static int check_one(const cli_args *args) {
    const int n = !!args->grammar + !!args->grammar_file + !!args->json_schema + !!args->json_schema_file;
    if (n > 1)
        return cli_usage_error(
            "--grammar, --grammar-file, --json-schema and --json-schema-file: expected one of them");
    return 0;
}

/* Sets *out to `text`, or to the content of the file `path`. The caller frees *read. */
static nib_status text_of(const char *text, const char *path, char **read, const char **out, nib_error *err) {
    size_t n;
    if (path)
        NIB_TRY(file_read_all(path, MAX_TEXT, read, &n, err));
    *out = path ? *read : text;
    return NIB_OK;
}

int cli_grammar(const cli_args *args, char **grammar) {
    nib_error err;
    char *read = NULL;
    const char *text = NULL;
    const bool schema = args->json_schema || args->json_schema_file;
    *grammar = NULL;
    int code = check_one(args);
    if (code || !is_asked(args))
        return code;
    nib_status status = schema ? text_of(args->json_schema, args->json_schema_file, &read, &text, &err)
                               : text_of(args->grammar, args->grammar_file, &read, &text, &err);
    if (status == NIB_OK && schema)
        status = nib_schema_grammar(text, strlen(text), "root", grammar, &err);
    else if (status == NIB_OK && !(*grammar = mem_strdup(text)))
        status = nib_fail_nomem(&err, strlen(text), "a grammar");
    mem_free(read);
    return status == NIB_OK ? 0 : cli_fail(&err);
}

void cli_grammar_options(const cli_args *args, nib_engine_options *o) {
    if (!is_asked(args))
        return;
    o->grammar = true;
    o->n_best = 0; /* the allowed tokens may not be among the best */
    if (args->shortlist && !strcmp(args->shortlist, "on"))
        cli_note(args, "nibble: --shortlist is ignored: a grammar needs the whole output head");
}
