/* workspace.c - see workspace.h. One table of sizes gives both the layout and the charged bytes. */
#include "exec/cpu/workspace.h"

#include "base/mem.h"
#include "base/num.h"
#include "exec/entries.h"
#include "kernels/act8.h"
#include "kernels/entries.h"
#include "kernels/salient.h"

#include <math.h>
#include <string.h>

/* Floats of a product that is added to another: 16 rows of 2,048 columns, which stay in a second-level
 * cache. */
static const int64_t MAX_RESIDUAL = 32 << 10;

static uint64_t round64(uint64_t n) {
    return (n + 63) & ~UINT64_C(63);
}

/* The largest numbers of inputs and of outputs of a product. */
static void widest_product(const layout *lay, int64_t *k, int64_t *n) {
    *k = *n = 0;
    for (int b = 0; b < layout_n_block(lay); b++) {
        const program *p = &layout_block(lay, b)->program;
        for (int i = 0; i < p->n_op; i++)
            if (op_is_product(&p->ops[i]) || p->ops[i].kind == OP_SHORTLIST) {
                const bool many = op_is_stacked(&p->ops[i]);
                *k = NUM_MAX(*k, many ? p->ops[i].u.experts.k : p->ops[i].k);
                *n = NUM_MAX(*n, many ? p->ops[i].u.experts.n : p->ops[i].n);
            }
    }
}

/* The largest sizes of the model's experts; n_used 0: it has none. */
typedef struct expert_sizes {
    int64_t n_expert, n_used, k;
    int64_t n_sum; /* outputs of a row's experts that are added, before they are */
    int64_t each;  /* inputs of all chosen experts of a row together, where each has its own */
    bool floats, codes;
} expert_sizes;

static expert_sizes sizes_of_experts(const layout *lay) {
    expert_sizes s = {0};
    for (int b = 0; b < layout_n_block(lay); b++) {
        const block *of = layout_block(lay, b);
        for (int i = 0; i < of->program.n_op; i++) {
            const op *o = &of->program.ops[i];
            if (!op_is_stacked(o) || o->kind == OP_SPREAD)
                continue;
            const bool tile = of->weights[o->w].format.layout == PACK_TILE;
            s.n_expert = NUM_MAX(s.n_expert, o->u.experts.n_expert);
            s.n_used = NUM_MAX(s.n_used, o->u.experts.n_used);
            s.k = NUM_MAX(s.k, o->u.experts.k);
            s.n_sum = NUM_MAX(s.n_sum, o->u.experts.sum ? o->u.experts.n_used * o->u.experts.n : 0);
            s.each = NUM_MAX(s.each, o->u.experts.each ? o->u.experts.k : 0);
            s.codes = s.codes || tile;
            s.floats = s.floats || !tile;
        }
    }
    return s;
}

/* The bytes of a thread's scratch that the model's products of n_row rows write to. */
static size_t scratch_of_products(const layout *lay, int64_t n_row, bool sliced) {
    size_t max = 0;
    for (int b = 0; b < layout_n_block(lay); b++) {
        const block *of = layout_block(lay, b);
        for (int i = 0; i < of->program.n_op; i++) {
            const op *o = &of->program.ops[i];
            const bool many = op_is_stacked(o);
            if (op_is_product(o) || o->kind == OP_SHORTLIST)
                max =
                    NUM_MAX(max, linear_scratch_touched(&of->weights[o->w].format, many ? EXPERT_ROWS : n_row,
                                                        many ? o->u.experts.k : o->k, sliced));
        }
    }
    return max;
}

/* The bytes of a thread's scratch for all ops but products. k: the largest number of a product's inputs. */
static size_t scratch_beside_products(const layout *lay, int64_t k, const workspace_use *use) {
    /* A normed row, and the residual of its codes. */
    size_t max = 2 * (size_t)num_round_up(k, 16) * sizeof(float);
    for (int b = 0; b < layout_n_block(lay); b++) {
        const program *p = &layout_block(lay, b)->program;
        for (int i = 0; i < p->n_op; i++) {
            const op *o = &p->ops[i];
            if (o->kind == OP_ATTENTION)
                max = NUM_MAX(max, o->u.attn.every ? entries_attend_bytes(o)
                                                   : attend_scratch_bytes(o->u.attn.d_head, use->coded) +
                                                         attend_top_bytes(use->n_top));
            if (o->kind == OP_SELECT)
                max = NUM_MAX(max, (size_t)entries_select_floats(o) * sizeof(float));
            if (o->kind == OP_EMBED_POS || o->kind == OP_EMBED) /* the row that was looked up */
                max = NUM_MAX(max, (size_t)NUM_MAX(o->n, o->k) * sizeof(float));
        }
    }
    return max;
}

