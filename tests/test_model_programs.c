/* The builder's output: the programs of the families' layers, op by op, registers that are written
 * before they are read and as wide as they are read, the ops that the cache needs, pieces that cover every
 * row of a fused tensor once, and costs that add up. */
#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "exec/backend.h"
#include "model/model.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static model *open_model(const char *path) {
    const logger silent = {0};
    nib_error err = {0};
    model *m = NULL;
    if (model_open(path, &silent, &m, &err) != NIB_OK)
        fail_msg("%s", err.message);
    return m;
}

/* "norm:attn_norm linear:q+bias ..." */
static void program_text(const block *b, char *out, size_t size) {
    size_t n = 0;
    out[0] = '\0';
    for (int i = 0; i < b->program.n_op && n < size; i++) {
        const op *o = &b->program.ops[i];
        n += (size_t)snprintf(out + n, size - n, "%s%s", i > 0 ? " " : "", op_name(o->kind));
        if (o->w >= 0 && n < size)
            n += (size_t)snprintf(out + n, size - n, ":%s", b->weights[o->w].name);
        if (o->b >= 0 && n < size)
            n += (size_t)snprintf(out + n, size - n, "+bias");
    }
}

static void the_programs(void **state) {
    (void)state;
    static const struct {
        const char *path;
        int block; /* -1: the head */
        const char *text;
    } cases[] = {
        {"arch/llama", 0, "embed:embed"},
        {"arch/llama", 1,
         "norm:attn_norm linear:q linear:k linear:v rope rope attention linear:o add "
         "norm:ffn_norm linear:gate linear:up gate linear:down add"},
        {"arch/llama", -1, "norm:out_norm linear:head"},
        {"arch/qwen2", 1,
         "norm:attn_norm linear:q+bias linear:k+bias linear:v+bias rope rope attention linear:o add "
         "norm:ffn_norm linear:gate linear:up gate linear:down add"},
        {"arch/gemma3", 1,
         "norm:attn_norm linear:q linear:k linear:v norm:q_norm norm:k_norm rope rope attention linear:o "
         "norm:attn_post_norm add norm:ffn_norm linear:gate linear:up gate linear:down norm:ffn_post_norm "
         "add"},
        {"arch/gemma2", -1, "norm:out_norm linear:head softcap"},
        {"arch/gptj", 1,
         "norm:attn_norm+bias linear:q linear:k linear:v rope rope attention linear:o add "
         "linear:up+bias act linear:down+bias add"},
        {"arch/gptj", -1, "norm:out_norm+bias linear:head+bias"},
        {"arch/gpt_neox", 1,
         "norm:attn_norm+bias norm:ffn_norm+bias linear:q+bias linear:k+bias linear:v+bias rope rope "
         "attention "
         "linear:o+bias add linear:up+bias act linear:down+bias add"},
        {"arch/gpt2", 0, "embed:embed embed_pos:pos"},
        {"arch/gpt2", 1,
         "norm:attn_norm+bias linear:q+bias linear:k+bias linear:v+bias attention linear:o+bias add "
         "norm:ffn_norm+bias linear:up+bias act linear:down+bias add"},
        {"arch-extra/opt-350m", 0, "embed:embed linear:embed_in embed_pos:pos"},
        {"arch-extra/opt-350m", 1,
         "linear:q+bias linear:k+bias linear:v+bias attention linear:o+bias add norm:attn_norm+bias "
         "linear:up+bias act linear:down+bias add norm:ffn_norm+bias"},
        {"arch-extra/opt-350m", -1, "linear:embed_out linear:head"},
        {"arch-extra/olmo2", 1,
         "linear:q linear:k linear:v norm:q_norm norm:k_norm rope rope attention linear:o "
         "norm:attn_post_norm add "
         "linear:gate linear:up gate linear:down norm:ffn_post_norm add"},
        {"arch-extra/mpt-clip", 1,
         "norm:attn_norm linear:q linear:k linear:v clamp clamp clamp attention linear:o add "
         "norm:ffn_norm linear:up act linear:down add"},
        {"arch-extra/bloom", 0, "embed:embed norm:embed_norm+bias"},
        {"arch-extra/olmo", -1, "norm linear:head"},
        {"arch-extra/llama-sinks", 1,
         "norm:attn_norm linear:q linear:k linear:v rope rope attention:sinks linear:o add "
         "norm:ffn_norm linear:gate linear:up gate linear:down add"},
        {"arch-extra/granite", -1, "norm:out_norm linear:head scale"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char path[128], text[1024];
        snprintf(path, sizeof path, "tests/data/%s", cases[i].path);
        model *m = open_model(path);
        int at = cases[i].block < 0 ? model_n_block(m) - 1 : cases[i].block;
        program_text(model_block(m, at), text, sizeof text);
        if (strcmp(text, cases[i].text) != 0)
            fail_msg("%s block %d:\nexpected %s\nfound    %s", path, cases[i].block, cases[i].text, text);
        model_close(m);
    }
}

static void read_reg(const model *m, const int64_t *width, reg r, int64_t n) {
    if (r == REG_NONE)
        return;
    assert_int_equal(width[r], n); /* 0: never written in this block */
    assert_true(model_reg_width(m, r) >= n);
}

static int64_t width3(const op *o, int64_t usual) {
    return op_is_recurrent(o->kind) ? op_width3(o) : o->kind == OP_SELECT ? o->u.select.n_head : usual;
}

/* The ops that the cache needs read nothing that others write, and are not all there are. */
static void walk_to_cache(const model *m, const block *b) {
    int64_t width[REG_MAX] = {[REG_X] = model_reg_width(m, REG_X)};
    int n_fed = 0, n_product = 0;
    bool recurs = false, copies = false, stores = false;
    for (int i = 0; i < b->program.n_op; i++) {
        const op *o = &b->program.ops[i];
        stores = stores || op_stores(o);
        if (!o->fuse.feeds_cache)
            continue;
        /* latent attention; values that are the keys; products before streams are mixed */
        copies = copies || o->kind == OP_COPY || o->kind == OP_MIX;
        recurs = recurs || op_is_recurrent(o->kind);
        n_product += o->kind == OP_LINEAR;
        if (o->kind == OP_ATTENTION) {
            read_reg(m, width, o->in2, o->u.attn.n_kv_head * o->u.attn.d_head);
            read_reg(m, width, o->in3, o->u.attn.n_kv_head * o->u.attn.d_head);
            n_fed++;
            continue;
        }
        assert_int_equal(n_fed, 0); /* nothing after attention */
        if (!op_stores(o))
            read_reg(m, width, o->in, o->k);
        read_reg(m, width, o->in2, op_width2(o));
        read_reg(m, width, o->in3, width3(o, o->n));
        width[o->out] = o->n;
    }
    assert_true(recurs || n_fed == stores);
    assert_true(recurs || copies || n_product == 2 * stores); /* keys and values */
}

/* Walks one block as the interpreter would, with widths in place of values. */
static void walk(const model *m, const block *b) {
    int64_t width[REG_MAX] = {0};
    if (b->layer >= 0 || strcmp(b->name, "head") == 0)
        width[REG_X] = model_reg_width(m, REG_X);
    for (int i = 0; i < b->program.n_op; i++) {
        const op *o = &b->program.ops[i];
        const bool attends = o->kind == OP_ATTENTION, experts = o->kind == OP_EXPERTS;
        int64_t kv = attends ? o->u.attn.n_kv_head * o->u.attn.d_head : o->n;
        read_reg(m, width, o->in, o->k);
        read_reg(m, width, o->in2, experts ? 2 * o->u.experts.n_used : attends ? kv : op_width2(o));
        read_reg(m, width, o->in3, attends ? kv : width3(o, 1));
        if (o->kind == OP_LINEAR) {
            assert_int_equal(b->weights[o->w].n, o->n);
            assert_int_equal(b->weights[o->w].k, o->k);
            assert_int_equal(o->cost.macs, o->n * o->k);
        }
        if (experts) {
            const weight *w = &b->weights[o->w];
            assert_int_equal(w->n_expert, o->u.experts.n_expert);
            assert_int_equal(w->n, w->n_expert * num_round_up(o->u.experts.n, PACK_PANEL));
            assert_int_equal(w->k, o->u.experts.k);
            assert_int_equal(o->cost.macs, o->u.experts.n_used * o->u.experts.n * w->k);
            assert_int_equal(o->n, o->u.experts.n * (o->u.experts.sum ? 1 : o->u.experts.n_used));
        }
        const int64_t bias = experts               ? o->u.experts.n_expert * o->u.experts.n
                             : o->kind == OP_ROUTE ? o->k
                                                   : o->n;
        assert_true(o->b < 0 || b->weights[o->b].k == bias || o->kind == OP_NORM || op_is_recurrent(o->kind));
        width[o->out] = o->n;
        assert_true(model_reg_width(m, o->out) >= o->n);
    }
    bool head = strcmp(b->name, "head") == 0;
    assert_int_equal(width[head ? REG_LOGITS : REG_X],
                     head ? model_hparams(m)->n_vocab : model_reg_width(m, REG_X));
}

static void check_weights(const model *m, const block *b, uint64_t *params) {
    uint64_t bytes = 0;
    for (int i = 0; i < b->n_weight; i++) {
        const weight *w = &b->weights[i];
        int64_t rows = 0;
        for (int j = 0; j < w->n_piece; j++) {
            const weight_piece *p = &w->pieces[j];
            int64_t all = w->vector ? 1 : p->tensor->shape[w->transposed];
            all *= !w->vector && p->tensor->n_dim == 3 ? p->tensor->shape[1] : 1;
            for (int d = 0; w->vector && d < p->tensor->n_dim; d++)
                all *= p->tensor->shape[d];
            assert_true(p->first_row >= 0 && p->n_row > 0 && p->first_row + p->n_row <= all);
            rows += p->n_row;
        }
        assert_int_equal(rows, w->vector ? w->k : w->n);
        bytes += (w->bytes + 63) / 64 * 64;
        if (w->shared_block < 0)
            *params += (uint64_t)((w->n_expert > 0 ? w->n_expert * w->expert_n : w->n) * w->k);
        else
            assert_ptr_equal(model_block(m, w->shared_block)->weights[w->shared_index].pieces, w->pieces);
    }
    assert_int_equal(b->bytes, bytes);
}

static void check_model(const char *path) {
    model *m = open_model(path);
    uint64_t params = 0;
    assert_int_equal(model_n_block(m), model_hparams(m)->n_layer + 2);
    for (int i = 0; i < model_n_block(m); i++) {
        const block *b = model_block(m, i);
        assert_int_equal(b->layer, i == 0 || i == model_n_block(m) - 1 ? -1 : i - 1);
        walk(m, b);
        walk_to_cache(m, b);
        check_weights(m, b, &params);
    }
    assert_int_equal(params, model_n_param(m));
    model_close(m);
}

static void registers_and_pieces(void **state) {
    (void)state;
    static const char *const roots[] = {"tests/data/arch", "tests/data/arch-extra", "tests/data/arch-gguf"};
    int n = 0;
    for (size_t i = 0; i < sizeof roots / sizeof roots[0]; i++) {
        DIR *dir = opendir(roots[i]);
        assert_non_null(dir);
        for (struct dirent *d; (d = readdir(dir)) != NULL;) {
            char path[400];
            snprintf(path, sizeof path, "%s/%s", roots[i], d->d_name);
            if (d->d_name[0] == '.' || (!path_is_dir(path) && strstr(path, ".gguf") == NULL))
                continue;
            check_model(path);
            n++;
        }
        closedir(dir);
    }
    assert_true(n > 90);
}

/* The parts of a fused tensor: every row once. GPT-NeoX interleaves head by head, Phi-3 puts one after the
 * other. */
static void fused_rows_are_used_once(void **state) {
    (void)state;
    static const char *const paths[] = {"tests/data/arch/gpt_neox", "tests/data/arch/phi3",
                                        "tests/data/arch/falcon", "tests/data/arch/gpt2",
                                        "tests/data/arch-extra/falcon-40b"};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        model *m = open_model(paths[i]);
        const block *b = model_block(m, 1);
        const hparams *hp = model_hparams(m);
        int64_t n = (hp->n_head + 2 * hp->n_kv_head) * hp->d_head;
        uint8_t *seen = mem_calloc((size_t)n, 1);
        const container_tensor *fused = NULL;
        for (int j = 0; j < b->n_weight; j++)
            if (strcmp(b->weights[j].name, "q") == 0)
                fused = b->weights[j].pieces[0].tensor;
        for (int j = 0; j < b->n_weight; j++)
            for (int p = 0; p < b->weights[j].n_piece; p++)
                for (int64_t r = 0;
                     b->weights[j].pieces[p].tensor == fused && r < b->weights[j].pieces[p].n_row; r++)
                    seen[b->weights[j].pieces[p].first_row + r]++;
        for (int64_t r = 0; r < n; r++)
            assert_int_equal(seen[r], 1);
        mem_free(seen);
        model_close(m);
    }
}

