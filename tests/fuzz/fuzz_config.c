/* fuzz_config.c - any bytes as a config.json: parsed and flattened. */
#include "formats/container_impl.h"
#include "fuzz/walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    container c = {0};
    json_t *object;
    nib_error err;
    if (jsonx_parse((const char *)data, size, &object, &err) != NIB_OK)
        return 0;
    meta_table_init(&c.meta);
    meta_table_init(&c.nulls);
    if (json_is_object(object) && config_flatten(&c, object, "", true, &err) == NIB_OK)
        walk_container(&c);
    meta_table_deinit(&c.meta);
    meta_table_deinit(&c.nulls);
    json_decref(object);
    return 0;
}