/* Allocates `rows` rows of `each` bytes at *at. Both passes of the layout (count, then place) use it. */
static uint8_t *take(uint8_t *base, uint64_t *at, int64_t rows, uint64_t each) {
    uint8_t *p = base ? base + *at : NULL;
    *at += round64((uint64_t)rows * each);
    return p;
}

static void take_act_rows(act_rows *a, uint8_t *base, uint64_t *at, int64_t rows, uint64_t each,
                          int64_t n_salient) {
    a->codes = take(base, at, rows, each);
    a->residual = take(base, at, rows, each);
    a->has_residual = take(base, at, rows, 1);
    a->n_outlier = take(base, at, rows, 1);
    a->outliers = (outlier *)(void *)take(base, at, rows, ACT_OUTLIERS * sizeof(outlier));
    a->n_salient = (int32_t *)(void *)take(base, at, n_salient ? rows : 0, sizeof *a->n_salient);
    a->salient = (salient *)(void *)take(base, at, rows, (uint64_t)n_salient * sizeof *a->salient);
}

static void take_experts(workspace *ws, const layout *lay, uint8_t *base, uint64_t *at) {
    const expert_sizes s = sizes_of_experts(lay);
    const uint64_t act = s.codes ? act_row_bytes((act_format){.bits = 8, .group = ACT8_GROUP}, s.k) : 0;
    if (s.n_used == 0)
        return;
    ws->apart = (float *)(void *)take(base, at, NUM_MIN(ws->n_cell, EXPERT_APART),
                                      (uint64_t)s.n_sum * sizeof *ws->apart);
    ws->experts = (expert_rows *)(void *)take(base, at, ws->n_thread, sizeof *ws->experts);
    for (int t = 0; t < ws->n_thread; t++) {
        expert_rows m = {.first = (int32_t *)(void *)take(base, at, s.n_expert + 2, sizeof *m.first)};
        m.pairs = (int32_t *)(void *)take(base, at, ws->n_cell * s.n_used, sizeof *m.pairs);
        take_act_rows(&m.act, base, at, EXPERT_ROWS, act, 0);
        m.x = (float *)(void *)take(base, at, s.floats ? EXPERT_ROWS : 0, (uint64_t)s.k * sizeof *m.x);
        m.y = (float *)(void *)take(base, at, EXPERT_ROWS, EXPERT_COLUMNS * sizeof *m.y);
        if (base)
            ws->experts[t] = m;
    }
}

/* Whether any op writes to register r. Norms whose rows are quantized at once (op.fuse.n_codes) do not. */
static bool is_stored(const layout *lay, int r, workspace_use use) {
    for (int b = 0; b < layout_n_block(lay); b++) {
        const block *of = layout_block(lay, b);
        for (int i = 0; i < of->program.n_op; i++) {
            const op *o = &of->program.ops[i];
            if (o->out != r)
                continue;
            if (use.norms || o->kind != OP_NORM || o->fuse.n_codes == 0)
                return true;
            for (int p = 1; p <= o->fuse.n_codes; p++)
                if (of->weights[o[p].w].format.layout != PACK_TILE)
                    return true;
        }
    }
    return false;
}

