/* prefix.c - see prefix.h. */
#include "engine/prefix.h"

#include <string.h>
#include <sys/stat.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

static void add(XXH3_state_t *h, const void *data, size_t n) {
    XXH3_128bits_update(h, data, n);
}

static void add_text(XXH3_state_t *h, const char *text) {
    add(h, text ? text : "", text ? strlen(text) + 1 : 1);
}

/* Hashes sizes and modification times of the files, because the content hash only samples the contents. */
static nib_status add_files(XXH3_state_t *h, const engine_core *e, nib_error *err) {
    const container *c = model_container(e->m);
    uint64_t content[2];
    NIB_TRY(container_content_hash(c, content, err));
    add(h, content, sizeof content);
    for (int i = 0; i < container_n_file(c); i++) {
        struct stat info;
        if (fstat(file_handle(container_file(c, i)), &info))
            return nib_fail(err, NIB_E_IO, "%s: cannot read the file's properties",
                            file_path(container_file(c, i)));
        const int64_t mark[] = {info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec};
        add(h, mark, sizeof mark);
    }
    return NIB_OK;
}

static void add_block(XXH3_state_t *h, const engine_core *e, int b) {
    const block *blk = layout_block(e->layout, b);
    const int64_t numbers[] = {b, layout_is_left_out(e->layout, b), blk->n_weight,
                               e->resolved.act_bits ? e->resolved.act_bits[b] : e->resolved.activation};
    add(h, numbers, sizeof numbers);
    for (int i = 0; i < blk->n_weight; i++) {
        const weight *w = &blk->weights[i];
        const int64_t shape[] = {w->n, w->k, w->type, w->vector, w->transposed};
        add(h, shape, sizeof shape);
        add(h, &w->format, sizeof w->format);
        if (w->imatrix)
            add(h, w->imatrix, (size_t)w->k * sizeof *w->imatrix);
    }
}

nib_status prefix_key(const engine_core *e, const char *kernels, const kv_home *homes, kv_formats kv,
                      uint64_t out[2], nib_error *err) {
    const nib_engine_options *requested = &e->requested;
    const int64_t numbers[] = {kv.type,
                               kv.slides,
                               requested->bf16_tiles,
                               requested->residual_bits,
                               e->resolved.k_chunk,
                               requested->sparse_v_raw};
    const double shares[] = {(double)requested->sparse_v};
    const residual_use *given = e->residuals;
    XXH3_state_t h;
    XXH3_128bits_reset(&h);
    add_text(&h, nib_version());
    add_text(&h, e->kind->name);
    add_text(&h, kernels_table()->isa);
    add_text(&h, kernels);
    add_text(&h, requested->residual);
    add_text(&h, requested->residual_rule);
    add(&h, numbers, sizeof numbers);
    add(&h, shares, sizeof shares);
    for (int i = 0; i < model_n_kv_layer(e->m); i++) {
        int64_t widths[2]; /* other versions may store another form */
        model_kv_widths(e->m, i, &widths[0], &widths[1]);
        add(&h, widths, sizeof widths);
    }
    if (kv.layers)
        add(&h, kv.layers, (size_t)kv.n_layer);
    if (homes)
        add(&h, homes, (size_t)model_n_kv_layer(e->m) * sizeof *homes);
    if (given)
        add(&h, given->k_chunk, (size_t)given->first[layout_n_block(e->layout)] * sizeof *given->k_chunk);
    NIB_TRY(add_files(&h, e, err));
    for (int b = 0; b < layout_n_block(e->layout); b++)
        add_block(&h, e, b);
    const XXH128_hash_t digest = XXH3_128bits_digest(&h);
    out[0] = digest.high64;
    out[1] = digest.low64;
    return NIB_OK;
}
