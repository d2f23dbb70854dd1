/* packed_bind.c - see packed_matrix.h: finds the tensors of a folder that are parts of one matrix, and checks
 * that they fit together. The layouts follow the formats' documentation and loaders. */
#include "formats/container_impl.h"
#include "formats/packed_matrix.h"

#include "base/num.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { NAME = TENSOR_MAX_NAME + 64 };

typedef struct binding {
    container *c;
    const char *method;
    char prefix[NAME]; /* name of the current matrix, without the dot */
    packed_matrix m;
} binding;

/* ---- parts ---- */

static bool ends_with(const char *name, const char *end) {
    const size_t n = strlen(name), n_end = strlen(end);
    return n > n_end && strcmp(name + n - n_end, end) == 0;
}

static bool take(const binding *b, const char *part, container_tensor *out) {
    char name[NAME + 64];
    snprintf(name, sizeof name, "%s.%s", b->prefix, part);
    const container_tensor *t = container_find(b->c, name);
    if (t)
        *out = *t;
    else if (container_absent_file(b->c, name))
        b->c->has_gap = true;
    return t != NULL;
}

static nib_status need(const binding *b, const char *part, container_tensor *out, nib_error *err) {
    return take(b, part, out)
               ? NIB_OK
               : nib_fail(err, NIB_E_MODEL, "%s: '%s' has no '%s'", b->method, b->prefix, part);
}

static nib_status expect(const binding *b, const container_tensor *t, bool type_fits, int64_t rows,
                         int64_t cols, nib_error *err) {
    char shape[200];
    const int64_t found_cols = t->n_dim > 1 ? t->shape[1] : 1;
    if (type_fits && t->n_dim >= 1 && t->n_dim <= 2 && t->shape[0] == rows && found_cols == cols)
        return NIB_OK;
    return nib_fail(err, NIB_E_MODEL, "%s: tensor '%s': expected [%" PRId64 ", %" PRId64 "], found %s %s",
                    b->method, t->name, rows, cols, type_get(t->type)->name, tensor_shape_text(t, shape));
}

static bool is_scale(const container_tensor *t) {
    return t->type == TYPE_F16 || t->type == TYPE_BF16 || t->type == TYPE_F32;
}

static nib_status bad(const binding *b, const char *what, nib_error *err) {
    return nib_fail(err, NIB_E_MODEL, "%s: '%s': %s", b->method, b->prefix, what);
}

static nib_status check_size(binding *b, nib_error *err) {
    const packed_matrix *m = &b->m;
    if (m->n <= 0 || m->k <= 0 || m->n > 1 << 26 || m->k > 1 << 26 || m->n_group <= 0 || m->k % m->n_group)
        return bad(b, "expected parts whose shapes make a matrix in equal groups", err);
    return NIB_OK;
}

/* ---- the matrix that they make ---- */

/* The usual type, until packed_type has read scales and zeros. */
static type_id nominal(const packed_matrix *m) {
    if (m->kind == PACKED_NF4 || m->kind == PACKED_FP8 || m->kind == PACKED_NVFP4)
        return m->dtype;
    if (m->kind == PACKED_MXFP4)
        return TYPE_MXFP4;
    if (m->k % 32 || m->k / m->n_group % 32)
        return TYPE_F32;
    return m->bits == 8 ? TYPE_Q8_0 : m->bits == 4 && m->zeros.name ? TYPE_Q5_0 : TYPE_Q4_0;
}

static nib_status keep_as(binding *b, const char *name, container_tensor *t, nib_error *err) {
    packed_matrix *kept = arena_alloc(&b->c->packed, sizeof *kept);
    if (!kept)
        return nib_fail_nomem(err, sizeof *kept, "a packed matrix");
    *kept = b->m;
    t->packed = kept;
    b->c->has_packed = true;
    type_row_bytes(t->type, b->m.k, &t->bytes);
    t->bytes *= (uint64_t)b->m.n;
    if (tensor_table_replace(&b->c->tensors, name, t))
        return NIB_OK;
    return tensor_table_add(&b->c->tensors, name, strlen(name), t, err);
}