/* Sets the pointers of the workspace and returns its bytes. base NULL: only counts. */
static uint64_t lay_out(workspace *ws, const layout *lay, int n_thread, uint8_t *base) {
    uint64_t at = 0;
    int64_t longest_rope = 1;
    ws->pass_row = ws->cell_row = ws->head_row = 0;
    for (int r = 0; r < model_n_reg(layout_model(lay)); r++) {
        uint64_t each = (uint64_t)model_reg_width(layout_model(lay), r) * sizeof(float);
        int64_t rows = r == REG_X ? ws->n_pass : r == REG_LOGITS ? ws->n_head : ws->n_cell;
        ws->reg[r] = (float *)take(base, &at, rows, each);
        if (is_stored(lay, r, ws->use))
            *(r == REG_X ? &ws->pass_row : r == REG_LOGITS ? &ws->head_row : &ws->cell_row) += each;
    }
    for (int t = 0; t < model_n_rope(layout_model(lay)); t++) {
        uint64_t each = (uint64_t)model_rope_dim(layout_model(lay), t) * sizeof(float);
        ws->cos_sin[t] = (float *)take(base, &at, ws->n_pass, each);
        ws->pass_row += each;
        longest_rope = NUM_MAX(longest_rope, model_rope_dim(layout_model(lay), t));
    }
    ws->tokens = (int32_t *)(void *)take(base, &at, ws->n_pass, sizeof *ws->tokens);
    ws->positions = (int64_t *)(void *)take(base, &at, ws->n_pass, sizeof *ws->positions);
    ws->pass_row += sizeof *ws->tokens + sizeof *ws->positions;
    int64_t widest_k, widest_n;
    widest_product(lay, &widest_k, &widest_n);
    uint64_t act = act_row_bytes((act_format){.bits = 8, .group = ACT8_GROUP}, widest_k);
    ws->n_salient = salient_count(widest_k, ws->use.k_chunk);
    const expert_sizes experts = sizes_of_experts(lay);
    const int64_t rows = NUM_MAX(experts.n_used, 1); /* quantized rows of a cell's row */
    const uint64_t own_acts =
        act_row_bytes((act_format){.bits = 8, .group = ACT8_GROUP}, experts.each) * (uint64_t)rows;
    take_act_rows(&ws->act, base, &at, ws->n_cell * rows, num_div_up(NUM_MAX(act, own_acts), (uint64_t)rows),
                  ws->n_salient);
    ws->cell_row +=
        (ws->use.residuals ? 2 : 1) * NUM_MAX(act, own_acts) +
        (uint64_t)rows * (2 + ACT_OUTLIERS * sizeof(outlier) + (uint64_t)ws->n_salient * sizeof(salient));
    const uint64_t rows_end = at;
    ws->own = (act_rows *)take(base, &at, n_thread, sizeof *ws->own);
    for (int t = 0; t < n_thread; t++) {
        act_rows own = {.codes = take(base, &at, 2, act), .has_residual = take(base, &at, 1, 1)};
        own.n_outlier = take(base, &at, 1, 1);
        own.outliers = (outlier *)(void *)take(base, &at, 1, ACT_OUTLIERS * sizeof(outlier));
        own.n_salient = (int32_t *)(void *)take(base, &at, ws->n_salient > 0, sizeof *own.n_salient);
        own.salient = (salient *)(void *)take(base, &at, ws->n_salient, sizeof *own.salient);
        if (base)
            ws->own[t] = own;
    }
    ws->residual_width = NUM_MIN(NUM_MAX(num_round_up(widest_n, PACK_PANEL), 2 * PACK_PANEL), MAX_RESIDUAL);
    ws->residual_product = (float *)take(base, &at, n_thread, (uint64_t)ws->residual_width * sizeof(float));
    ws->salient_at =
        (int32_t *)(void *)take(base, &at, n_thread, (uint64_t)ws->n_salient * sizeof *ws->salient_at);
    ws->salient_k = ws->n_salient ? widest_k : 0;
    ws->salient_row = (float *)take(base, &at, n_thread, (uint64_t)ws->salient_k * sizeof(float));
    ws->inv_freq = (float *)take(base, &at, longest_rope, sizeof(float));
    ws->best_ids = (int32_t *)(void *)take(base, &at, ws->n_head, sizeof *ws->best_ids);
    ws->best_logits = (float *)take(base, &at, ws->n_head, sizeof *ws->best_logits);
    ws->n_thread = n_thread;
    take_experts(ws, lay, base, &at);
    ws->fixed = at - rows_end;
    ws->prefetch = (prefetch_list *)(void *)take(base, &at, n_thread, sizeof *ws->prefetch);
    ws->layout = lay;
    workspace_use any = ws->use; /* measurements read caches of other formats */
    any.coded = true;
    ws->scratch_beside = scratch_beside_products(lay, widest_k, &ws->use);
    ws->scratch_each =
        round64(NUM_MAX(linear_scratch_bytes(ws->use.sliced), scratch_beside_products(lay, widest_k, &any)));
    ws->scratch = take(base, &at, n_thread, ws->scratch_each);
    return at;
}

