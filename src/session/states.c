/* states.c - see states.h. */
#include "session/states.h"

#include "base/mem.h"
#include "kernels/kernels.h"
#include "weights/loader.h"

#include <string.h>

static nib_status read_vector(const loader *from, const weight *w, load_buffer *by, float **out,
                              nib_error *err) {
    *out = mem_array((size_t)w->k, sizeof **out);
    return *out ? loader_vector(from, w, *out, by, err)
                : nib_fail_nomem(err, (size_t)w->k * sizeof **out, "the weights of a norm");
}

static nib_status read_weights(state_norm *n, const engine_parts *of, const block *head, nib_error *err) {
    loader *from = NULL;
    load_buffer by = {0};
    nib_status status = loader_open(of->m, false, &from, err);
    if (status == NIB_OK)
        status = load_buffer_init(&by, of->layout, 0, 1, NULL, err);
    if (status == NIB_OK && n->how->w >= 0)
        status = read_vector(from, &head->weights[n->how->w], &by, &n->w, err);
    if (status == NIB_OK && n->how->b >= 0)
        status = read_vector(from, &head->weights[n->how->b], &by, &n->b, err);
    load_buffer_deinit(&by);
    loader_close(from);
    return status;
}

nib_status state_norm_open(state_norm *n, const engine_parts *of, nib_error *err) {
    const block *head = model_block(of->m, model_n_block(of->m) - 1);
    const op *first = head->program.ops;
    n->width = model_hparams(of->m)->d_model;
    n->how = first->kind == OP_NORM ? first : NULL;
    return n->how ? read_weights(n, of, head, err) : NIB_OK;
}

void state_norm_close(state_norm *n) {
    mem_free(n->w);
    mem_free(n->b);
}

void state_norm_rows(const state_norm *n, const float *x, int64_t n_row, float *out) {
    const op *o = n->how;
    const int64_t k = n->width;
    if (!o)
        memcpy(out, x, (size_t)(n_row * k) * sizeof *out);
    for (int64_t r = 0; r < n_row && o; r++)
        kernels_table()->norm(o->u.norm.kind, x + r * k, n->w, n->b, out + r * k, k, o->u.norm.n_group,
                              o->u.norm.w_full, o->u.norm.eps);
}