static nib_status keep(binding *b, nib_error *err) {
    char name[NAME + 16];
    container_tensor t = {.type = nominal(&b->m), .n_dim = 2, .shape = {b->m.n, b->m.k}, .file = -1};
    snprintf(name, sizeof name, "%s.weight", b->prefix);
    return keep_as(b, name, &t, err);
}

/* Marks the parts of a packed matrix, which are not used as tensors themselves. */
static void mark_source(container *c, container_tensor *t) {
    char name[NAME];
    const char *inner = strstr(t->name, ".weight."), *dot = strrchr(t->name, '.');
    if (t->packed || !dot || strcmp(dot, ".bias") == 0)
        return;
    if (ends_with(t->name, "_blocks") || ends_with(t->name, "_scales"))
        snprintf(name, sizeof name, "%.*s", (int)strlen(t->name) - 7, t->name);
    else
        snprintf(name, sizeof name, "%.*s.weight", (int)((inner ? inner : dot) - t->name), t->name);
    const container_tensor *whole = container_find(c, name);
    t->source = whole && whole != t && whole->packed;
}

/* ---- AWQ and GPTQ ---- */

static int64_t config_int(const binding *b, const char *key, int64_t fallback) {
    char name[160];
    int64_t value = fallback;
    snprintf(name, sizeof name, "quantization_config.%s", key);
    container_meta_i64(b->c, name, &value);
    return value;
}

static const char *config_text(const binding *b, const char *key) {
    char name[160];
    snprintf(name, sizeof name, "quantization_config.%s", key);
    const char *text = container_meta_str(b->c, name);
    return text ? text : "";
}

static nib_status bind_awq(binding *b, nib_error *err) {
    packed_matrix *m = &b->m;
    *m = (packed_matrix){.kind = PACKED_AWQ, .bits = (int)config_int(b, "bits", config_int(b, "w_bit", 4))};
    const char *version = config_text(b, "version");
    if (*version && strcmp(version, "gemm") && strcmp(version, "GEMM"))
        return nib_fail(err, NIB_E_MODEL, "awq: version '%.40s' is not supported, expected gemm", version);
    if (m->bits != 4)
        return bad(b, "expected 4 bits", err);
    NIB_TRY(need(b, "qweight", &m->codes, err));
    NIB_TRY(need(b, "scales", &m->scales, err));
    NIB_TRY(need(b, "qzeros", &m->zeros, err));
    if (m->codes.n_dim != 2 || m->scales.n_dim != 2)
        return bad(b, "expected qweight and scales of two dimensions", err);
    m->k = m->codes.shape[0];
    m->n = m->scales.shape[1];
    m->n_group = m->scales.shape[0];
    NIB_TRY(check_size(b, err));
    NIB_TRY(expect(b, &m->codes, m->codes.type == TYPE_I32 && m->n % 8 == 0, m->k, m->n / 8, err));
    NIB_TRY(expect(b, &m->scales, is_scale(&m->scales), m->n_group, m->n, err));
    NIB_TRY(expect(b, &m->zeros, m->zeros.type == TYPE_I32, m->n_group, m->n / 8, err));
    return keep(b, err);
}

