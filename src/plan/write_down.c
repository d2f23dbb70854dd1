/* write_down.c - writes a decision as a plan, with its notes. */
#include "plan/planner.h"

#include "base/mem.h"
#include "base/num.h"
#include "plan/expect.h"
#include "numbers/recipe.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void add_slice(plan_block *b, const char *format, int tier, uint64_t bytes) {
    plan_slice *s = &b->slices[b->n_slice++];
    snprintf(s->format, sizeof s->format, "%s", format);
    s->tier = tier;
    s->bytes = bytes;
}

/* on_gpu: of the kept bytes, those on the GPU. */
static void add_slices(plan_block *b, const char *format, uint64_t on_gpu, uint64_t kept, uint64_t all) {
    if (on_gpu)
        add_slice(b, format, NIB_TIER_VRAM, on_gpu);
    if (kept > on_gpu || !all)
        add_slice(b, format, NIB_TIER_RAM, kept - on_gpu);
    if (all > kept)
        add_slice(b, format, NIB_TIER_DISK, all - kept);
}

static void write_block(const plan_question *q, const plan_decision *d, int i, plan_block *b) {
    const plan_block_facts *f = &q->blocks[i];
    snprintf(b->name, sizeof b->name, "%s", f->name);
    b->importance = f->importance;
    b->activation = d->activation[i];
    b->left_out = d->choice[i] < 0;
    if (b->left_out)
        return;
    const plan_choice *c = &f->choices[d->choice[i]];
    const uint64_t all = c->bytes + c->table_bytes, first = all - c->second_bytes;
    const uint64_t kept = d->streamed ? d->kept[i] : all;
    const size_t n = strcspn(c->format, "+");
    char name[PACK_NAME];
    snprintf(name, sizeof name, "%.*s", (int)n, c->format);
    b->on_gpu = plan_is_on_gpu(q, i);
    b->apart = q->split && q->split->of[i].apart;
    if (plan_is_resident_on_gpu(q, i)) {
        add_slice(b, name, NIB_TIER_VRAM, first);
        if (c->format[n])
            add_slice(b, c->format + n, NIB_TIER_VRAM, c->second_bytes);
        return;
    }
    const uint64_t on_gpu = NUM_MIN(plan_bytes_on_gpu(q, i, all), kept);
    const uint64_t first_on_gpu = NUM_MIN(on_gpu, first), first_kept = NUM_MIN(kept, first);
    add_slices(b, name, first_on_gpu, first_kept, first);
    if (c->format[n])
        add_slices(b, c->format + n, on_gpu - first_on_gpu, kept - first_kept, c->second_bytes);
}

static bool uses_imatrix(const plan *p) {
    recipe r;
    for (int b = 0; b < p->n_block; b++)
        for (int i = 0; i < p->blocks[b].n_slice; i++)
            if (recipe_parse(p->blocks[b].slices[i].format, 64, &r) && r.uses_imatrix)
                return true;
    return false;
}

/* The mode of the decision, which may leave layers out without a request. */
static char mode_of(const plan_question *q, const plan *p) {
    bool fewer = false, lower = false;
    for (int b = 0; b < p->n_block; b++) {
        fewer = fewer || p->blocks[b].left_out;
        lower = lower || (!p->blocks[b].left_out && p->blocks[b].n_slice > 0 &&
                          strcmp(p->blocks[b].slices[0].format, "file") != 0);
    }
    return q->mode != 'a' || !fewer ? q->mode : lower ? 'c' : 'b';
}

static void write_device(const homes_question *q, const homes_split *s, plan_device *out) {
    const int n_streamed = s->n_not_resident - s->n_in_place - s->n_apart;
    *out = (plan_device){.absent = q->absent,
                         .driver = q->driver,
                         .weights = s->weights,
                         .kv = s->others - q->activations,
                         .activations = q->activations,
                         .kv_in_ram = s->host,
                         .n_attended = s->n_attended,
                         .n_resident = q->n_block - 1 - s->n_not_resident,
                         .n_streamed = n_streamed,
                         .n_in_place = s->n_in_place,
                         .n_in_part = s->n_in_part - s->n_apart,
                         .n_apart = s->n_apart,
                         .n_experts = s->n_kept,
                         .in_place_sequences = s->n_in_place ? s->max_rows : 0,
                         .many_sequences = homes_is_for_many(q),
                         .whole = homes_all_resident(q)};
}

