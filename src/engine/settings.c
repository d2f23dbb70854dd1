/* settings.c - see settings.h. */
#include "engine/settings.h"

#include "base/mem.h"
#include "base/num.h"
#include "engine/parts.h"
#include "sequence/draft.h"

#include "nib_tools.h"

#include <string.h>

enum { DEFAULT_BATCH = 512 };

void nib_engine_options_init(nib_engine_options *options) {
    memset(options, 0, sizeof *options);
    options->ram = options->vram = options->disk = NIB_AUTO;
    options->residual_bits = 4;
}

bool settings_kv_type(int kv, type_id *out) {
    static const type_id types[] = {
        [NIB_KV_F16] = TYPE_F16, [NIB_KV_F32] = TYPE_F32, [NIB_KV_8] = TYPE_KV8,  [NIB_KV_4] = TYPE_KV4,
        [NIB_KV_8H] = TYPE_KV8H, [NIB_KV_4H] = TYPE_KV4H, [NIB_KV_4S] = TYPE_KV4S};
    if (kv < NIB_KV_F16 || kv > NIB_KV_4S)
        return false;
    *out = types[kv];
    return true;
}

static nib_status check_options(const nib_engine_options *o, nib_error *err) {
    type_id type;
    if (o->n_thread < 0)
        return nib_fail(err, NIB_E_USAGE, "threads: expected 0 or more, found %d", o->n_thread);
    if (o->n_ctx < NIB_CTX_WHOLE)
        return nib_fail(err, NIB_E_USAGE, "context: expected 0 or more positions, found %lld",
                        (long long)o->n_ctx);
    if (o->n_session < 0 || o->n_session > ENGINE_MAX_SESSION)
        return nib_fail(err, NIB_E_USAGE, "sessions: expected 0 to %d, found %ld", ENGINE_MAX_SESSION,
                        (long)o->n_session);
    if (o->n_sequence < 0 || o->n_sequence > ENGINE_MAX_SESSION)
        return nib_fail(err, NIB_E_USAGE, "sequences: expected 0 to %d, found %ld", ENGINE_MAX_SESSION,
                        (long)o->n_sequence);
    if (o->n_batch < 0)
        return nib_fail(err, NIB_E_USAGE, "batch: expected 0 or more rows, found %lld",
                        (long long)o->n_batch);
    if (o->n_logits < 0)
        return nib_fail(err, NIB_E_USAGE, "rows of logits: expected 0 or more, found %lld",
                        (long long)o->n_logits);
    if (o->kv_type != 0 && o->kv_type != NIB_KV_AUTO && !settings_kv_type(o->kv_type, &type))
        return nib_fail(
            err, NIB_E_USAGE,
            "expected auto, f16, f32, kv8, kv4, kv8h, kv4h or kv4s for keys and values, found type "
            "%d",
            o->kv_type);
    if (o->activation != 0 && o->activation != 4 && o->activation != 8 && o->activation != 16 &&
        o->activation != NIB_ACT_AX)
        return nib_fail(err, NIB_E_USAGE, "activations: expected 4, 8 or 16 bits or NIB_ACT_AX, found %d",
                        o->activation);
    if (!(o->sparse_v >= 0 && o->sparse_v <= 1))
        return nib_fail(err, NIB_E_USAGE, "sparse values: expected a share from 0 to 1, found %s",
                        num_text((double)o->sparse_v, 3));
    if (o->gpu_layers < 0)
        return nib_fail(err, NIB_E_USAGE, "layers on the GPU: expected 0 or more, found %ld",
                        (long)o->gpu_layers);
    if (o->cpu_experts < 0)
        return nib_fail(err, NIB_E_USAGE,
                        "experts on the processor: expected those of 0 or more layers, found %ld",
                        (long)o->cpu_experts);
    if (o->cpu_experts > 0 && o->plan)
        return nib_fail(err, NIB_E_USAGE,
                        "the plan says which experts the processor computes: expected it without "
                        "--cpu-experts, found %ld",
                        (long)o->cpu_experts);
    if (o->n_draft < -DRAFT_MAX || o->n_draft > DRAFT_MAX)
        return nib_fail(err, NIB_E_USAGE, "proposed tokens: expected at most %d, found %ld", DRAFT_MAX,
                        (long)o->n_draft);
    if (o->n_best < 0)
        return nib_fail(err, NIB_E_USAGE, "best logits: expected 0 or more, found %ld", (long)o->n_best);
    if (o->shortlist < NIB_SHORTLIST_AUTO || o->shortlist > NIB_SHORTLIST_OFF)
        return nib_fail(err, NIB_E_USAGE, "expected a nib_shortlist, found %d", o->shortlist);
    if (o->packed < NIB_PACKED_AUTO || o->packed > NIB_PACKED_OFF)
        return nib_fail(err, NIB_E_USAGE, "expected a nib_packed, found %d", o->packed);
    return NIB_OK;
}

nib_status settings_make(settings *s, const nib_engine_options *requested, nib_error *err) {
    const int32_t n_session = requested->n_session ? requested->n_session : 1;
    NIB_TRY(check_options(requested, err));
    *s = (settings){.cap = {requested->ram, requested->vram, requested->disk},
                    .stream = requested->stream,
                    .packed = requested->packed,
                    .n_thread = requested->n_thread,
                    .n_session = n_session,
                    .n_sequence = NUM_MAX(requested->n_sequence, n_session),
                    .n_ctx = requested->n_ctx,
                    .n_batch = requested->n_batch ? requested->n_batch : DEFAULT_BATCH,
                    .free_batch = requested->n_batch == 0,
                    .kv = requested->kv_type,
                    .kv_layers = requested->kv_layers,
                    .max_kv_loss = KV_AUTO_LOSS,
                    .activation = requested->activation,
                    .k_chunk = requested->residual ? requested->k_chunk : 0};
    return NIB_OK;
}