static nib_status bind_gptq(binding *b, nib_error *err) {
    packed_matrix *m = &b->m;
    *m = (packed_matrix){.kind = PACKED_GPTQ, .bits = (int)config_int(b, "bits", 4)};
    m->zeros_less_one = strcmp(config_text(b, "checkpoint_format"), "gptq_v2") != 0;
    bool symmetric;
    m->symmetric = -1;
    if (container_meta_bool(b->c, "quantization_config.sym", &symmetric))
        m->symmetric = symmetric;
    if (m->bits != 2 && m->bits != 3 && m->bits != 4 && m->bits != 8)
        return bad(b, "expected 2, 3, 4 or 8 bits", err);
    NIB_TRY(need(b, "qweight", &m->codes, err));
    NIB_TRY(need(b, "scales", &m->scales, err));
    NIB_TRY(need(b, "qzeros", &m->zeros, err));
    if (m->codes.n_dim != 2 || m->scales.n_dim != 2 || m->codes.shape[0] > 1 << 26)
        return bad(b, "expected qweight and scales of two dimensions", err);
    m->k = m->codes.shape[0] * 32 / m->bits;
    m->n = m->codes.shape[1];
    m->n_group = m->scales.shape[0];
    if (take(b, "g_idx", &m->order))
        NIB_TRY(expect(b, &m->order, m->order.type == TYPE_I32, m->k, 1, err));
    NIB_TRY(check_size(b, err));
    NIB_TRY(expect(b, &m->codes, m->codes.type == TYPE_I32 && m->k * m->bits % 32 == 0, m->k * m->bits / 32,
                   m->n, err));
    NIB_TRY(expect(b, &m->scales, is_scale(&m->scales), m->n_group, m->n, err));
    NIB_TRY(expect(b, &m->zeros, m->zeros.type == TYPE_I32 && m->n * m->bits % 32 == 0, m->n_group,
                   m->n * m->bits / 32, err));
    return keep(b, err);
}

/* AutoRound writes its matrices in one of these forms, or by compressed-tensors. */
static nib_status bind_auto_round(binding *b, nib_error *err) {
    const char *packing = config_text(b, "packing_format");
    return strstr(packing, "awq") ? bind_awq(b, err)
           : strstr(packing, "gptq")
               ? bind_gptq(b, err)
               : nib_fail(err, NIB_E_MODEL,
                          "auto-round: expected a packing_format of gptq or awq, found '%.40s'", packing);
}

/* ---- compressed-tensors ---- */

static nib_status bind_scales(binding *b, nib_error *err) {
    packed_matrix *m = &b->m;
    NIB_TRY(need(b, "weight_scale", &m->scales, err));
    if (take(b, "weight_g_idx", &m->order))
        NIB_TRY(expect(b, &m->order, m->order.type == TYPE_I32, m->k, 1, err));
    m->n_group = m->scales.n_dim == 2 ? m->scales.shape[1] : 1;
    NIB_TRY(check_size(b, err));
    return expect(b, &m->scales, is_scale(&m->scales), m->n, m->n_group, err);
}

static nib_status bind_rows(binding *b, nib_error *err) {
    packed_matrix *m = &b->m;
    container_tensor shape = {0};
    int64_t size[2] = {0, 0};
    *m = (packed_matrix){.kind = PACKED_ROWS, .symmetric = 1};
    NIB_TRY(need(b, "weight_packed", &m->codes, err));
    NIB_TRY(need(b, "weight_shape", &shape, err));
    if ((shape.type != TYPE_I64 && shape.type != TYPE_I32) || shape.n_dim != 1 || shape.shape[0] != 2)
        return bad(b, "expected a weight_shape of two integers", err);
    if (shape.type == TYPE_I64) {
        NIB_TRY(file_read_at(container_file(b->c, shape.file), size, shape.offset, sizeof size, err));
    } else {
        int32_t narrow[2];
        NIB_TRY(file_read_at(container_file(b->c, shape.file), narrow, shape.offset, sizeof narrow, err));
        size[0] = narrow[0];
        size[1] = narrow[1];
    }
    m->n = size[0];
    m->k = size[1];
    if (m->k <= 0 || m->k > 1 << 26 || m->codes.n_dim != 2 || m->codes.shape[1] > 1 << 26)
        return bad(b, "expected a weight_shape of two positive sizes", err);
    m->bits = (int)(m->codes.shape[1] * 32 / m->k); /* rows are padded to whole words */
    if (m->bits != 4 && m->bits != 8)
        return bad(b, "expected 4 or 8 bits", err);
    NIB_TRY(expect(b, &m->codes, m->codes.type == TYPE_I32, m->n, num_div_up(m->k * m->bits, 32), err));
    NIB_TRY(bind_scales(b, err));
    if (take(b, "weight_zero_point", &m->zeros)) {
        const bool packed = m->zeros.type == TYPE_I32;
        m->symmetric = 0;
        NIB_TRY(expect(b, &m->zeros, packed || m->zeros.type == TYPE_I8,
                       packed ? num_div_up(m->n * m->bits, 32) : m->n, m->n_group, err));
    }
    return keep(b, err);
}

