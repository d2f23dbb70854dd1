/* sessions.c - see sessions.h. */
#include "engine/sessions.h"

#include "base/num.h"
#include "grammar/grammar.h"
#include "profile/machine.h"
#include "sequence/dry.h"
#include "sequence/sampler.h"

#include <math.h>

enum { DRY_WINDOW = 4096 };

uint64_t sessions_tables(const engine_core *e, int64_t n_ctx) {
    return (uint64_t)n_ctx * sizeof(int32_t) + (uint64_t)model_hparams(e->m)->n_vocab * sizeof(float);
}

uint64_t sessions_sampling(const engine_core *e) {
    const uint64_t n_vocab = (uint64_t)model_hparams(e->m)->n_vocab, changed = n_vocab * sizeof(float);
    const nib_sampling worst = {.temperature = 1,
                                .top_k = e->resolved.n_best,
                                .repeat_penalty = 2,
                                .penalty_window = -1,
                                .dry_multiplier = e->resolved.n_best == 0,
                                .dry_base = 1,
                                .dry_window = DRY_WINDOW};
    const uint64_t bytes =
        sampler_bytes(&worst, (int64_t)n_vocab) + dry_bytes(&worst, (int64_t)n_vocab, DRY_WINDOW);
    if (e->requested.grammar)
        return bytes + grammar_bytes(e->resolved.cap[NIB_TIER_RAM], (int64_t)n_vocab) +
               (uint64_t)e->resolved.n_sequence * changed;
    return bytes + (e->resolved.n_best == 0 ? changed : 0);
}

nib_status sessions_cache_bytes(const engine_core *e, kv_formats kv, int64_t n_ctx, uint64_t *bytes,
                                nib_error *err) {
    const int64_t n = e->resolved.n_session, pages = kv_table_pages(kv, n_ctx);
    if (pages > INT64_MAX / NUM_MAX(n, 1))
        return nib_fail(err, NIB_E_NOFIT, "keys and values of %d times %lld positions overflow 64 bits",
                        (int)n, (long long)n_ctx);
    NIB_TRY(kv_tables_bytes(e->layout, kv, false, e->resolved.n_sequence, n * pages, bytes, err));
    const uint64_t second = e->resolved.n_draft > 0 ? model_state_bytes(e->m) : 0; /* kv_table_open_second */
    if (!num_add_u64(*bytes, (uint64_t)e->resolved.n_sequence * second, bytes))
        return nib_fail(err, NIB_E_NOFIT, "recurrent states of %d sequences overflow 64 bits",
                        (int)e->resolved.n_sequence);
    return NIB_OK;
}

nib_status sessions_on_disk(const engine_core *e, kv_formats kv, int64_t n_ctx, uint64_t *bytes,
                            nib_error *err) {
    return kv_tables_on_disk(e->layout, kv, e->resolved.n_session * kv_table_pages(kv, n_ctx), bytes, err);
}

/* What a head that predicts later tokens reads: a row for each of a pass, and two for each sequence
 * (session/draft_model.c). */
static uint64_t state_bytes(const engine_core *e) {
    const int64_t n = e->resolved.n_batch + 2 * e->resolved.n_sequence;
    return model_is_ahead(e->m) ? (uint64_t)(n * model_hparams(e->m)->d_model) * sizeof(float) : 0;
}

nib_status sessions_bytes(const engine_core *e, kv_formats kv, int64_t n_ctx, uint64_t *bytes,
                          nib_error *err) {
    const uint64_t n = (uint64_t)e->resolved.n_sequence;
    NIB_TRY(sessions_cache_bytes(e, kv, n_ctx, bytes, err));
    if (!num_add_u64(*bytes, n * sessions_tables(e, n_ctx) + sessions_sampling(e) + state_bytes(e), bytes))
        return nib_fail(err, NIB_E_NOFIT, "%d sequences of %lld positions overflow 64 bits", (int)n,
                        (long long)n_ctx);
    return NIB_OK;
}

nib_status sessions_check_positions(const engine_core *e, kv_formats kv, int64_t n, nib_error *err) {
    const hparams *hp = model_hparams(e->m);
    const int64_t max = hp->n_ctx_max;
    char need[32], have[32];
    machine here;
    uint64_t bytes;
    if (max > 0 && n > max)
        return nib_fail(err, NIB_E_USAGE, "context: %s %lld%s positions, %lld were requested",
                        hp->sparse_budget > 0 ? "this model's sparse attention is supported up to"
                                              : "the model has",
                        (long long)max, hp->sparse_budget > 0 ? "" : " learned", (long long)n);
    if (e->requested.sparse_v > 0 && e->resolved.n_ctx > 0 && n > e->resolved.n_ctx)
        return nib_fail(err, NIB_E_USAGE,
                        "context: sparse values have memory for the engine's %lld positions, %lld were "
                        "requested",
                        (long long)e->resolved.n_ctx, (long long)n);
    NIB_TRY(kv_table_bytes(e->layout, kv, false, n, &bytes, err));
    machine_detect(&here);
    if (here.ram_total > 0 && bytes > here.ram_total)
        return nib_fail(err, NIB_E_NOFIT,
                        "context: %lld positions need %s, the machine has %s of memory: at most %.0f fit",
                        (long long)n, num_format_size(bytes, need), num_format_size(here.ram_total, have),
                        floor((double)n * ((double)here.ram_total / (double)bytes)));
    return NIB_OK;
}

nib_status sessions_check_formats(const engine_core *e, kv_formats kv, nib_error *err) {
    char layers[64];
    if (e->kind->one_kv_format && kv.layers) {
        kv_formats_print(kv, layers, sizeof layers);
        return nib_fail(err, NIB_E_USAGE,
                        "keys and values: the %s back end has one format for all layers, found %s and %s",
                        e->kind->name, type_get(kv.type)->name, layers);
    }
    if (model_hparams(e->m)->pool_all > 0 && kv_formats_any_coded(kv))
        return nib_fail(err, NIB_E_USAGE,
                        "keys and values: compressed attention has them in f16 and f32, not in %s",
                        kv.layers ? "codes" : type_get(kv.type)->name);
    for (int i = 0; i < model_n_kv_layer(e->m); i++)
        if (kv_is_coded(kv_format_of(kv, i)) && kv_paging_reads_again(e->layout, i))
            return nib_fail(err, NIB_E_USAGE,
                            "keys and values: those of layer %d, which later layers read, are in f16 or f32, "
                            "not in %s",
                            i, type_get(kv_format_of(kv, i))->name);
    if (e->kind->plain_formats && kv_formats_any_hosted(kv))
        return nib_fail(
            err, NIB_E_USAGE,
            "keys and values: the %s back end has them in f16, kv8 and kv4, not in %s, which only the "
            "processor computes",
            e->kind->name, type_get(kv.type)->name);
    if (!e->kind->no_f32_cache || kv.type == TYPE_F16 || kv_is_coded(kv.type))
        return NIB_OK;
    return nib_fail(err, NIB_E_USAGE,
                    "keys and values: the %s back end has them in f16, kv8 and kv4, not in f32",
                    e->kind->name);
}