void settings_clear(settings *s) {
    mem_free(s->act_bits);
    mem_free(s->kv_types);
    s->act_bits = s->kv_types = NULL;
}

/* ---- from a plan ---- */

static int kv_option(plan_kv kv) {
    switch (kv) {
    case PLAN_KV_AUTO: return 0;
    case PLAN_KV_F32: return NIB_KV_F32;
    case PLAN_KV_F16: return NIB_KV_F16;
    case PLAN_KV_8: return NIB_KV_8;
    case PLAN_KV_4: return NIB_KV_4;
    case PLAN_KV_8H: return NIB_KV_8H;
    case PLAN_KV_4H: return NIB_KV_4H;
    case PLAN_KV_4S: return NIB_KV_4S;
    }
    return -1;
}

static bool streams(const plan *p) {
    for (int b = 0; b < p->n_block; b++)
        for (int i = 0; i < p->blocks[b].n_slice; i++)
            if (p->blocks[b].slices[i].tier == NIB_TIER_DISK && p->blocks[b].slices[i].bytes > 0)
                return true;
    return false;
}

static nib_status check_sizes(const plan *p, nib_error *err) {
    if (p->n_ctx < 0 || p->n_batch < 0 || p->n_thread < 0)
        return nib_fail(err, NIB_E_USAGE,
                        "plan: expected a context, a batch and threads of 0 or more, found %lld, %lld, %d",
                        (long long)p->n_ctx, (long long)p->n_batch, p->n_thread);
    if (kv_option(p->kv) < 0)
        return nib_fail(err, NIB_E_USAGE, "plan: expected a plan_kv, found %d", (int)p->kv);
    if (p->mode != 'a' && p->mode != 'b' && p->mode != 'c')
        return nib_fail(err, NIB_E_USAGE, "plan: expected mode a, b or c, found character %d", p->mode);
    if (p->n_block < 0 || (p->n_block > 0 && !p->blocks))
        return nib_fail(err, NIB_E_USAGE, "plan: expected a list of blocks, found %d", p->n_block);
    for (int b = 0; b < p->n_block; b++)
        if (p->blocks[b].n_slice < 0 || p->blocks[b].n_slice > PLAN_MAX_SLICE)
            return nib_fail(err, NIB_E_USAGE, "plan: block %d: expected at most %d slices, found %d", b,
                            PLAN_MAX_SLICE, p->blocks[b].n_slice);
    return NIB_OK;
}

/* The plan's channels apply, whatever the request's are. */
static nib_status take_residuals(settings *s, const plan *p, const nib_engine_options *requested,
                                 nib_error *err) {
    int64_t most = 0;
    for (int i = 0; i < p->n_residual; i++)
        most = NUM_MAX(most, p->residuals[i].k_chunk);
    if (most && !requested->residual)
        return nib_fail(err, NIB_E_USAGE,
                        "the plan restores residuals: expected the model's original or its file of residuals "
                        "(--residual FILE), found none");
    memcpy(s->residuals, p->residuals, sizeof s->residuals);
    s->n_residual = p->n_residual;
    s->k_chunk = p->n_residual ? most : s->k_chunk;
    return NIB_OK;
}

nib_status settings_take_plan(settings *s, const plan *p, const nib_engine_options *requested,
                              const logger *log, nib_error *err) {
    NIB_TRY(check_sizes(p, err));
    s->n_attended = p->device.n_attended;
    if (p->n_ctx > 0 && s->n_ctx > p->n_ctx)
        return nib_fail(err, NIB_E_USAGE,
                        "the plan is for a context of %lld positions, %lld were requested: make a plan "
                        "for those",
                        (long long)p->n_ctx, (long long)s->n_ctx);
    s->n_ctx = p->n_ctx > 0 ? p->n_ctx : s->n_ctx;
    if (p->n_batch > 0) {
        s->n_batch = p->n_batch;
        s->free_batch = false;
    }
    s->n_thread = s->n_thread > 0 ? s->n_thread : p->n_thread;
    if (s->kv == 0 && !s->kv_layers) {
        s->kv = kv_option(p->kv);
        s->kv_layers = p->kv_layers;
    } else if ((p->kv != PLAN_KV_AUTO && s->kv != kv_option(p->kv)) ||
               strcmp(s->kv_layers ? s->kv_layers : "", p->kv_layers) != 0) {
        log_line(log, "the KV cache has the requested format, not the plan's");
    }
    if (s->activation != 0)
        log_line(log, "activations have the requested bits, not the plan's");
    for (int t = 0; t < NIB_N_TIER; t++)
        s->cap[t] = NUM_MIN(s->cap[t], p->cap[t]); /* NIB_AUTO is the largest */
    NIB_TRY(take_residuals(s, p, requested, err));
    s->stream = s->stream || streams(p);
    if (p->packed && s->packed == NIB_PACKED_AUTO)
        s->packed = NIB_PACKED_ON;
    return NIB_OK;
}