/* Rows (i 0) or columns (1) of a block with a scale. */
static int64_t scaled_block(const binding *b, size_t i) {
    enum { USUAL = 128 };
    const meta_value *v = container_meta(b->c, "quantization_config.weight_block_size");
    const bool there = v && v->type == META_ARRAY && v->elem == META_INT && i < v->n && v->v.ints[i] > 0;
    return there ? v->v.ints[i] : USUAL;
}

/* The dtype of the checkpoint's computation, to which its values are rounded. */
static type_id computing_type(const binding *b) {
    const char *name = container_meta_str(b->c, "torch_dtype");
    name = name ? name : container_meta_str(b->c, "dtype");
    return name && !strcmp(name, "float16")   ? TYPE_F16
           : name && !strcmp(name, "float32") ? TYPE_F32
                                              : TYPE_BF16;
}

/* FP8 with a scale for the tensor, for each row, or for blocks. */
static nib_status bind_fp8(binding *b, const char *scale, nib_error *err) {
    packed_matrix *m = &b->m;
    *m = (packed_matrix){.kind = PACKED_FP8, .bits = 8, .dtype = computing_type(b)};
    NIB_TRY(need(b, "weight", &m->codes, err));
    NIB_TRY(need(b, scale, &m->scales, err));
    if ((m->codes.type != TYPE_F8_E4M3 && m->codes.type != TYPE_F8_E5M2) || m->codes.n_dim != 2)
        return bad(b, "a weight with a scale: expected a matrix in fp8", err);
    m->n = m->codes.shape[0];
    m->k = m->codes.shape[1];
    m->n_group = 1;
    NIB_TRY(check_size(b, err));
    const int64_t rows = m->scales.n_dim > 0 ? m->scales.shape[0] : 1,
                  cols = m->scales.n_dim > 1 ? m->scales.shape[1] : 1;
    m->block = m->k;
    m->block_rows = rows == 1 ? m->n : 1;
    if (cols > 1 || (rows > 1 && rows != m->n)) {
        m->block_rows = scaled_block(b, 0);
        m->block = scaled_block(b, 1);
    }
    m->n_group = num_div_up(m->k, m->block);
    if ((!is_scale(&m->scales) && m->scales.type != TYPE_F8_E8M0) || m->scales.n_dim > 2 ||
        rows != num_div_up(m->n, m->block_rows) || cols != m->n_group)
        return bad(b, "expected scales for the tensor, for each row or for blocks of weight_block_size", err);
    return keep(b, err);
}

static nib_status bind_fp8_scale(binding *b, nib_error *err) {
    return bind_fp8(b, "weight_scale", err);
}

static nib_status bind_fp8_inverse(binding *b, nib_error *err) { /* in spite of its name it is a factor too */
    return bind_fp8(b, "weight_scale_inv", err);
}

/* Two values of e2m1 in a byte. Scales that are exponents are those of mxfp4. whole NULL: there are no
 * others. */
