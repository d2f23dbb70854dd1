/* offload.c - see offload.h. */
#include "plan/offload.h"

#include "base/mem.h"
#include "base/num.h"
#include "plan/planner.h"

#include <stdio.h>
#include <string.h>

/* Seconds of a pass of so many rows through all layers. What one row's products take is in the rate of
 * reading weights. */
static double seconds_of(const plan_rates *r, const offload_layer *l, int n_layer, int n_come,
                         int64_t n_row) {
    const double read = (double)l->bytes / r->one_row[l->bits] * (l->two ? r->two_slices : 1);
    const double multiply = (double)(n_row - 1) * (double)l->macs / r->many_rows[l->bits];
    const double here = (n_layer - n_come) * (read + multiply);
    const double link = n_come * ((double)l->bytes / r->link);
    return NUM_MAX(here, link);
}

/* Of a pass that is through with the processor's layers before all of them would have come. */
static int64_t rows_in_place(const plan_rates *r, const offload_layer *each, int n_layer, int n_come,
                             int64_t max_rows) {
    const double all = seconds_of(r, each, n_layer, n_layer, 1);
    int64_t n = 0;
    while (n_come < n_layer && n < max_rows && seconds_of(r, each, n_layer, n_come, n + 1) <= all)
        n++;
    return n;
}

void offload_choose(const plan_rates *r, const offload_layer *each, int n_layer, int64_t max_rows,
                    offload *out) {
    *out = (offload){.seconds = seconds_of(r, each, n_layer, 0, 1)};
    for (int n = 1; n <= n_layer; n++) {
        const double s = seconds_of(r, each, n_layer, n, 1);
        if (s < out->seconds)
            *out = (offload){.n_come = n, .seconds = s};
    }
    out->max_rows = rows_in_place(r, each, n_layer, out->n_come, max_rows);
}

/* Of n things, those that stand in front of place i of `places`, evenly. */
static int before(int n, int places, int i) {
    return (int)((int64_t)i * n / places);
}

void offload_place_all(int n_layer, int n_stay, int n_come, offload_place *out) {
    const int n_away = n_layer - n_stay;
    int at = 0, group = 0;
    for (int i = 0; i < n_away; i++) {
        const bool comes = before(n_come, n_away, i + 1) != before(n_come, n_away, i);
        out[at++] = comes ? OFFLOAD_COMES : OFFLOAD_IN_PLACE;
        if (!comes)
            continue;
        for (int n = before(n_stay, n_come, group + 1) - before(n_stay, n_come, group); n > 0; n--)
            out[at++] = OFFLOAD_STAYS;
        group++;
    }
    while (at < n_layer)
        out[at++] = OFFLOAD_STAYS;
}

/* ---- the whole decision ---- */

/* CUDA takes large memory from the driver in pieces of this size. */
enum { PIECE = 2 << 20, LARGE = 1 << 20 };

uint64_t offload_block_room(uint64_t bytes) {
    return bytes < LARGE ? bytes : (bytes + OFFLOAD_PAGE + PIECE - 1) / PIECE * PIECE;
}

uint64_t offload_moves_room(uint64_t stride, uint64_t n_page) {
    return n_page * (stride + OFFLOAD_MOVE_LIST) + OFFLOAD_PAGE;
}

static uint64_t whole_pages(uint64_t bytes) {
    return (bytes + OFFLOAD_PAGE - 1) / OFFLOAD_PAGE * OFFLOAD_PAGE;
}

/* With the places as they are. */
static void count_weights(const offload_question *q, offload_split *s) {
    s->stay = q->always;
    s->slot = 0;
    s->n_away = s->n_in_place = 0;
    for (int b = 1; b < q->n_block; b++) {
        const bool away = s->place[b] != OFFLOAD_STAYS;
        s->n_away += away;
        s->n_in_place += s->place[b] == OFFLOAD_IN_PLACE;
        s->stay += away ? 0 : offload_block_room(q->blocks[b].bytes);
        s->slot = away ? NUM_MAX(s->slot, q->blocks[b].bytes) : s->slot;
    }
    s->weights = s->stay + OFFLOAD_SLOTS * s->slot;
}

static bool fits(const offload_question *q, offload_split *s) {
    count_weights(q, s);
    s->on_host = s->layer = 0;
    for (int b = 1; b < q->n_block; b++)
        if (s->place[b] == OFFLOAD_IN_PLACE) {
            s->on_host += q->blocks[b].cache;
            s->layer = NUM_MAX(s->layer, whole_pages(q->blocks[b].cache));
        }
    s->caches =
        NUM_MAX(q->page - s->on_host / OFFLOAD_PAGE * OFFLOAD_PAGE, NUM_MIN(q->page, (uint64_t)OFFLOAD_PAGE));
    s->on_host = whole_pages(s->on_host);
    s->others = q->beside + q->session + q->n_page * s->caches;
    if (s->layer > 0)
        s->others += offload_moves_room(s->layer, q->n_page);
    return s->weights <= q->room && s->others <= q->room - s->weights;
}

static void place_embedding(offload_split *s) {
    s->place[0] = s->place[1] == OFFLOAD_IN_PLACE ? OFFLOAD_IN_PLACE : OFFLOAD_STAYS;
}

