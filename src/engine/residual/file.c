/* file.c - see file.h. Numbers are little-endian, like all supported machines. */
#include "engine/residual/file.h"

#include <math.h>
#include <string.h>

typedef struct head {
    char magic[8];
    uint64_t bits;
    uint64_t key[2]; /* container_content_hash of the base */
    uint64_t n_byte; /* after the header */
} head;
static const char magic[8] = {'n', 'i', 'b', 'r', 'e', 's', 'i', 'd'};

bool residual_file_is(const char *path) {
    char found[sizeof magic];
    file *f;
    if (path_is_dir(path) || file_open(path, 0, &f, NULL))
        return false;
    const bool yes = file_size(f) >= RESIDUAL_FILE_HEAD &&
                     file_read_at(f, found, 0, sizeof found, NULL) == NIB_OK &&
                     !memcmp(found, magic, sizeof found);
    file_close(f);
    return yes;
}

nib_status residual_file_begin(const engine_core *e, const char *path, uint64_t n_byte, file_writer **out,
                               nib_error *err) {
    char first[RESIDUAL_FILE_HEAD] = {0};
    head h = {.bits = (uint64_t)e->requested.residual_bits, .n_byte = n_byte};
    memcpy(h.magic, magic, sizeof magic);
    NIB_TRY(container_content_hash(e->container, h.key, err));
    memcpy(first, &h, sizeof h);
    NIB_TRY(file_writer_open(path, out, err));
    file_writer_set_cancel(*out, &e->cancel);
    const nib_status status = file_writer_write(*out, first, sizeof first, err);
    if (status != NIB_OK) {
        file_writer_abort(*out);
        *out = NULL;
    }
    return status;
}

static nib_status check(const engine_core *e, const file *f, const head *h, uint64_t n_byte, nib_error *err) {
    uint64_t key[2];
    NIB_TRY(container_content_hash(e->container, key, err));
    if (memcmp(h->key, key, sizeof key))
        return nib_fail(err, NIB_E_MODEL, "%s: expected residuals of this model, found those of another one",
                        file_path(f));
    if (h->bits != (uint64_t)e->requested.residual_bits)
        return nib_fail(err, NIB_E_USAGE, "%s: expected --residual-bits %d, found %d", file_path(f),
                        (int)(h->bits & 31), (int)e->requested.residual_bits);
    if (h->n_byte != n_byte || file_size(f) != RESIDUAL_FILE_HEAD + n_byte)
        return nib_fail(err, NIB_E_MODEL, "%s: expected %llu bytes of residuals, found %llu", file_path(f),
                        (unsigned long long)n_byte, (unsigned long long)(file_size(f) - RESIDUAL_FILE_HEAD));
    return NIB_OK;
}

/* Reads one residual from file offset `from`: all of it, or only its scales if the codes stay in the file. */
static nib_status load_one(const residual_store *r, file *f, residual *to, uint64_t from, uint64_t bytes,
                           uint8_t **at, nib_error *err) {
    const uint64_t n_scale = (uint64_t)to->n * sizeof *to->scale;
    const uint64_t scale_at = (uint64_t)to->step * (uint64_t)to->k; /* as residual_in has it */
    if (r->is_on_disk) {
        to->scale = (float *)(void *)*at;
        to->rows = NULL;
        NIB_TRY(file_read_at(f, to->scale, from + scale_at, n_scale, err));
    } else {
        NIB_TRY(file_read_at(f, *at, from, bytes, err));
    }
    *at += r->is_on_disk ? n_scale : bytes;
    for (int64_t i = 0; i < to->n; i++)
        if (!isfinite(to->scale[i]))
            return nib_fail(err, NIB_E_MODEL, "%s: expected finite scales, found %g: the file is damaged",
                            file_path(f), (double)to->scale[i]);
    return cancel_check(&r->e->cancel, err);
}

static nib_status load_all(residual_store *r, file *f, nib_error *err) {
    const int bits = r->e->requested.residual_bits;
    uint64_t from = RESIDUAL_FILE_HEAD, bytes;
    uint8_t *at = r->memory.at;
    for (int b = 0; b < layout_n_block(r->e->layout); b++) {
        const block *of = layout_block(r->e->layout, b);
        for (int w = 0; w < of->n_weight; w++) {
            residual *to = &r->of[r->first[b] + w];
            if (!residual_is_of(of, &of->weights[w]))
                continue;
            residual_bytes(bits, of->weights[w].n, of->weights[w].k,
                           &bytes); /* cannot fail: the sum was checked as n_byte */
            if (r->kinds.of[r->first[b] + w] >= 0) {
                *to = residual_in(at, bits, of->weights[w].n, of->weights[w].k);
                r->at[r->first[b] + w] = from;
                NIB_TRY(load_one(r, f, to, from, bytes, &at, err));
            }
            from += bytes;
        }
    }
    return NIB_OK;
}

nib_status residual_file_load(residual_store *r, const char *path, uint64_t n_byte, file **out,
                              nib_error *err) {
    head h;
    file *f;
    *out = NULL;
    NIB_TRY(file_open(path, 0, &f, err));
    nib_status status = file_read_at(f, &h, 0, sizeof h, err);
    if (status == NIB_OK)
        status = check(r->e, f, &h, n_byte, err);
    if (status == NIB_OK)
        status = load_all(r, f, err);
    if (status == NIB_OK && r->is_on_disk)
        *out = f;
    else
        file_close(f);
    return status;
}
