/* places.c - see places.h. */
#include "cluster/places.h"

#include <stdlib.h>
#include <string.h>

/* Reads one part of n characters. */
static nib_status parse_one(const char *text, size_t n, cluster_place *out, nib_error *err) {
    char *end;
    const long gpu = strtol(text, &end, 10);
    if (n > 0 && end == text + n && gpu >= 0 && gpu < CLUSTER_MAX_RANK) {
        *out = (cluster_place){.backend = "cuda", .gpu = (int)gpu};
        return NIB_OK;
    }
    *out = (cluster_place){.gpu = -1};
    if (n == 0 || n >= sizeof out->backend)
        return nib_fail(err, NIB_E_USAGE,
                        "devices: expected numbers of GPUs or cpu, as in 0,1, found '%.64s'", text);
    memcpy(out->backend, text, n);
    out->backend[n] = '\0';
    return nib_backend_check(out->backend, err);
}

nib_status cluster_places_parse(const char *text, cluster_places *out, nib_error *err) {
    const char *const all = text;
    out->n = 0;
    for (;; text++) {
        const size_t n = strcspn(text, ",");
        if (out->n == CLUSTER_MAX_RANK)
            return nib_fail(err, NIB_E_USAGE, "devices: expected at most %d, found more", CLUSTER_MAX_RANK);
        NIB_TRY(parse_one(text, n, &out->place[out->n], err));
        if (strcmp(out->place[out->n++].backend, out->place[0].backend) != 0)
            return nib_fail(err, NIB_E_USAGE,
                            "devices: expected GPUs alone or processors alone, found '%.64s'", all);
        text += n;
        if (!*text)
            return NIB_OK;
    }
}
