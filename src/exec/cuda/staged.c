/* staged.c - see staged.h. */
#include "base/mem.h"
#include "base/num.h"
#include "exec/cuda/cuda.h"

nib_status staged_open(cuda *c, nib_error *err) {
    const int n = NUM_MAX(model_n_kv_layer(cuda_model(c)), 1);
    c->staged.homes = mem_calloc((size_t)n, sizeof *c->staged.homes);
    return c->staged.homes
               ? NIB_OK
               : nib_fail_nomem(err, (size_t)n * sizeof *c->staged.homes, "the homes of keys and values");
}

void staged_close(cuda *c) {
    kv_stage_close(c->staged.stage);
    mem_free(c->staged.homes);
    c->staged = (staged){.homes = NULL};
}

static void set_homes(const cuda *c) {
    const homes_split *split = c->base.split;
    for (int b = 0; b < split->n_block; b++) {
        const program *of = &layout_block(c->setup.layout, b)->program;
        const bool of_host = split->of[b].kind == HOME_IN_PLACE || split->of[b].attended;
        const kv_home home = of_host ? KV_HOME_HOST : split->of[b].staged ? KV_HOME_STAGED : KV_HOME_DEVICE;
        for (int i = 0; i < of->n_op; i++)
            if (of->ops[i].kind == OP_ATTENTION)
                c->staged.homes[of->ops[i].u.attn.layer] = home;
    }
}

nib_status staged_reserve(cuda *c, nib_error *err) {
    const homes_split *split = c->base.split;
    kv_stage_close(c->staged.stage);
    c->staged.stage = NULL;
    if (split->stage_page == 0)
        return NIB_OK;
    set_homes(c);
    c->base.homes = c->staged.homes;
    const kv_stage_setup how = {.device = c->base.device,
                                .memory = c->base.device,
                                .host = c->base.host,
                                .ledger = c->setup.ledger,
                                .stride = split->stage_page,
                                .newest = split->stage_newest,
                                .n_page = (int64_t)split->n_stage_page,
                                .n_newest = (int64_t)split->n_stage_newest,
                                .n_list = (int64_t)split->n_stage_list};
    return kv_stage_open(&how, &c->staged.stage, err);
}

nib_status staged_begin(cuda *c, nib_error *err) {
    kv_stage *s = c->staged.stage;
    c->staged.now = false;
    if (!s)
        return NIB_OK;
    kv_stage_clear(s);
    for (int i = 0; i < c->now.pass.n_segment; i++) {
        const segment *of = &c->now.pass.segments[i];
        const kv_stage_rows rows = {
            .kv = of->kv, .first = of->position, .end = of->position + of->n_row, .by_host = of->generated};
        NIB_TRY(kv_stage_add(s, &rows, err));
    }
    c->staged.now = c->base.split->n_staged > c->base.split->n_attended || c->now.has_prompts;
    return c->staged.now ? kv_stage_begin(s, err) : NIB_OK;
}

nib_status staged_end(cuda *c, nib_error *err) {
    return c->staged.now ? kv_stage_end(c->staged.stage, err) : NIB_OK;
}
