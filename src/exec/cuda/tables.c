/* tables.c - decides in which tables the GPU looks up rows: embeddings of tokens and of positions.
 *
 * A table that is also a tied head is in the GPU's memory with the head. Another one is copied there if all
 * blocks are resident and there is memory left (plan/offload.h). A table that only the pager has, in RAM or
 * on disk, is looked up on the host (launch_embed.c). */
#include "exec/cuda/cuda.h"

static bool looks_up(const op *o) {
    return o->kind == OP_EMBED || o->kind == OP_EMBED_POS;
}

static bool have_kernel(const block *of) {
    for (int i = 0; i < of->program.n_op; i++)
        if (looks_up(&of->program.ops[i]) && !cuda_embeds(&of->weights[of->program.ops[i].w].format))
            return false;
    return true;
}

void tables_each(const cuda *c, int b, weight_fn fn, void *user) {
    const block *of = layout_block(c->setup.layout, b);
    if (!have_kernel(of))
        return;
    for (int i = 0; i < of->program.n_op; i++)
        if (looks_up(&of->program.ops[i]))
            fn(c, b, of->program.ops[i].w, user);
}

typedef struct seen {
    int n, n_there;
} seen;

static void see(const cuda *c, int b, int w, void *user) {
    seen *s = user;
    const gpu_weight *g = weights_own(c, b, w);
    s->n++;
    s->n_there += g->loaded && !g->streamed;
}

bool tables_there(const cuda *c, int b) {
    seen s = {0, 0};
    tables_each(c, b, see, &s);
    return s.n > 0 && s.n_there == s.n;
}