/* n_stay of the layers, and the head or not. */
static bool try(const offload_question *q, const plan_rates *r, int n_stay, bool head, offload_split *s) {
    const int n_all = q->n_block - 2, n_layer = n_all - n_stay;
    offload chosen = {0};
    if (n_layer > 0 && !q->one_cache)
        offload_choose(r, &q->each, n_layer, q->max_rows, &chosen);
    s->max_rows = chosen.max_rows;
    const int n_here = chosen.max_rows >= NUM_MAX(q->n_sequence, 1) ? n_layer - chosen.n_come : 0;
    offload_place_all(n_all, n_stay, n_layer - n_here, s->place + 1);
    s->place[q->n_block - 1] = head ? OFFLOAD_STAYS : OFFLOAD_COMES;
    place_embedding(s);
    return fits(q, s);
}

static int most_layers(const offload_question *q) {
    const int n_layer = q->n_block - 2;
    return q->max_layers ? NUM_MIN(q->max_layers, n_layer) : n_layer;
}

/* As many layers as have room, found by halving: but for all of them, which need no slots. */
static bool keep_what_fits(const offload_question *q, const plan_rates *r, bool head, offload_split *s) {
    int low = 0, high = most_layers(q);
    if (try(q, r, high, head, s))
        return true;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (try(q, r, middle, head, s))
            low = middle;
        else
            high = middle - 1;
    }
    return try(q, r, low, head, s);
}

static nib_status refuse(const offload_question *q, const offload_split *s, nib_error *err) {
    char least[32], weights[32], beside[32], have[32], cap[32], would[64] = "";
    if (q->capped)
        snprintf(would, sizeof would, "; --vram %s is the smallest that works",
                 num_format_cap(q->driver + s->weights + s->others, cap));
    return nib_fail(err, NIB_E_NOFIT,
                    "VRAM: at least %s are needed, %s for weights (%s%s) and %s "
                    "for activations, keys and values; %s has %s free%s",
                    num_format_size(s->weights + s->others, least), num_format_size(s->weights, weights),
                    q->places   ? "what the plan has there"
                    : s->n_away ? "what always stays"
                                : "all of them",
                    s->n_away ? ", and two blocks on their way" : "", num_format_size(s->others, beside),
                    q->whose, num_format_size(q->room, have), would);
}

/* What takes least: nothing that may come stays, or all does. */
static void take_least(const offload_question *q, const plan_rates *r, offload_split *s) {
    const struct {
        int n_stay;
        bool head;
    } tried[] = {{0, false}, {0, true}, {most_layers(q), true}};
    uint64_t sums[NUM_COUNT(tried)];
    size_t best = 0;
    for (size_t i = 0; i < NUM_COUNT(tried); i++) {
        try(q, r, tried[i].n_stay, tried[i].head, s);
        sums[i] = s->weights + s->others;
        best = sums[i] < sums[best] ? i : best;
    }
    try(q, r, tried[best].n_stay, tried[best].head, s);
}

/* As a plan says. */
static nib_status follow(const offload_question *q, const plan_rates *r, offload_split *s, nib_error *err) {
    int n_stay = 0;
    memcpy(s->place, q->places, (size_t)q->n_block * sizeof *s->place);
    place_embedding(s);
    const bool fitting = fits(q, s);
    const int n_layer = q->n_block - 2, n_head = s->place[q->n_block - 1] != OFFLOAD_STAYS;
    n_stay = n_layer - (s->n_away - n_head);
    if (s->place[q->n_block - 1] == OFFLOAD_IN_PLACE)
        return nib_fail(err, NIB_E_USAGE, "plan: the output head is computed on the GPU");
    if (s->n_in_place && q->one_cache)
        return nib_fail(err, NIB_E_USAGE,
                        "plan: with keys and values in codes the processor computes no layer beside the GPU");
    if (q->max_layers && n_stay > q->max_layers)
        return nib_fail(err, NIB_E_USAGE,
                        "plan: it keeps %d layers on the GPU, and at most %d were asked for", n_stay,
                        q->max_layers);
    if (!fitting)
        return refuse(q, s, err);
    if (s->n_in_place)
        s->max_rows = NUM_MAX(
            rows_in_place(r, &q->each, n_layer - n_stay, n_layer - n_stay - s->n_in_place, q->max_rows), 1);
    return NIB_OK;
}

nib_status offload_split_make(const offload_question *q, const plan_rates *r, offload_split *s,
                              nib_error *err) {
    *s = (offload_split){.n_block = q->n_block};
    if (q->n_block < 3)
        return nib_fail(err, NIB_E_MODEL, "the model has no layers");
    s->place = mem_calloc((size_t)q->n_block, sizeof *s->place);
    if (!s->place)
        return nib_fail_nomem(err, (size_t)q->n_block * sizeof *s->place, "the blocks' places");
    if (q->places)
        return follow(q, r, s, err);
    if (keep_what_fits(q, r, true, s) || keep_what_fits(q, r, false, s))
        return NIB_OK;
    take_least(q, r, s);
    return refuse(q, s, err);
}

void offload_split_clear(offload_split *s) {
    mem_free(s->place);
    memset(s, 0, sizeof *s);
}

void offload_question_clear(offload_question *q) {
    mem_free(q->blocks);
    memset(q, 0, sizeof *q);
}

uint64_t offload_whole(const offload_question *q) {
    uint64_t sum = q->driver + q->always + q->beside + q->session + q->n_page * q->page;
    for (int b = 1; b < q->n_block; b++)
        sum += offload_block_room(q->blocks[b].bytes);
    return sum;
}
