/* frames.h - one fuzz input as several files of one model, in memory: each but the last has its length in two
 * bytes before it. The files have names in a folder, as links. */
#ifndef NIB_TESTS_FRAMES_H
#define NIB_TESTS_FRAMES_H

#include "support/memfile.h"

#include <stdint.h>
#include <string.h>

enum { MAX_FRAMES = 4 };

typedef struct frame {
    const uint8_t *data;
    size_t n;
} frame;

/* Missing files are empty. */
static inline void frames_cut(const uint8_t *data, size_t size, frame out[], int n) {
    for (int i = 0; i < n; i++) {
        size_t length = size;
        if (i < n - 1 && size >= 2) {
            length = data[0] | (size_t)data[1] << 8;
            data += 2;
            size -= 2;
            length = length < size ? length : size;
        }
        out[i] = (frame){data, length};
        data += length;
        size -= length;
    }
}

static char frames_folder[64];

static void frames_remove(void) {
    char command[100];
    snprintf(command, sizeof command, "rm -rf '%s'", frames_folder);
    if (system(command))
        fprintf(stderr, "cannot remove %s\n", frames_folder);
}

/* Makes the folder; it is removed when the program ends. */
static inline const char *frames_begin(void) {
    snprintf(frames_folder, sizeof frames_folder, "/tmp/nibble-fuzz-XXXXXX");
    if (!mkdtemp(frames_folder))
        abort();
    atexit(frames_remove);
    return frames_folder;
}

/* Gives a file in memory a name in the folder. */
static inline void frames_name(const memfile *m, const char *name) {
    char path[200];
    snprintf(path, sizeof path, "%s/%s", frames_folder, name);
    if (symlink(m->path, path))
        abort();
}

#endif
