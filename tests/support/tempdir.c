/* tempdir.c - see tempdir.h. */
#include "support/tempdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static char folder[512];

static void remove_folder(void) {
    char command[600];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command))
        fprintf(stderr, "cannot remove %s\n", folder);
}

const char *temp_path(const char *name) {
    static char paths[8][768];
    static int next;
    if (folder[0] == 0) {
        const char *root = getenv("TMPDIR");
        snprintf(folder, sizeof folder, "%s/nibble-test-XXXXXX", root ? root : "/tmp");
        if (!mkdtemp(folder))
            fail_msg("cannot make a folder like %s", folder);
        atexit(remove_folder);
    }
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

const char *temp_file(const char *name, const void *data, size_t n_byte) {
    const char *path = temp_path(name);
    FILE *f = fopen(path, "wb");
    if (!f || (n_byte && fwrite(data, 1, n_byte, f) != n_byte) || fclose(f))
        fail_msg("cannot write %s", path);
    return path;
}