static nib_status bind_fp4(binding *b, const char *codes, const char *scale, const char *whole, bool inverse,
                           nib_error *err) {
    packed_matrix *m = &b->m;
    *m = (packed_matrix){
        .kind = PACKED_NVFP4, .bits = 4, .whole_inverse = inverse, .dtype = computing_type(b)};
    NIB_TRY(need(b, codes, &m->codes, err));
    NIB_TRY(need(b, scale, &m->scales, err));
    if (m->codes.n_dim != 2 || m->scales.n_dim != 2 || m->codes.shape[1] > 1 << 26)
        return bad(b, "expected 4-bit codes and scales of two dimensions", err);
    m->n = m->codes.shape[0];
    m->k = 2 * m->codes.shape[1];
    m->n_group = m->scales.shape[1];
    m->block_rows = m->n;
    NIB_TRY(check_size(b, err));
    const bool exponents = !whole || m->scales.type == TYPE_U8 || m->scales.type == TYPE_F8_E8M0;
    if (exponents)
        m->kind = PACKED_MXFP4;
    else
        NIB_TRY(need(b, whole, &m->whole, err));
    if (m->k != m->n_group * (exponents ? 32 : 16) ||
        (!exponents && (m->whole.type != TYPE_F32 || m->whole.bytes != 4)))
        return bad(b, "expected a scale for each 16 values and one for all, or an exponent for each 32", err);
    NIB_TRY(expect(b, &m->codes, m->codes.type == TYPE_U8 || m->codes.type == TYPE_I8, m->n, m->k / 2, err));
    NIB_TRY(expect(b, &m->scales,
                   exponents ? m->scales.type == TYPE_U8 || m->scales.type == TYPE_F8_E8M0
                             : m->scales.type == TYPE_F8_E4M3,
                   m->n, m->n_group, err));
    return keep(b, err);
}

/* DeepSeek V4: exponents for blocks of fp8, and for 32 values of the experts in e2m1. */
static nib_status bind_exponents(binding *b, nib_error *err) {
    container_tensor codes;
    return take(b, "weight", &codes) && (codes.type == TYPE_I8 || codes.type == TYPE_U8)
               ? bind_fp4(b, "weight", "scale", NULL, false, err)
               : bind_fp8(b, "scale", err);
}

/* The two forms that have a scale under this name. */
static nib_status bind_float(binding *b, nib_error *err) {
    container_tensor codes;
    return take(b, "weight", &codes) && codes.type == TYPE_U8
               ? bind_fp4(b, "weight", "weight_scale", "weight_scale_2", false, err)
               : bind_fp8_scale(b, err);
}

static nib_status bind_packed(binding *b, nib_error *err) {
    container_tensor codes;
    return take(b, "weight_packed", &codes) && codes.type == TYPE_U8
               ? bind_fp4(b, "weight_packed", "weight_scale", "weight_global_scale", true, err)
               : bind_rows(b, err);
}

static nib_status bind_int8(binding *b, nib_error *err) {
    packed_matrix *m = &b->m;
    *m = (packed_matrix){.kind = PACKED_INT8, .bits = 8, .symmetric = 1};
    NIB_TRY(need(b, "weight", &m->codes, err));
    if (m->codes.type == TYPE_F8_E4M3 || m->codes.type == TYPE_F8_E5M2)
        return bind_fp8_scale(b, err);
    if (m->codes.type != TYPE_I8 || m->codes.n_dim != 2)
        return bad(b, "a weight with a weight_scale: expected int8", err);
    m->n = m->codes.shape[0];
    m->k = m->codes.shape[1];
    NIB_TRY(bind_scales(b, err));
    container_tensor zeros;
    if (take(b, "weight_zero_point", &zeros))
        return bad(b, "zero points of 8-bit weights are not supported", err);
    return keep(b, err);
}

/* ---- mxfp4 ---- */

/* The blocks of 32 values of all experts, [experts, rows, blocks, 16], and their scales. The matrix has no
 * suffix, as the parameter of the module. */
