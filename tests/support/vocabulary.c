/* vocabulary.c - see vocabulary.h. */
#include "support/vocabulary.h"

#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

const char *vocabulary_path(const char *name) {
    static char path[1024];
    const char *build = getenv("BUILD");
    snprintf(path, sizeof path, "%s/tests/data/tokenizer/%s.gguf", build ? build : "build", name);
    return path;
}

char *vocabulary_json(vocabulary_kind kind, int n, size_t *n_byte) {
    static const char *const types[] = {"BPE", "BPE", "Unigram"};
    static const char *const tokens[] = {"%s\n  \"%s%d\": %d", "%s\n  \"%s%d\": %d",
                                         "%s\n  [\"%s%d\", -1.%d]"};
    static const char *const merges[] = {"%s\n  \"t %d\"", "%s\n  [\"t\", \"%d\"]"};
    static const char *const ends[] = {",\n  \"t\": %d}, \"merges\": [", ",\n  \"t\": %d}, \"merges\": [",
                                       ",\n  [\"t\", -2.%d]"};
    char *text = mem_alloc((size_t)n * 128 + 256), *p = text;
    assert_non_null(text);
    p += sprintf(p, "{\"added_tokens\": [], \"model\": {\"type\": \"%s\", \"vocab\": %c", types[kind],
                 kind == VOCABULARY_SCORES ? '[' : '{');
    for (int i = 0; i < 2 * n; i++)
        p += sprintf(p, tokens[kind], i ? "," : "", i < n ? "" : "t", i % n, i);
    p += sprintf(p, ends[kind], 2 * n);
    for (int i = 0; kind != VOCABULARY_SCORES && i < n; i++)
        p += sprintf(p, merges[kind], i ? "," : "", i);
    p += sprintf(p, "]}}");
    *n_byte = (size_t)(p - text);
    return text;
}
