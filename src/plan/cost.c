/* cost.c - how long a token takes and how much memory it needs: docs/budget.md has the formulas. */
#include "plan/policy.h"

#include "base/num.h"

#include <string.h>

/* ---- time ---- */

static double slices(const plan_question *q, int activation) {
    return activation == 16 ? q->rates.two_slices : 1;
}

double plan_block_seconds(const plan_question *q, int b, int choice, int activation) {
    const plan_block_facts *f = &q->blocks[b];
    const plan_choice *c = &f->choices[choice];
    const double kernel =
        (double)c->bytes / q->rates.one_row[c->bits] * (c->bits ? slices(q, activation) : 1);
    return NUM_MAX(kernel, (double)c->bytes / q->rates.ram_read) + f->n_op * q->rates.op_s;
}

static double attention_seconds(const plan_question *q, const plan_cache *cache, double n_position) {
    const double moved = (double)cache->position * n_position / q->rates.ram_read;
    return NUM_MAX(moved, (double)q->attention_macs * n_position / q->rates.many_rows[0]);
}

double plan_fixed_seconds(const plan_question *q, const plan_cache *cache, bool streamed) {
    const double middle = (double)q->n_prompt + (double)q->n_gen / 2;
    return attention_seconds(q, cache, middle) + (streamed ? q->rates.disk_wait : 0);
}

/* Of one byte, the reader's share of a read: it is told, packs or hands on, and asks for the next. */
static double turn_seconds(const plan_question *q, bool packed) {
    const uint64_t size = packed ? q->need.page_most : q->need.part;
    return size ? q->rates.disk_turn / (double)size : 0;
}

double plan_disk_seconds(const plan_question *q, bool packed) {
    const plan_rates *r = &q->rates;
    return packed ? 1 / r->disk_read + turn_seconds(q, true)
                  : 1 / r->disk_file + turn_seconds(q, false) + 1 / r->pack;
}

double plan_stolen_seconds(const plan_question *q, bool packed) {
    /* the reader's thread packs: where every core computes it takes its share of them */
    return packed || q->rates.n_thread < q->rates.n_core ? 0 : 1 / q->rates.pack / q->rates.n_core;
}

/* Rows of a prompt that go through the blocks together. */
static double pass_seconds(const plan_question *q, const plan_decision *d, double rows, double done) {
    double total = 0;
    for (int b = 0; b < q->n_block; b++) {
        const plan_block_facts *f = &q->blocks[b];
        if (d->choice[b] < 0)
            continue;
        const double one = plan_block_seconds(q, b, d->choice[b], d->activation[b]);
        const double rate = q->rates.many_rows[f->choices[d->choice[b]].bits];
        const double many = rows * (double)f->macs / rate * slices(q, d->activation[b]);
        total += f->is_layer ? NUM_MAX(one, many) : one; /* logits of the last row only */
    }
    return total + rows * NUM_MAX((double)q->attention_macs * (done + rows / 2) / q->rates.many_rows[0], 0);
}

static double first_token(const plan_question *q, const plan_decision *d, double disk_s, double stolen_s) {
    double total = 0;
    const int64_t rows = d->streamed && q->n_batch_streamed ? q->n_batch_streamed : q->n_batch;
    const int64_t batch = NUM_MAX(rows, 1), all = NUM_MAX(q->n_prompt, 1);
    const int64_t whole = all / batch, rest = all % batch;
    for (int64_t i = 0; i < NUM_MIN(whole, (int64_t)64); i++) { /* more are alike but for the attention */
        const double times = whole > 64 ? (double)whole / 64 : 1;
        const double t = pass_seconds(q, d, (double)batch, (double)(i * batch) * times) + stolen_s;
        total += NUM_MAX(t, disk_s) * times;
    }
    if (rest)
        total += NUM_MAX(pass_seconds(q, d, (double)rest, (double)(whole * batch)) + stolen_s, disk_s);
    return total;
}

/* ---- memory ---- */

/* Of the staging, what stands beside the weights at the peak. */
static uint64_t staging_peak(const plan_question *q, uint64_t session, bool streamed) {
    const uint64_t loading = streamed ? q->need.stream_staging : q->need.staging;
    const uint64_t running = session + (streamed ? q->need.ring + q->need.row : 0);
    return NUM_MAX(loading, running);
}