static nib_status bind_mxfp4(binding *b, nib_error *err) {
    packed_matrix *m = &b->m;
    char blocks[NAME + 64], scales[NAME + 64];
    snprintf(blocks, sizeof blocks, "%s_blocks", b->prefix);
    snprintf(scales, sizeof scales, "%s_scales", b->prefix);
    const container_tensor *codes = container_find(b->c, blocks), *by = container_find(b->c, scales);
    *m = (packed_matrix){.kind = PACKED_MXFP4, .bits = 4};
    if (!by && container_absent_file(b->c, scales))
        b->c->has_gap = true;
    if (!codes || !by)
        return bad(b, "expected tensors with _blocks and _scales", err);
    m->codes = *codes;
    m->scales = *by;
    bool fits = codes->type == TYPE_U8 && by->type == TYPE_U8 && codes->n_dim == 4 && by->n_dim == 3 &&
                codes->shape[3] == 16;
    for (int d = 0; d < 3 && fits; d++)
        fits = codes->shape[d] == by->shape[d] && codes->shape[d] > 0 && codes->shape[d] <= 1 << 20;
    if (!fits)
        return bad(b, "expected blocks [experts, rows, n, 16] and scales [experts, rows, n] in bytes", err);
    m->n = codes->shape[0] * codes->shape[1];
    m->n_group = codes->shape[2];
    m->k = m->n_group * 32;
    container_tensor t = {
        .type = TYPE_MXFP4, .n_dim = 3, .shape = {codes->shape[0], codes->shape[1], m->k}, .file = -1};
    return keep_as(b, b->prefix, &t, err);
}

/* ---- nvfp4 in GGUF ---- */

/* A matrix, or a stack of experts, whose blocks have a factor beside them. Without one they are all there is.
 * In gemma4 the factors of ffn_down_exps are those of its router. */
static nib_status bind_blocks(binding *b, const container_tensor *codes, nib_error *err) {
    const char *arch = container_meta_str(b->c, "general.architecture");
    packed_matrix *m = &b->m;
    *m = (packed_matrix){.kind = PACKED_NVFP4, .bits = 4, .codes = *codes, .dtype = TYPE_BF16};
    const int64_t *shape = codes->shape, n_expert = codes->n_dim == 3 ? shape[0] : 1;
    if (!take(b, "scale", &m->whole) ||
        (arch && !strcmp(arch, "gemma4") && ends_with(b->prefix, ".ffn_down_exps")))
        return NIB_OK;
    if (codes->n_dim < 2 || codes->n_dim > 3 || n_expert < 1 || n_expert > 1 << 16 ||
        shape[codes->n_dim - 2] > 1 << 26)
        return bad(b, "expected a matrix, or one for each expert", err);
    m->block_rows = shape[codes->n_dim - 2];
    m->n = n_expert * m->block_rows;
    m->k = shape[codes->n_dim - 1];
    m->n_group = m->k / 16;
    NIB_TRY(check_size(b, err));
    if (m->whole.type != TYPE_F32 || m->whole.bytes != (uint64_t)n_expert * 4)
        return bad(b, "expected a factor in f32, or one for each expert", err);
    container_tensor t = *codes;
    t.file = -1;
    return keep_as(b, codes->name, &t, err);
}

/* ---- latent attention, absorbed ---- */

/* Files of an older form have the whole matrix, or all three. */
static nib_status bind_heads(binding *b, const container_tensor *keys, nib_error *err) {
    packed_matrix *m = &b->m;
    char name[NAME + 32];
    snprintf(name, sizeof name, "%s.attn_v_b.weight", b->prefix);
    const container_tensor *values = container_find(b->c, name);
    *m = (packed_matrix){.kind = PACKED_HEADS, .codes = *keys, .n_group = 1, .dtype = TYPE_F32};
    if (!values && container_absent_file(b->c, name))
        b->c->has_gap = true;
    snprintf(name, sizeof name, "%s.attn_kv_b.weight", b->prefix);
    if (container_find(b->c, name))
        return NIB_OK;
    if (!values)
        return bad(b, "expected attn_v_b beside attn_k_b", err);
    m->scales = *values;
    const int64_t *k = keys->shape, *v = values->shape;
    bool fits = keys->n_dim == 3 && values->n_dim == 3 && k[0] == v[0] && k[1] == v[2] &&
                type_get(keys->type)->dequantize && type_get(values->type)->dequantize;
    for (int d = 0; d < 3 && fits; d++)
        fits = k[d] > 0 && v[d] > 0 && k[d] <= 1 << 16 && v[d] <= 1 << 16;
    if (!fits)
        return bad(b, "expected attn_k_b [heads, low, plain] and attn_v_b [heads, values, low]", err);
    m->n = k[0] * (k[2] + v[1]);
    m->k = k[1];
    NIB_TRY(check_size(b, err));
    container_tensor t = {.type = TYPE_F32, .n_dim = 2, .shape = {m->n, m->k}, .file = -1};
    return keep_as(b, name, &t, err);
}

