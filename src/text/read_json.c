/* read_json.c - a tokenizer from the text of tokenizer.json and tokenizer_config.json. */
#include "text/state.h"

nib_status tokenizer_read_json(tokenizer *t, const char *json, size_t n_byte, const char *config,
                               size_t n_config, nib_error *err) {
    (void)t, (void)json, (void)n_byte, (void)config, (void)n_config;
    return nib_fail(err, NIB_E_MODEL, "tokenizer.json is not read by this version");
}
