/* places.c - see places.h. */
#include "cluster/places.h"

#include "base/num.h"

#include <stdlib.h>
#include <string.h>

/* Reads the cap behind a colon, of n characters. */
static nib_status parse_cap(const char *text, size_t n, uint64_t *out, nib_error *err) {
    char size[32] = "";
    memcpy(size, text, NUM_MIN(n, sizeof size - 1));
    if (n >= sizeof size || !num_parse_size(size, out) || *out == 0)
        return nib_fail(err, NIB_E_USAGE, "devices: expected a cap as in 0:16G, found '%s'", size);
    return NIB_OK;
}

/* Reads one part of n characters. */
static nib_status parse_one(const char *text, size_t n, cluster_place *out, nib_error *err) {
    const char *colon = memchr(text, ':', n);
    char *end;
    const long gpu = strtol(text, &end, 10);
    *out = (cluster_place){.gpu = -1, .cap = NIB_AUTO};
    if (colon) {
        NIB_TRY(parse_cap(colon + 1, n - (size_t)(colon + 1 - text), &out->cap, err));
        n = (size_t)(colon - text);
    }
    if (n > 0 && end == text + n && gpu >= 0 && gpu < CLUSTER_MAX_RANK) {
        memcpy(out->backend, "cuda", sizeof "cuda");
        out->gpu = (int)gpu;
        return NIB_OK;
    }
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

void cluster_place_cap(const cluster_place *place, nib_engine_options *o) {
    if (place->cap != NIB_AUTO)
        *(place->gpu >= 0 ? &o->vram : &o->ram) = place->cap;
}