static nib_status bind_gguf(binding *b, nib_error *err) {
    const size_t n = b->c->tensors.n;
    for (size_t i = 0; i < n; i++) {
        const container_tensor t = b->c->tensors.all[i]; /* a copy, because the table grows */
        const bool heads = ends_with(t.name, ".attn_k_b.weight");
        if (!heads &&
            (t.type != TYPE_NVFP4 || !ends_with(t.name, ".weight") || ends_with(t.name, ".attn_v_b.weight")))
            continue;
        snprintf(b->prefix, sizeof b->prefix, "%.*s",
                 (int)(strlen(t.name) - strlen(heads ? ".attn_k_b.weight" : ".weight")), t.name);
        const nib_status status = heads ? bind_heads(b, &t, err) : bind_blocks(b, &t, err);
        if (b->c->has_gap)
            return nib_fail(err, NIB_E_MODEL, "%s: parts of '%s' are in a file that is not there", b->method,
                            b->prefix);
        NIB_TRY(status);
    }
    for (size_t i = 0; i < n; i++) {
        container_tensor *t = &b->c->tensors.all[i];
        mark_source(b->c, t);
        t->source =
            t->source || ends_with(t->name, ".attn_k_b.weight") || ends_with(t->name, ".attn_v_b.weight");
    }
    return NIB_OK;
}

/* ---- bitsandbytes ---- */

static nib_status read_state(binding *b, const container_tensor *state, nib_error *err) {
    enum { MAX_STATE = 4096 };
    packed_matrix *m = &b->m;
    char text[MAX_STATE];
    json_t *root = NULL;
    if (state->type != TYPE_U8 || state->bytes > sizeof text)
        return bad(b, "expected a quant_state of some bytes", err);
    NIB_TRY(file_read_at(container_file(b->c, state->file), text, state->offset, state->bytes, err));
    NIB_TRY(jsonx_parse(text, (size_t)state->bytes, &root, err));
    const json_t *shape = json_object_get(root, "shape");
    const char *dtype = json_string_value(json_object_get(root, "dtype"));
    m->n = json_integer_value(json_array_get(shape, 0));
    m->k = json_integer_value(json_array_get(shape, 1));
    m->block = json_integer_value(json_object_get(root, "blocksize"));
    m->nested_block = json_integer_value(json_object_get(root, "nested_blocksize"));
    m->nested_offset = json_number_value(json_object_get(root, "nested_offset"));
    m->dtype = !dtype || !strcmp(dtype, "bfloat16") ? TYPE_BF16
               : !strcmp(dtype, "float16")          ? TYPE_F16
               : !strcmp(dtype, "float32")          ? TYPE_F32
                                                    : TYPE_COUNT;
    const bool fits = json_array_size(shape) == 2 && m->block > 0 && m->dtype != TYPE_COUNT;
    json_decref(root);
    return fits ? NIB_OK : bad(b, "expected a quant_state with blocksize, dtype and a shape of two", err);
}