static bool has_costs(const plan_question *q) {
    for (int b = 0; b < q->n_block; b++)
        if (q->blocks[b].n_choice > 1)
            return true;
    return false;
}

nib_status plan_write_down(const plan_question *q, const plan_decision *d, const plan_outcome *o, plan *out,
                           nib_error *err) {
    out->blocks = mem_calloc((size_t)q->n_block, sizeof *out->blocks);
    if (!out->blocks)
        return nib_fail_nomem(err, (size_t)q->n_block * sizeof *out->blocks, "the plan");
    out->n_block = q->n_block;
    for (int b = 0; b < q->n_block; b++)
        write_block(q, d, b, &out->blocks[b]);
    snprintf(out->model, sizeof out->model, "%s", q->model);
    snprintf(out->content, sizeof out->content, "%s", q->content);
    if (q->prompts && uses_imatrix(out))
        snprintf(out->prompts, sizeof out->prompts, "%s", q->prompts);
    memcpy(out->cap, q->cap, sizeof out->cap);
    out->mode = mode_of(q, out);
    out->kv = d->cache->kv;
    out->kv_on_disk =
        d->cache->on_disk ? (double)d->cache->on_disk / (double)(d->cache->on_disk + d->cache->bytes) : 0;
    memcpy(out->kv_layers, d->cache->layers, sizeof out->kv_layers);
    out->n_ctx = q->n_ctx;
    out->n_batch = q->free_batch ? 0 : q->n_batch;
    out->n_prompt = q->n_prompt;
    out->n_gen = q->n_gen;
    out->n_thread = q->rates.n_thread;
    out->n_best = q->n_best;
    out->packed = d->packed && d->streamed;
    out->without_costs = q->may_round && !has_costs(q);
    if (q->split)
        write_device(q->device, q->split, &out->device);
    out->predicted = o->predicted;
    out->predicted.quality = plan_stated_loss(q, d, o->predicted.quality);
    plan_expect(q, d, &out->predicted);
    snprintf(out->binds, sizeof out->binds, "%s", o->binds);
    return NIB_OK;
}

/* ---- notes ---- */

static void note(plan *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void note(plan *p, const char *format, ...) {
    if (p->n_note == PLAN_MAX_NOTE)
        return;
    va_list list;
    va_start(list, format);
    vsnprintf(p->notes[p->n_note++], PLAN_NOTE, format, list);
    va_end(list);
}

/* Notes the order in which layers were left out, and what is known of the cost. loss: of layers and formats,
 * negative: unknown. */
static void write_left_out(const plan_question *q, const plan_decision *d, double loss, plan *out) {
    int n = 0, end = 0;
    bool change = true;
    for (int b = 0; b < q->n_block; b++) {
        n += d->choice[b] < 0;
        end = d->choice[b] < 0 ? NUM_MAX(end, q->blocks[b].place + 1) : end;
        change = change && (!q->blocks[b].is_layer || q->blocks[b].change >= 0);
    }
    if (n && n == end)
        note(out,
             "%d layers are left out, those that change the residual stream least; their joint cost is "
             "measured",
             n);
    else if (n && loss >= 0)
        note(out,
             "%d layers are left out; their costs are measured one by one, and together they may cost more",
             n);
    else if (n)
        note(out,
             "%d layers are left out by %s alone, so that the others fit: the cost is not measured and may "
             "be very high ('nibble profile MODEL --costs' measures it)",
             n, change ? "how much they change the residual stream" : "MCAP's score");
}

static void write_device_notes(const plan_question *q, const plan_decision *d, plan *out) {
    char size[32], cap[32];
    if (q->device->absent)
        note(out,
             "there is no GPU here: %s for its driver, and its rates, are guesses; the GPU's own figures "
             "apply when the plan is followed",
             num_format_size(q->device->driver, size));
    else if (q->rates.vram_guessed)
        note(out, "the GPU's rates are guesses: 'nibble profile --hardware' measures them");
    if (q->split->n_not_resident && !q->device->max_layers)
        note(out, "all blocks are resident on the GPU with --vram %s",
             num_format_cap(homes_all_resident(q->device), cap));
    if (q->split->has_sketch)
        note(out,
             "the output head is computed only for the likeliest tokens, which a sketch of %s in VRAM finds: "
             "the answers are the same (--shortlist off: as a whole)",
             num_format_size(q->device->sketch, size));
    if (!d->streamed)
        note(out, "while weights are loaded RAM holds all of them; those of the GPU are freed once they are "
                  "copied");
}

/* Notes how many sequences of this context each format of keys and values allows beside all weights. */
static void write_sequences(const plan_question *q, plan *out) {
    char list[PLAN_NOTE] = "";
    uint64_t weights = 0;
    size_t at = 0;
    for (int b = 0; b < q->n_block; b++)
        weights += q->blocks[b].choices[0].bytes + q->blocks[b].choices[0].table_bytes;
    const plan_cache none = {0};
    const uint64_t others = plan_ram_beside(q, &none, false, false, weights) - q->session;
    const uint64_t left = q->cap[NIB_TIER_RAM] - NUM_MIN(q->cap[NIB_TIER_RAM], others);
    for (int i = 0; i < q->n_cache && at < sizeof list; i++) {
        const uint64_t each = (q->caches[i].bytes + q->session) / (uint64_t)q->n_sequence;
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%s %llu", i ? ", " : "",
                               q->caches[i].layers[0] ? "these by layer" : plan_kv_name(q->caches[i].kv),
                               (unsigned long long)(left / NUM_MAX(each, 1)));
    }
    note(out, "about so many sequences of %lld positions beside all weights, by --kv: %s",
         (long long)q->n_ctx, list);
}

