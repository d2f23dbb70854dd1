/* ops.c - the float ops in plain C, and the row that puts the reference into the table. */
#include "kernels/cpu/ref/lanes.h"

#include "kernels/cpu/ref/ref.h"
#include "kernels/kv_layout.h"
#include "kernels/lanes/attend.h"
#include "kernels/lanes/elementwise.h"
#include "kernels/lanes/rows.h"
#include "kernels/registry.h"

static void kv_put(const kv_view *kv, void *base, int64_t at, float x) {
    if (kv->type == TYPE_F16)
        ((uint16_t *)base)[at] = half_from_float(x);
    else
        ((float *)base)[at] = x;
}

static void op_kv_store(const kv_view *kv, bool is_value, int64_t position, const float *row) {
    for (int64_t h = 0; h < kv->n_kv_head; h++)
        for (int64_t d = 0; d < kv->d_head; d++) {
            const int64_t at = is_value ? kv_value_at(kv, h, position, d) : kv_key_at(kv, h, position, d);
            kv_put(kv, is_value ? kv->v : kv->k, at, row[h * kv->d_head + d]);
        }
}

static void install(kernel_table *t) {
    t->act_quantize = ref_act_quantize;
    t->linear_tile = ref_linear_tile;
    t->linear_rows = op_linear_rows;
    t->norm = op_norm;
    t->rope = op_rope;
    t->kv_store = op_kv_store;
    t->attend = op_attend;
    t->act = op_act;
    t->gate = op_gate;
    t->add = op_add;
    t->scale = op_scale;
    t->clamp = op_clamp;
    t->softcap = op_softcap;
}

const kernel_isa kernels_ref = {.name = "ref", .rank = 0, .needs = {NULL}, .install = install};