static nib_status bind_nf4(binding *b, const container_tensor *state, nib_error *err) {
    packed_matrix *m = &b->m;
    *m = (packed_matrix){.kind = PACKED_NF4, .bits = 4, .n_group = 1};
    NIB_TRY(read_state(b, state, err));
    NIB_TRY(check_size(b, err));
    NIB_TRY(need(b, "weight", &m->codes, err));
    NIB_TRY(need(b, "weight.absmax", &m->scales, err));
    NIB_TRY(need(b, "weight.quant_map", &m->map, err));
    const int64_t n_block = num_div_up(m->n * m->k, m->block);
    if (m->codes.type != TYPE_U8 || m->codes.bytes != (uint64_t)num_div_up(m->n * m->k, 2))
        return bad(b, "expected as many codes as its shape has values", err);
    NIB_TRY(expect(b, &m->map, m->map.type == TYPE_F32, 16, 1, err));
    if (!take(b, "weight.nested_absmax", &m->nested_absmax)) {
        NIB_TRY(expect(b, &m->scales, m->scales.type == TYPE_F32, n_block, 1, err));
        return keep(b, err);
    }
    if (m->nested_block <= 0)
        return bad(b, "expected a nested_blocksize", err);
    NIB_TRY(expect(b, &m->scales, m->scales.type == TYPE_U8, n_block, 1, err));
    NIB_TRY(need(b, "weight.nested_quant_map", &m->nested_map, err));
    NIB_TRY(expect(b, &m->nested_absmax, m->nested_absmax.type == TYPE_F32,
                   num_div_up(n_block, m->nested_block), 1, err));
    NIB_TRY(expect(b, &m->nested_map, m->nested_map.type == TYPE_F32, 256, 1, err));
    return keep(b, err);
}

/* ---- all ---- */

/* Suffixes of part names that mark a packed matrix. */
static const struct {
    const char *method, *end;
    nib_status (*bind)(binding *b, nib_error *err); /* NULL: bitsandbytes */
} forms[] = {{"awq", ".qweight", bind_awq},
             {"gptq", ".qweight", bind_gptq},
             {"auto-round", ".qweight", bind_auto_round},
             {"compressed-tensors", ".weight_packed", bind_packed},
             {"compressed-tensors", ".weight_scale", bind_int8},
             {"fp8", ".weight_scale_inv", bind_fp8_inverse},
             {"fp8", ".weight_scale", bind_fp8_scale},
             {"fp8", ".scale", bind_exponents},
             {"mxfp4", "_blocks", bind_mxfp4},
             {"modelopt", ".weight_scale", bind_float},
             {"modelopt_fp4", ".weight_scale", bind_float},
             {"quark", ".weight_scale", bind_float},
             {"bitsandbytes", ".weight.quant_state.bitsandbytes__nf4", NULL},
             {"bitsandbytes", ".weight.quant_state.bitsandbytes__fp4", NULL}};

static nib_status bind_one(binding *b, size_t i, nib_error *err) {
    const container_tensor t = b->c->tensors.all[i]; /* a copy, because the table grows */
    for (size_t f = 0; f < NUM_COUNT(forms); f++) {
        if (strcmp(forms[f].method, b->method) != 0 || !ends_with(t.name, forms[f].end))
            continue;
        container_tensor other;
        snprintf(b->prefix, sizeof b->prefix, "%.*s", (int)(strlen(t.name) - strlen(forms[f].end)), t.name);
        if (forms[f].bind == bind_int8 && take(b, "weight_packed", &other))
            continue;
        return forms[f].bind ? forms[f].bind(b, err) : bind_nf4(b, &t, err);
    }
    return NIB_OK;
}

nib_status packed_bind(container *c, nib_error *err) {
    binding b = {.c = c, .method = container_meta_str(c, "quantization_config.quant_method")};
    const size_t n = c->tensors.n;
    if (container_get_kind(c) == CONTAINER_GGUF) {
        b.method = "GGUF";
        return bind_gguf(&b, err);
    }
    for (size_t i = 0; i < n && !b.method; i++) /* its configuration may be in a file of its own */
        b.method = ends_with(c->tensors.all[i].name, ".weight_scale_2") ? "modelopt" : NULL;
    if (!b.method)
        return NIB_OK;
    for (size_t i = 0; i < n; i++) {
        const nib_status status = bind_one(&b, i, err);
        if (c->has_gap)
            return nib_fail(err, NIB_E_MODEL, "%s: parts of '%s' are in a file that is not there", b.method,
                            b.prefix);
        NIB_TRY(status);
    }
    for (size_t i = 0; i < n; i++)
        mark_source(c, &c->tensors.all[i]);
    return NIB_OK;
}

const char *container_packed_method(const container *c) {
    return c->has_packed ? container_meta_str(c, "quantization_config.quant_method") : NULL;
}