uint64_t plan_ram_beside(const plan_question *q, const plan_cache *cache, bool streamed, bool packed,
                         uint64_t bytes) {
    uint64_t total = q->need.tables + q->need.vectors + (streamed ? q->more_rows : bytes) + q->spare;
    for (int i = 0; i < NIB_N_OWNER; i++)
        total += q->held[i];
    return total + staging_peak(q, q->session + cache->bytes, streamed) +
           (streamed && packed ? q->need.sums : 0);
}

static void predict_memory(const plan_question *q, const plan_decision *d, plan_prediction *out) {
    uint64_t weights = q->need.vectors, image = weights, sum = 0;
    for (int b = 0; b < q->n_block; b++) {
        if (d->choice[b] < 0)
            continue;
        const plan_choice *c = &q->blocks[b].choices[d->choice[b]];
        weights += d->streamed ? d->kept[b] : c->bytes + c->table_bytes;
        image += c->bytes + c->table_bytes;
    }
    memcpy(out->owner, q->touched, sizeof out->owner);
    out->owner[NIB_OWNER_WEIGHTS] += weights;
    out->owner[NIB_OWNER_KV] += d->cache->touched;
    const uint64_t more = d->streamed ? q->more_touched : 0;
    out->owner[NIB_OWNER_ACTIVATIONS] += q->session + more;
    out->owner[NIB_OWNER_TABLES] += q->need.tables + (d->streamed && d->packed ? q->need.sums : 0);
    /* while loading there are no sessions: what is staged then may be more than all that comes later */
    const uint64_t later = q->session + d->cache->touched + q->touched[NIB_OWNER_ACTIVATIONS] + more;
    const uint64_t running = d->streamed ? q->need.ring + q->need.row : 0;
    const uint64_t loading = d->streamed ? q->need.stream_staging : q->need.staging;
    out->owner[NIB_OWNER_STAGING] += loading > running + later ? loading - later : running;
    for (int i = 0; i < NIB_N_OWNER; i++)
        sum += out->owner[i];
    out->ram_peak = sum;
    out->disk_peak = d->packed ? image : 0;
}

/* ---- both ---- */

void plan_predict(const plan_question *q, const plan_decision *d, plan_prediction *out, const char **binds) {
    double computing = 0, from_disk = 0, to_pack = 0, loss = 0, read = 0;
    memset(out, 0, sizeof *out);
    for (int b = 0; b < q->n_block; b++) {
        const plan_block_facts *f = &q->blocks[b];
        if (d->choice[b] < 0) {
            loss = loss < 0 || f->kl_left_out < 0 ? -1 : loss + f->kl_left_out;
            continue;
        }
        const plan_choice *c = &f->choices[d->choice[b]];
        const double part = d->streamed && c->bytes ? 1 - (double)d->kept[b] / (double)c->bytes : 0;
        computing += plan_block_seconds(q, b, d->choice[b], d->activation[b]);
        read += (double)c->bytes;
        to_pack += d->packed ? 0 : part * (double)c->bytes;
        from_disk += part * (double)(d->packed ? c->bytes : c->file_bytes);
        loss = loss < 0 || c->kl < 0 ? -1 : loss + c->kl;
        if (d->activation[b] == 8 && f->kl_a8 > 0 && loss >= 0)
            loss += f->kl_a8;
    }
    const double middle = (double)q->n_prompt + (double)q->n_gen / 2;
    const double rate = d->packed ? q->rates.disk_read : q->rates.disk_file;
    const double reading = from_disk * (1 / rate + turn_seconds(q, d->packed)),
                 packing = to_pack / q->rates.pack;
    const double stolen = to_pack * plan_stolen_seconds(q, d->packed);
    read += (double)d->cache->position * middle;
    out->disk_s = reading + packing; /* by one thread, one after the other */
    out->ram_s = read / q->rates.ram_read;
    out->compute_s = computing + plan_fixed_seconds(q, d->cache, d->streamed) + stolen;
    out->tok_s = 1 / NUM_MAX(NUM_MAX(out->disk_s, out->compute_s), 1e-12);
    out->ttft_s = first_token(q, d, out->disk_s, stolen);
    out->ram_bytes = (uint64_t)read;
    out->disk_bytes = (uint64_t)from_disk;
    out->quality = loss;
    predict_memory(q, d, out);
    *binds = out->disk_s > out->compute_s        ? (packing > reading ? "packing" : "disk read")
             : out->ram_s > 0.8 * out->compute_s ? "memory read"
                                                 : "compute";
}
