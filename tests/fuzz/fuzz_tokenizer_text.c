/* Any bytes as a text for vocabularies of each kind. A byte-level one must decode its ids to the text: valid
 * UTF-8 unchanged, and other bytes as U+FFFD. */
#include "base/file.h"
#include "base/mem.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define N_VOCABULARY 4
static const char *const names[N_VOCABULARY] = {"gpt2", "gpt-4o", "llama-like", "unigram-charsmap"};
static tokenizer *open[N_VOCABULARY];

static void open_all(void) {
    for (int i = 0; i < N_VOCABULARY && !open[i]; i++) {
        char path[128], *json;
        size_t n;
        nib_error err;
        snprintf(path, sizeof path, "tests/data/tokenizer-json/%s.json", names[i]);
        if (file_read_all(path, 1 << 24, &json, &n, &err) != NIB_OK ||
            tokenizer_open_json(json, n, NULL, 0, &open[i], &err) != NIB_OK) {
            fprintf(stderr, "%s\n", err.message);
            abort();
        }
        mem_free(json);
    }
}

static void try(const tokenizer *t, const char *text, size_t n, bool must_return) {
    token_list ids = {0};
    text_buffer out = {0};
    decode_state state = {0};
    nib_error err;
    if (tokenizer_encode(t, text, n, 0, &ids, &err) != NIB_OK)
        abort();
    for (size_t i = 0; i < ids.n; i++)
        if (tokenizer_decode(t, &state, ids.data[i], true, &out, &err) != NIB_OK)
            abort();
    if (tokenizer_decode_end(t, &state, &out, &err) != NIB_OK)
        abort();
    if (utf8_valid_prefix(out.data, out.n) != out.n)
        abort();
    if (must_return && utf8_valid_prefix(text, n) == n && (out.n != n || memcmp(out.data, text, n) != 0))
        abort();
    text_buffer_clear(&out);
    ids.n = 0;
    if (tokenizer_encode(t, text, n, TOKENIZE_BOS | TOKENIZE_SPECIAL, &ids, &err) != NIB_OK)
        abort();
    token_list_clear(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    open_all();
    for (int i = 0; i < N_VOCABULARY; i++)
        try(open[i], (const char *)data, size, i < 2);
    return 0;
}
