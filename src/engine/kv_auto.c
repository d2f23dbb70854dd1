/* kv_auto.c - see kv_auto.h. */
#include "engine/kv_auto.h"

#include "base/mem.h"
#include "plan/choose.h"

#include <math.h>

enum { N_CHOICE = 1 + KV_LOSS_FORMATS }; /* f16 first */

nib_status kv_auto_load(const engine_core *e, kv_loss *out, nib_error *err) {
    char content[40];
    nib_error why;
    *out = (kv_loss){.n_layer = 0};
    NIB_TRY(container_content_key(model_container(e->m), content, err));
    char *path = kv_loss_find(content);
    if (path && kv_loss_load(path, content, out, &why) != NIB_OK)
        log_line(&e->log, "losses of keys and values: %s", why.message);
    mem_free(path);
    if (out->n_layer != 0 && out->n_layer != model_n_kv_layer(e->m))
        kv_loss_clear(out);
    return NIB_OK;
}

/* The bytes of each layer's keys and values of a page in each format. */
static nib_status list_bytes(const engine_core *e, const type_id *types, choose_option *out, nib_error *err) {
    kv_paging p;
    for (int f = 0; f < N_CHOICE; f++) {
        NIB_TRY(kv_paging_open(&p, e->layout, kv_formats_all(types[f]), false, err));
        for (int l = 0; l < p.n_layer; l++)
            out[l * N_CHOICE + f].bytes = (double)(2 * (p.layers[l].value_at - p.layers[l].key_at));
        kv_paging_close(&p);
    }
    return NIB_OK;
}

/* The knapsack: a page's bytes take the place of seconds. */
static nib_status solve(const engine_core *e, const kv_loss *k, choose_option *options, int *first,
                        int *choice, uint8_t *types, nib_error *err) {
    const choose_problem p = {.options = options,
                              .first = first,
                              .n_block = k->n_layer,
                              .max_bytes = INFINITY,
                              .max_time = INFINITY,
                              .max_loss = e->resolved.max_kv_loss / KV_AUTO_MARGIN,
                              .max_node = 100000};
    type_id all[N_CHOICE] = {TYPE_F16};
    choose_result found;
    for (int f = 0; f < KV_LOSS_FORMATS; f++)
        type_from_name(kv_loss_formats[f], &all[f + 1]);
    NIB_TRY(list_bytes(e, all, options, err));
    for (int i = 0; i < k->n_layer * N_CHOICE; i++) {
        options[i].time = options[i].bytes;
        options[i].loss = i % N_CHOICE ? k->kl[i / N_CHOICE * KV_LOSS_FORMATS + i % N_CHOICE - 1] : 0;
    }
    for (int l = 0; l <= k->n_layer; l++)
        first[l] = l * N_CHOICE;
    NIB_TRY(choose(&p, choice, &found, err));
    for (int l = 0; found.found && l < k->n_layer; l++)
        types[l] = (uint8_t)all[choice[l]];
    return NIB_OK;
}

static nib_status choose_types(const engine_core *e, const kv_loss *k, uint8_t *types, nib_error *err) {
    const size_t n = (size_t)k->n_layer;
    choose_option *options = mem_calloc(n * N_CHOICE, sizeof *options);
    int *first = mem_calloc(2 * n + 1, sizeof *first);
    const nib_status status = options && first
                                  ? solve(e, k, options, first, first + n + 1, types, err)
                                  : nib_fail_nomem(err, n * N_CHOICE * sizeof *options, "losses by layer");
    mem_free(options);
    mem_free(first);
    return status;
}

nib_status kv_auto(engine_core *e, uint8_t *types, nib_error *err) {
    kv_loss measured = {0};
    nib_status status = e->kind->one_kv_format ? NIB_OK : kv_auto_load(e, &measured, err);
    if (status == NIB_OK && measured.n_layer > 0)
        status = choose_types(e, &measured, types, err);
    else if (status == NIB_OK && !e->resolved.kv_auto_said)
        log_line(
            &e->log,
            e->kind->one_kv_format
                ? "--kv auto: keys and values are in f16: this back end has one format for all layers"
                : "--kv auto: keys and values are in f16: their losses in other formats are not measured "
                  "('nibble profile MODEL --costs')");
    e->resolved.kv_auto_said = true;
    kv_loss_clear(&measured);
    return status;
}