static void layers_differ(void **state) {
    (void)state;
    model *m = open_model("tests/data/arch/gemma3"); /* two slide, the third does not */
    for (int i = 0; i < 6; i++) {
        const program *p = &model_block(m, i + 1)->program;
        for (int j = 0; j < p->n_op; j++) {
            if (p->ops[j].kind == OP_ATTENTION)
                assert_int_equal(p->ops[j].u.attn.window, i % 3 == 2 ? 0 : 16);
            if (p->ops[j].kind == OP_ROPE)
                assert_int_equal(p->ops[j].u.rope.table, i % 3 == 2 ? 0 : 1);
        }
    }
    model_close(m);
    m = open_model("tests/data/arch-extra/gpt2-scaled");
    float scale[2] = {0};
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < model_block(m, i + 1)->program.n_op; j++)
            if (model_block(m, i + 1)->program.ops[j].kind == OP_ATTENTION)
                scale[i] = model_block(m, i + 1)->program.ops[j].u.attn.scale;
    assert_true(scale[0] > 0 && scale[0] == 2 * scale[1]);
    model_close(m);
}

/* The fusing of each op of a layer, in order: c3: its output becomes integers for 3 products, j3: 3
 * products are fused, t1: one op goes on with their columns. */
static void the_rewrites(void **state) {
    (void)state;
    static const struct {
        const char *path, *text;
    } cases[] = {
        {"llama", "norm:c3 linear:j3 linear linear rope rope attention linear:t1 add norm:c2 linear:j2:t1 "
                  "linear gate linear:t1 add"},
        /* both copies are made first: the integers of one would not last until the other is read */
        {"gpt_neox",
         "norm norm linear:j3 linear linear rope rope attention linear:t1 add linear:t1 act linear:t1 add"},
        /* one copy, read by q, k, v and again by up: its floats are needed */
        {"gptj",
         "norm linear:j3 linear linear rope rope attention linear:t1 add linear:t1 act linear:t1 add"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char path[128], text[1024] = "";
        size_t n = 0;
        snprintf(path, sizeof path, "tests/data/arch/%s", cases[i].path);
        model *m = open_model(path);
        const program *p = &model_block(m, 1)->program;
        for (int j = 0; j < p->n_op && n < sizeof text; j++) {
            const op *o = &p->ops[j];
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", j ? " " : "", op_name(o->kind));
            if (o->fuse.n_codes && n < sizeof text)
                n += (size_t)snprintf(text + n, sizeof text - n, ":c%d", o->fuse.n_codes);
            if (o->fuse.n_join && n < sizeof text)
                n += (size_t)snprintf(text + n, sizeof text - n, ":j%d", o->fuse.n_join);
            if (o->fuse.n_tail && n < sizeof text)
                n += (size_t)snprintf(text + n, sizeof text - n, ":t%d", o->fuse.n_tail);
        }
        assert_string_equal(text, cases[i].text);
        model_close(m);
    }
}

/* A back end names what it lacks before any weight is read; it needs no device for that. */
static void lacking_ops(void **state) {
    (void)state;
    static const struct {
        const char *path, *lacks; /* NULL: nothing */
    } cases[] = {{"arch/llama", NULL},
                 {"arch/gpt2", NULL},
                 {"arch/apertus", NULL},
                 {"arch/ministral3", NULL},
                 {"arch-extra/deepseek_v2-dense", NULL},
                 {"arch/laguna", NULL},
                 {"arch/gemma4_moe", NULL},
                 {"arch/qwen4_exp", "mix"},
                 {"arch/deepseek_v4", "connect"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char path[200];
        nib_error err = {0};
        snprintf(path, sizeof path, "tests/data/%s", cases[i].path);
        const logger silent = {0};
        model *m = NULL;
        if (model_open_headers(path, &silent, NULL, true, &m, &err) != NIB_OK)
            fail_msg("%s", err.message);
        const nib_status status = backend_cuda.check_ops(m, &err);
        assert_int_equal(status, cases[i].lacks ? NIB_E_DEVICE : NIB_OK);
        if (cases[i].lacks && (!strstr(err.message, cases[i].lacks) || !strstr(err.message, "layer.0")))
            fail_msg("%s: expected layer.0 and %s in '%s'", path, cases[i].lacks, err.message);
        model_close(m);
    }
}

/* The cache of latent attention has the row of low rank and the rotated part, as the key of one head. */
static void rows_of_low_rank_are_cached(void **state) {
    (void)state;
    static const char *const paths[] = {"arch/deepseek_v2", "arch/deepseek_v3", "arch/glm4_moe_lite"};
    const logger silent = {0};
    for (int i = 0; i < 3; i++) {
        char path[200];
        int64_t k = 0, v = 0;
        model *m = NULL;
        snprintf(path, sizeof path, "tests/data/%s", paths[i]);
        assert_int_equal(model_open_headers(path, &silent, NULL, false, &m, NULL), NIB_OK);
        const hparams *hp = model_hparams(m);
        model_kv_widths(m, 1, &k, &v);
        assert_int_equal(k, hp->kv_low_rank + hp->n_rot);
        assert_int_equal(v, 0);
        model_close(m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_programs),
        cmocka_unit_test(the_rewrites),
        cmocka_unit_test(registers_and_pieces),
        cmocka_unit_test(fused_rows_are_used_once),
        cmocka_unit_test(layers_differ),
        cmocka_unit_test(lacking_ops),
        cmocka_unit_test(rows_of_low_rank_are_cached),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
