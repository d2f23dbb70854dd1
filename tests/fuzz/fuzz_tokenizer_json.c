/* Any bytes as a tokenizer.json; one that opens encodes a text and decodes every id it has, up to some. */
#include "tokenizer/tokenizer.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define MAX_DECODE 4096

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const tokenizer *t) {
    static const char text[] =
        "Hello  w\xC3\xB6rld, it's 1984!\n\t<s>\xE4\xB8\xAD\xE6\x96\x87 \xF0\x9F\xA6\x99\xFF";
    token_list ids = {0};
    text_buffer out = {0};
    decode_state state = {0};
    nib_error err;
    (void)tokenizer_encode(t, text, sizeof text - 1, 0, &ids, &err);
    (void)tokenizer_encode(t, text, sizeof text - 1, TOKENIZE_BOS | TOKENIZE_SPECIAL, &ids, &err);
    for (int32_t id = 0; id < tokenizer_n_vocab(t) && id < MAX_DECODE; id++)
        (void)tokenizer_decode(t, &state, id, id & 1, &out, &err);
    (void)tokenizer_decode_end(t, &state, &out, &err);
    text_buffer_clear(&out);
    token_list_clear(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    tokenizer *t = NULL;
    nib_error err;
    if (tokenizer_open_json((const char *)data, size, NULL, 0, &t, &err) != NIB_OK)
        return 0;
    use(t);
    tokenizer_close(t);
    return 0;
}
