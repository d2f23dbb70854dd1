/* planner.c - the plan of a decision: which limit binds, what more memory would buy, what else was looked at.
 */
#include "plan/planner.h"

#include "base/mem.h"
#include "base/num.h"
#include "plan/expect.h"
#include "quant/recipe.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* What may be lost, as mean KL divergence at the logits in nats a token. d nats more cross entropy multiply
 * the perplexity by e^d, so these are about 0.5, 2 and 10 % of it at the most. "lossless" keeps the file's
 * own weights; its allowance is for 8-bit activations where their cost was measured, and is within the noise
 * of comparing two runs (0.1 %). */
static const struct {
    const char *name;
    double loss;
    bool round;
} qualities[] = {
    {"lossless", 0.001, false}, {"high", 0.005, true}, {"balanced", 0.02, true}, {"small", 0.1, true}};

bool plan_quality(const char *name, double *max_loss, bool *may_round) {
    for (size_t i = 0; i < NUM_COUNT(qualities); i++)
        if (!strcmp(name, qualities[i].name)) {
            *max_loss = qualities[i].loss;
            *may_round = qualities[i].round;
            return true;
        }
    return false;
}

static void note(plan *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void note(plan *p, const char *format, ...) {
    if (p->n_note == PLAN_MAX_NOTE)
        return;
    va_list list;
    va_start(list, format);
    vsnprintf(p->notes[p->n_note++], PLAN_NOTE, format, list);
    va_end(list);
}

/* ---- a decision's memory ---- */

static nib_status decision_open(plan_decision *d, int n_block, nib_error *err) {
    const size_t n = (size_t)n_block;
    *d = (plan_decision){.choice = mem_calloc(n, sizeof *d->choice),
                         .activation = mem_calloc(n, sizeof *d->activation),
                         .kept = mem_calloc(n, sizeof *d->kept)};
    return d->choice && d->activation && d->kept ? NIB_OK
                                                 : nib_fail_nomem(err, n * sizeof *d->kept, "planning");
}

static void decision_close(plan_decision *d) {
    mem_free(d->choice);
    mem_free(d->activation);
    mem_free(d->kept);
}

/* ---- refusals ---- */

static nib_status refuse_caps(const plan_question *q, const plan_outcome *o, nib_error *err) {
    char cap[32], small[32], whole[32], streamed[32];
    num_format_size(q->cap[NIB_TIER_RAM], cap);
    num_format_cap(o->min_ram, small);
    num_format_cap(o->whole_ram, whole);
    if (!q->stream && o->streamed_ram < o->min_ram)
        return nib_fail(err, NIB_E_NOFIT,
                        "RAM: the cap of %s is too small; %s is the smallest that works, or %s when weights "
                        "may be streamed",
                        cap, small, num_format_cap(o->streamed_ram, streamed));
    if (o->min_ram >= o->whole_ram || q->kept)
        return nib_fail(err, NIB_E_NOFIT, "RAM: the cap of %s is too small; %s is the smallest that works%s",
                        cap, small, q->kept ? " for this plan" : "");
    return nib_fail(err, NIB_E_NOFIT,
                    "RAM: the cap of %s is too small; %s is the smallest that works, and %s holds the whole "
                    "model",
                    cap, small, whole);
}

nib_status plan_check_cap(const plan_question *q, nib_error *err) {
    plan_outcome o = {0};
    plan_needs(q, &o);
    return q->cap[NIB_TIER_RAM] < o.min_ram ? refuse_caps(q, &o, err) : NIB_OK;
}

static nib_status refuse_modes(const plan_question *q, const plan_outcome *o, nib_error *err) {
    if (o->min_loss < 0)
        return nib_fail(err, NIB_E_USAGE,
                        "mode %c leaves layers out, and what that costs this model is not measured: "
                        "'nibble profile MODEL --costs' measures it",
                        q->mode);
    return nib_fail(err, NIB_E_NOFIT,
                    "mode %c: leaving out the least important layer costs %s nats a token (perplexity "
                    "times %s), and %s are allowed (--quality small allows 0.1)",
                    q->mode, num_text(o->min_loss, 3), num_text(exp(o->min_loss), 3),
                    num_text(q->max_loss, 3));
}

static nib_status refuse(const plan_question *q, const plan_outcome *o, plan_decision *d, nib_error *err) {
    if (q->cap[NIB_TIER_RAM] < o->min_ram)
        return refuse_caps(q, o, err);
    if (q->speed > 0) {
        plan_question any = *q;
        plan_outcome fastest;
        any.speed = 0;
        NIB_TRY(plan_decide(&any, d, &fastest, err));
        if (fastest.found)
            return nib_fail(err, NIB_E_NOFIT,
                            "no plan makes %s tokens a second within these caps and a loss of %s nats a "
                            "token; the fastest makes %s, as far as costs are measured",
                            num_text(q->speed, 3), num_text(q->max_loss, 3),
                            num_text(fastest.predicted.tok_s, 3));
    }
    if (q->mode != 'a')
        return refuse_modes(q, o, err);
    plan_question dear = *q;
    plan_outcome any;
    dear.speed = 0;
    dear.max_loss = PLAN_ANY_LOSS;
    if (!q->activation)
        return refuse_caps(q, o, err);
    NIB_TRY(plan_decide(&dear, d, &any, err));
    if (any.found)
        return nib_fail(err, NIB_E_NOFIT,
                        "activations of %d bits cost this model %s nats a token (perplexity times %s), and "
                        "%s are allowed (--quality)",
                        q->activation, num_text(any.predicted.quality, 3),
                        num_text(exp(any.predicted.quality), 5), num_text(q->max_loss, 3));
    return refuse_caps(q, o, err);
}

/* ---- more memory, and other answers ---- */

/* The GPU's memory is shared anew. */
static nib_status try_more_vram(const plan_question *q, uint64_t gb, plan_decision *d, plan *out,
                                nib_error *err) {
    plan_question more = *q;
    offload_question larger = *q->device;
    offload_split split;
    plan_outcome o = {0};
    if (larger.capacity > UINT64_MAX - gb)
        return NIB_OK;
    larger.capacity += gb;
    larger.places = NULL;
    more.device = &larger;
    more.split = &split;
    nib_status status = offload_split_make(&larger, &q->rates, &split, err);
    if (status == NIB_OK)
        status = plan_decide(&more, d, &o, err);
    if (status == NIB_OK && o.found)
        out->one_more_gb[NIB_TIER_VRAM] = NUM_MAX(o.predicted.tok_s - out->predicted.tok_s, 0);
    offload_split_clear(&split);
    return status;
}

static nib_status look_at_more(const plan_question *q, plan_decision *d, plan *out, nib_error *err) {
    static const uint64_t gb = 1000000000;
    for (int t = 0; t < NIB_N_TIER; t++) {
        plan_question more = *q;
        plan_outcome o;
        if (t == NIB_TIER_VRAM || q->cap[t] > UINT64_MAX - gb)
            continue;
        more.cap[t] += gb;
        NIB_TRY(plan_decide(&more, d, &o, err));
        if (o.found)
            plan_expect(&more, d, &o.predicted);
        if (o.found)
            out->one_more_gb[t] = NUM_MAX(o.predicted.tok_s - out->predicted.tok_s, 0);
    }
    return q->split ? try_more_vram(q, gb, d, out, err) : NIB_OK;
}

static nib_status look_at(const plan_question *q, const char *what, plan_decision *d, plan *out,
                          nib_error *err) {
    plan_outcome o;
    if (out->n_alternative == PLAN_MAX_ALTERNATIVE)
        return NIB_OK;
    NIB_TRY(plan_decide(q, d, &o, err));
    if (!o.found && q->cap[NIB_TIER_RAM] >= o.min_ram)
        return NIB_OK; /* it is not memory that is missing */
    if (o.found)
        plan_expect(q, d, &o.predicted);
    plan_alternative *a = &out->alternatives[out->n_alternative++];
    snprintf(a->what, sizeof a->what, "%s", what);
    a->fits = o.found;
    a->tok_s = o.found ? o.predicted.tok_s : 0;
    a->quality = o.found ? o.predicted.quality : -1;
    a->ram_peak = o.found ? o.predicted.ram_peak : o.min_ram;
    return NIB_OK;
}

static nib_status look_at_others(const plan_question *q, const plan_outcome *now, plan_decision *d, plan *out,
                                 nib_error *err) {
    const bool streamed = now->predicted.disk_bytes > 0;
    plan_question other = *q;
    char what[PLAN_NAME];
    if (streamed) {
        other.cap[NIB_TIER_RAM] = NIB_AUTO;
        NIB_TRY(look_at(&other, "no cap on RAM", d, out, err));
    }
    other = *q;
    if (streamed && !q->packed) {
        other.packed = true;
        NIB_TRY(look_at(&other, "a packed file (--scratch)", d, out, err));
    }
    /* another cache or other formats change the GPU's free memory; the split is not computed anew here */
    for (int i = 1; i < q->n_cache && !q->split; i++) {
        other = *q;
        other.caches[0] = q->caches[i];
        snprintf(what, sizeof what, "--kv %s", plan_kv_name(q->caches[i].kv));
        NIB_TRY(look_at(&other, what, d, out, err));
    }
    for (size_t i = 0; i < NUM_COUNT(qualities); i++) {
        other = *q;
        if (q->split || q->speed > 0 || q->mode == 'b' || q->blocks[0].n_choice < 2 ||
            qualities[i].loss == q->max_loss)
            continue;
        other.may_leave_out = q->mode == 'a' && qualities[i].round;
        other.max_loss = qualities[i].loss;
        other.may_round = qualities[i].round;
        if (q->usual_activation)
            other.activation = 0;
        snprintf(what, sizeof what, "--quality %s", qualities[i].name);
        NIB_TRY(look_at(&other, what, d, out, err));
    }
    return NIB_OK;
}

/* ---- writing it down ---- */

static void add_slice(plan_block *b, const char *format, int tier, uint64_t bytes) {
    plan_slice *s = &b->slices[b->n_slice++];
    snprintf(s->format, sizeof s->format, "%s", format);
    s->tier = tier;
    s->bytes = bytes;
}

static void add_slices(plan_block *b, const char *format, uint64_t kept, uint64_t all) {
    if (kept || !all)
        add_slice(b, format, NIB_TIER_RAM, kept);
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
    if (plan_is_resident_on_gpu(q, i)) {
        add_slice(b, name, NIB_TIER_VRAM, first);
        if (c->format[n])
            add_slice(b, c->format + n, NIB_TIER_VRAM, c->second_bytes);
        return;
    }
    add_slices(b, name, NUM_MIN(kept, first), first);
    if (c->format[n])
        add_slices(b, c->format + n, kept - NUM_MIN(kept, first), c->second_bytes);
}

static bool by_column(const plan *p) {
    recipe r;
    for (int b = 0; b < p->n_block; b++)
        for (int i = 0; i < p->blocks[b].n_slice; i++)
            if (recipe_parse(p->blocks[b].slices[i].format, 64, &r) && r.by_column)
                return true;
    return false;
}

/* The mode that the decision is of, where layers may be left out unasked. */
static char mode_of(const plan_question *q, const plan *p) {
    bool fewer = false, lower = false;
    for (int b = 0; b < p->n_block; b++) {
        fewer = fewer || p->blocks[b].left_out;
        lower = lower || (!p->blocks[b].left_out && p->blocks[b].n_slice > 0 &&
                          strcmp(p->blocks[b].slices[0].format, "file") != 0);
    }
    return q->mode != 'a' || !fewer ? q->mode : lower ? 'c' : 'b';
}

static void write_device(const offload_question *q, const offload_split *s, plan_device *out) {
    const int n_streamed = s->n_not_resident - s->n_in_place;
    *out = (plan_device){.absent = q->absent,
                         .driver = q->driver,
                         .weights = s->weights,
                         .kv = s->others - q->activations,
                         .activations = q->activations,
                         .kv_in_ram = q->n_page * s->host_page,
                         .n_resident = q->n_block - 1 - s->n_not_resident,
                         .n_streamed = n_streamed,
                         .n_in_place = s->n_in_place,
                         .in_place_sequences = s->n_in_place ? s->max_rows : 0,
                         .many_sequences = offload_is_for_many(q),
                         .whole = offload_all_resident(q)};
}

static nib_status write_down(const plan_question *q, const plan_decision *d, const plan_outcome *o, plan *out,
                             nib_error *err) {
    out->blocks = mem_calloc((size_t)q->n_block, sizeof *out->blocks);
    if (!out->blocks)
        return nib_fail_nomem(err, (size_t)q->n_block * sizeof *out->blocks, "the plan");
    out->n_block = q->n_block;
    for (int b = 0; b < q->n_block; b++)
        write_block(q, d, b, &out->blocks[b]);
    snprintf(out->model, sizeof out->model, "%s", q->model);
    snprintf(out->content, sizeof out->content, "%s", q->content);
    if (q->prompts && by_column(out))
        snprintf(out->prompts, sizeof out->prompts, "%s", q->prompts);
    memcpy(out->cap, q->cap, sizeof out->cap);
    out->mode = mode_of(q, out);
    out->kv = d->cache->kv;
    out->n_ctx = q->n_ctx;
    out->n_batch = q->free_batch ? 0 : q->n_batch;
    out->n_prompt = q->n_prompt;
    out->n_gen = q->n_gen;
    out->n_thread = q->rates.n_thread;
    out->n_best = q->n_best;
    out->packed = d->packed && d->streamed;
    if (q->split)
        write_device(q->device, q->split, &out->device);
    out->predicted = o->predicted;
    plan_expect(q, d, &out->predicted);
    snprintf(out->binds, sizeof out->binds, "%s", o->binds);
    return NIB_OK;
}

/* By which order, and what is known of the cost. */
static void write_left_out(const plan_question *q, const plan_decision *d, plan *out) {
    int n = 0, end = 0;
    bool change = true;
    for (int b = 0; b < q->n_block; b++) {
        n += d->choice[b] < 0;
        end = d->choice[b] < 0 ? NUM_MAX(end, q->blocks[b].place + 1) : end;
        change = change && (!q->blocks[b].is_layer || q->blocks[b].change >= 0);
    }
    if (n && n == end)
        note(out,
             "%d layers are left out, those that change the residual stream least; what they cost was "
             "measured together",
             n);
    else if (n && out->predicted.quality >= 0)
        note(out,
             "%d layers are left out; their costs are measured one by one, and together they may cost more",
             n);
    else if (n)
        note(out,
             "%d layers are left out by %s alone, so that the others fit: what that costs is not measured, "
             "and "
             "it may be ruinous ('nibble profile MODEL --costs')",
             n, change ? "how much they change the residual stream" : "MCAP's score");
}

static void write_device_notes(const plan_question *q, const plan_decision *d, plan *out) {
    char size[32], cap[32];
    if (q->device->absent)
        note(out,
             "there is no GPU here: that its driver takes %s, and how fast it is, are guesses; the GPU's own "
             "figures decide when the plan is followed",
             num_format_size(q->device->driver, size));
    else if (q->rates.vram_guessed)
        note(out, "the GPU's rates are guesses: 'nibble profile --hardware' measures them");
    if (q->split->n_not_resident && !q->device->max_layers)
        note(out, "all blocks stay on the GPU with --vram %s",
             num_format_cap(offload_all_resident(q->device), cap));
    if (!d->streamed)
        note(out, "while weights are loaded RAM holds all of them; those that stay on the GPU leave it when "
                  "they have been copied");
}

static void write_notes(const plan_question *q, const plan_decision *d, const plan_outcome *o, plan *out) {
    bool scores = false, costs = false;
    char best[48] = "likeliest token";
    if (q->n_best > 1)
        snprintf(best, sizeof best, "%d likeliest tokens", q->n_best);
    for (int b = 0; b < q->n_block; b++) {
        scores |= q->blocks[b].importance >= 0;
        costs |= q->blocks[b].n_choice > 1;
    }
    if (q->n_sequence > 1)
        note(out, "%d sequences may decode together; the speed is that of one alone%s", q->n_sequence,
             q->split && offload_is_for_many(q->device)
                 ? ", with the kernels for few: those for many are slower for one"
                 : "");
    if (q->split)
        write_device_notes(q, d, out);
    if (q->rates.guessed)
        note(out, "this machine's rates are guesses: 'nibble profile --hardware' measures them");
    if (q->n_best)
        note(out,
             "the output head is computed only where the %s can be, which a sketch of %.1f MiB in RAM tells: "
             "the answers are the same; %s (--shortlist off: as a whole)",
             best, (double)q->sketch_bytes / (1 << 20),
             d->streamed ? "its rows are looked up on disk" : "the head itself is in RAM too");
    if (q->speed > 0 && q->max_loss >= PLAN_SPEED_LOSS)
        note(out,
             "--speed without --quality may lose up to %s nat a token (perplexity times %s); --quality sets "
             "another bound",
             num_text(q->max_loss, 3), num_text(exp(q->max_loss), 3));
    if (!scores && !q->activation)
        note(out, "the layers' importance is not measured: all take 8-bit activations");
    if (!costs && q->may_round)
        note(out,
             "what lower formats cost this model is not measured ('nibble profile MODEL --costs'): only the "
             "file's own are allowed");
    if (costs && q->may_round && d->streamed && !d->packed)
        note(out,
             "without a packed file (--packed-cache on, or --disk) streamed weights keep the file's formats: "
             "they would be rounded anew for each token");
    write_left_out(q, d, out);
    if (out->prompts[0])
        note(out, "formats with an importance matrix (u4g64w) are rounded by how much the calibration "
                  "prompts use each input "
                  "channel of their "
                  "products");
    if (!o->proved)
        note(out, "the search ended early: at most %.2f %% faster is possible",
             100 * (o->bound / o->predicted.tok_s - 1));
}

nib_status plan_make(const plan_question *q, plan *out, nib_error *err) {
    plan_decision d, other;
    plan_outcome o;
    plan p;
    memset(&p, 0, sizeof p);
    memset(&other, 0, sizeof other);
    nib_status status = decision_open(&d, q->n_block, err);
    if (status == NIB_OK)
        status = decision_open(&other, q->n_block, err);
    if (status == NIB_OK)
        status = plan_decide(q, &d, &o, err);
    if (status == NIB_OK && !o.found)
        status = refuse(q, &o, &other, err);
    if (status == NIB_OK)
        status = write_down(q, &d, &o, &p, err);
    if (status == NIB_OK)
        status = look_at_more(q, &other, &p, err);
    if (status == NIB_OK)
        status = look_at_others(q, &o, &other, &p, err);
    if (status == NIB_OK)
        write_notes(q, &d, &o, &p);
    decision_close(&d);
    decision_close(&other);
    if (status == NIB_OK)
        *out = p;
    else
        plan_clear(&p);
    return status;
}
