/* Any tokenizer.json over any text, again and again until it is long: the text becomes ids, the same ids each
 * time, and the ids become text, or there is an error, and always within a time that only unbounded work
 * would exceed. Two frames: the file, the text. */
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fuzz/frames.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Of the processor, with the sanitizers on a slow machine; a file and its text take a tenth of it there. */
#define MAX_SECONDS 20.0
#define TEXT_BYTES  20000
#define MAX_DECODE  2000

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void go_back(const tokenizer *t, const token_list *ids) {
    text_buffer out = {0};
    decode_state state = {0};
    nib_error err;
    for (size_t i = 0; i < ids->n && i < MAX_DECODE; i++)
        if (tokenizer_decode(t, &state, ids->data[i], true, &out, &err) != NIB_OK)
            break;
    if (tokenizer_decode_end(t, &state, &out, &err) == NIB_OK && utf8_valid_prefix(out.data, out.n) != out.n)
        abort();
    text_buffer_clear(&out);
}

static void go(const tokenizer *t, const char *text, size_t n, unsigned flags) {
    token_list ids = {0}, again = {0};
    nib_error err;
    nib_status status = tokenizer_encode(t, text, n, flags, &ids, &err);
    if (tokenizer_encode(t, text, n, flags, &again, &err) != status)
        abort();
    if (status == NIB_OK &&
        (ids.n != again.n || (ids.n && memcmp(ids.data, again.data, ids.n * sizeof *ids.data))))
        abort();
    go_back(t, &ids);
    token_list_clear(&ids);
    token_list_clear(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static char text[TEXT_BYTES];
    frame part[2];
    tokenizer *t = NULL;
    nib_error err;
    const double begin = seconds();
    frames_cut(data, size, part, 2);
    if (tokenizer_open_json((const char *)part[0].data, part[0].n, NULL, 0, &t, &err) == NIB_OK) {
        for (size_t i = 0; part[1].n && i < TEXT_BYTES; i++)
            text[i] = (char)part[1].data[i % part[1].n];
        go(t, (const char *)part[1].data, part[1].n, 0);
        go(t, text, part[1].n ? TEXT_BYTES : 0, TOKENIZE_BOS | TOKENIZE_SPECIAL);
        tokenizer_close(t);
    }
    if (seconds() - begin > MAX_SECONDS) {
        fprintf(stderr, "%.1f s, expected at most %.0f\n", seconds() - begin, MAX_SECONDS);
        abort();
    }
    return 0;
}
