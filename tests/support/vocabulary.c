/* vocabulary.c - see vocabulary.h. */
#include "vocabulary.h"

#include <stdio.h>
#include <stdlib.h>

const char *vocabulary_path(const char *name) {
    static char path[1024];
    const char *build = getenv("BUILD");
    snprintf(path, sizeof path, "%s/tests/data/tokenizer/%s.gguf", build ? build : "build", name);
    return path;
}
