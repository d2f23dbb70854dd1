/* Any bytes as JSON: parsed or refused, and then looked into with every getter. */
#include "base/jsonx.h"

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    json_t *value = NULL;
    nib_error err;
    if (jsonx_parse((const char *)data, size, &value, &err) != NIB_OK)
        return 0;
    const char *key;
    json_t *member;
    json_object_foreach(value, key, member) {
        int64_t i;
        double f;
        bool b;
        const char *s;
        (void)jsonx_get_i64(value, key, true, &i, &err);
        (void)jsonx_get_f64(value, key, true, &f, &err);
        (void)jsonx_get_bool(value, key, true, &b, &err);
        (void)jsonx_get_string(value, key, true, &s, &err);
    }
    json_decref(value);
    return 0;
}
