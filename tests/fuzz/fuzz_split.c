/* fuzz_split.c - any bytes as a split GGUF model of two or three files: the first byte says which. */
#include "fuzz/frames.h"
#include "fuzz/walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_PARTS = 3 };
static memfile files[MAX_PARTS];

static const char *folder(void) {
    static const char *made;
    if (made)
        return made;
    made = frames_begin();
    for (int i = 0; i < MAX_PARTS; i++) {
        memfile_set(&files[i], "", 0);
        for (int n = 2; n <= MAX_PARTS; n++) {
            char name[64];
            snprintf(name, sizeof name, "m-%05d-of-%05d.gguf", i + 1, n);
            if (i < n)
                frames_name(&files[i], name);
        }
    }
    return made;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[128];
    frame parts[MAX_PARTS];
    if (!size)
        return 0;
    int n = 2 + data[0] % 2;
    snprintf(path, sizeof path, "%s/m-00001-of-%05d.gguf", folder(), n);
    frames_cut(data + 1, size - 1, parts, n);
    for (int i = 0; i < n; i++)
        memfile_set(&files[i], parts[i].data, parts[i].n);
    walk_path(path);
    return 0;
}