/* The bytes that become resident with so many rows of each kind. */
static uint64_t used(const workspace *ws, int64_t n_pass, int64_t n_cell, int64_t n_head) {
    const size_t products = scratch_of_products(ws->layout, n_cell, ws->use.sliced);
    const size_t scratch = NUM_MIN(NUM_MAX(products, ws->scratch_beside), ws->scratch_each);
    const size_t prefetch = n_pass < MIN_PREFETCH_SEQUENCES ? 0 : sizeof *ws->prefetch;
    return ws->fixed + (uint64_t)ws->n_thread * (scratch + prefetch) + (uint64_t)n_pass * ws->pass_row +
           (uint64_t)n_cell * ws->cell_row + (uint64_t)n_head * ws->head_row;
}

nib_status workspace_open(workspace *ws, const layout *lay, device *d, ledger *l, int n_thread,
                          int64_t n_pass, int64_t n_cell, int64_t n_head, workspace_use use, nib_error *err) {
    memset(ws, 0, sizeof *ws);
    if (model_n_rope(layout_model(lay)) > WORKSPACE_MAX_ROPE)
        return nib_fail(err, NIB_E_MODEL, "expected at most %d rotary tables, found %d", WORKSPACE_MAX_ROPE,
                        model_n_rope(layout_model(lay)));
    ws->n_pass = n_pass;
    ws->n_cell = n_cell;
    ws->n_head = n_head;
    ws->use = use;
    uint64_t bytes = lay_out(ws, lay, n_thread, NULL);
    NIB_TRY(memory_region_open(&ws->memory, d, l, NIB_OWNER_ACTIVATIONS, bytes, true, "activations", err));
    lay_out(ws, lay, n_thread, ws->memory.at);
    return NIB_OK;
}

uint64_t workspace_bytes(const layout *lay, int n_thread, int64_t n_pass, int64_t n_cell, int64_t n_head,
                         const workspace_use *use, uint64_t *touched) {
    workspace ws = {.n_pass = n_pass, .n_cell = n_cell, .n_head = n_head, .use = *use};
    const uint64_t bytes = lay_out(&ws, lay, n_thread, NULL);
    if (touched)
        *touched = NUM_MIN(used(&ws, use->n_row, NUM_MIN(use->n_row, n_cell), 0), bytes);
    return bytes;
}

void workspace_close(workspace *ws) {
    memory_region_close(&ws->memory);
    memset(ws, 0, sizeof *ws);
}

void workspace_reach(workspace *ws, int64_t n_pass, int64_t n_cell, int64_t n_head) {
    if (n_pass <= ws->seen_pass && n_cell <= ws->seen_cell && n_head <= ws->seen_head)
        return;
    ws->seen_pass = NUM_MAX(ws->seen_pass, n_pass);
    ws->seen_cell = NUM_MAX(ws->seen_cell, n_cell);
    ws->seen_head = NUM_MAX(ws->seen_head, n_head);
    memory_region_touch(&ws->memory, used(ws, ws->seen_pass, ws->seen_cell, ws->seen_head));
}

/* Computes in single precision, like the reference implementations: angle = position * frequency, then cos
 * and sin. */
static void fill_rotary_tables(workspace *ws, const model *m, int64_t row, int64_t first, int64_t n_row,
                               int64_t length) {
    for (int t = 0; t < model_n_rope(m); t++) {
        const int64_t half = model_rope_dim(m, t) / 2, position = first - model_rope_behind(m, t);
        float factor = 1;
        model_rope_freqs(m, t, length, ws->inv_freq, &factor);
        for (int64_t r = 0; r < n_row; r++) {
            float *out = ws->cos_sin[t] + (row + r) * 2 * half;
            for (int64_t i = 0; i < half; i++) {
                float angle = (float)(position + r) * ws->inv_freq[i];
                out[i] = cosf(angle) * factor;
                out[half + i] = sinf(angle) * factor;
            }
        }
    }
}

void workspace_rows(workspace *ws, const model *m, int64_t row, int64_t first, int64_t n_row, int64_t length,
                    const int32_t *tokens) {
    memcpy(ws->tokens + row, tokens, (size_t)n_row * sizeof *tokens);
    for (int64_t r = 0; r < n_row; r++)
        ws->positions[row + r] = first + r;
    fill_rotary_tables(ws, m, row, first, n_row, length);
}
