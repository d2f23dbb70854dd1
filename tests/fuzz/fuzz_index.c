/* fuzz_index.c - any bytes as a folder: an index and up to three safetensors files that it may name. Of each
 * file the first two bytes are the header's length, as in fuzz_safetensors.c. */
#include "fuzz/frames.h"
#include "fuzz/walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const names[MAX_FRAMES] = {"model.safetensors.index.json", "a.safetensors",
                                              "b.safetensors", "c.safetensors"};
static memfile files[MAX_FRAMES], config;

static void set_shard(memfile *m, const frame *f) {
    uint8_t *bytes = calloc(1, f->n + 8);
    if (!bytes)
        abort();
    memcpy(bytes, f->data, f->n < 2 ? f->n : 2);
    if (f->n > 2)
        memcpy(bytes + 8, f->data + 2, f->n - 2);
    memfile_set(m, bytes, f->n > 2 ? f->n + 6 : 8);
    free(bytes);
}

static const char *folder(void) {
    static const char *made;
    if (made)
        return made;
    made = frames_begin();
    memfile_set(&config, "{}", 2);
    frames_name(&config, "config.json");
    for (int i = 0; i < MAX_FRAMES; i++) {
        memfile_set(&files[i], "", 0);
        frames_name(&files[i], names[i]);
    }
    return made;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *path = folder();
    frame parts[MAX_FRAMES];
    frames_cut(data, size, parts, MAX_FRAMES);
    memfile_set(&files[0], parts[0].data, parts[0].n);
    for (int i = 1; i < MAX_FRAMES; i++)
        set_shard(&files[i], &parts[i]);
    walk_path(path);
    return 0;
}