void plan_write_notes(const plan_question *q, const plan_decision *d, const plan_outcome *o, plan *out) {
    bool scores = false;
    char best[48] = "likeliest token", size[32];
    if (q->n_best > 1)
        snprintf(best, sizeof best, "%d likeliest tokens", q->n_best);
    for (int b = 0; b < q->n_block; b++)
        scores |= q->blocks[b].importance >= 0;
    if (q->n_sequence > 1)
        note(out, "%d sequences may decode together; the speed is that of one alone%s", q->n_sequence,
             q->split && homes_is_for_many(q->device)
                 ? ", with the kernels for few: those for many are slower for one"
                 : "");
    if (q->n_sequence > 1 && !q->split && q->cap[NIB_TIER_RAM] != NIB_AUTO)
        write_sequences(q, out);
    if (q->split)
        write_device_notes(q, d, out);
    if (q->rates.guessed)
        note(out, "this machine's rates are guesses: 'nibble profile --hardware' measures them");
    if (q->n_best)
        note(out,
             "the output head is computed only for the %s, which a sketch of %.1f MiB in RAM finds: the "
             "answers are the same; %s (--shortlist off: as a whole)",
             best, (double)q->sketch_bytes / (1 << 20),
             d->streamed ? "its rows are looked up on disk" : "the head itself is in RAM too");
    if (q->speed > 0 && q->max_loss >= PLAN_SPEED_LOSS)
        note(out,
             "--speed without --quality may lose up to %s nat a token (perplexity times %s); --quality sets "
             "another bound",
             num_text(q->max_loss, 3), num_text(exp(q->max_loss), 3));
    if (q->ahead_bytes > 0)
        note(out,
             "the model has a head that predicts later tokens, with %s of weights: --draft-model mtp uses "
             "it",
             num_format_size(q->ahead_bytes, size));
    if (!scores && !q->activation)
        note(out, "the layers' importance is not measured: all take 8-bit activations");
    if (out->without_costs)
        note(out, "the costs of lower formats are not measured ('nibble profile MODEL --costs'): only the "
                  "file's own are allowed");
    if (q->may_round && !out->without_costs && d->streamed && !d->packed)
        note(out, "without a packed file (--packed-cache on, or --disk) streamed weights keep the file's "
                  "formats: they would be rounded again for each token");
    write_left_out(q, d, o->predicted.quality, out);
    if (out->prompts[0])
        note(out, "formats with an importance matrix (u4g64w) are rounded by how much the calibration "
                  "prompts use each input channel of their products");
    if (!o->proved)
        note(out, "the search ended early: at most %.2f %% faster is possible",
             100 * (o->bound / o->predicted.tok_s - 1));
}
