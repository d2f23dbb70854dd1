/* Any bytes as a form: what is found lies in it, behind a header and before a boundary. */
#include "server/form.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void hold(bool good) {
    if (!good)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    FILE *f = size ? fmemopen((void *)(uintptr_t)data, size, "r") : NULL;
    form found;
    if (f && form_read(f, "--b", &found)) {
        hold(found.begin > 0 && found.begin <= found.end && (size_t)found.end + 5 <= size);
        hold(!memcmp(data + found.begin - 4, "\r\n\r\n", 4) || !memcmp(data + found.begin - 3, "\n\r\n", 3));
        hold(!memcmp(data + found.end + 2, "--b", 3));
        hold(memchr(found.purpose, 0, sizeof found.purpose) &&
             memchr(found.filename, 0, sizeof found.filename));
    }
    if (f)
        fclose(f);
    return 0;
}
