/* types.c - the type table and its look-ups. */
#include "numbers/types.h"

#include "base/num.h"
#include "numbers/blocks.h"

#include <ctype.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>

static const type_info *const table[TYPE_COUNT] = {
#define NIB_TYPE(id) [TYPE_##id] = &type_##id,
#include "numbers/types.def"
#undef NIB_TYPE
};

const type_info *type_get(type_id id) {
    return (unsigned)id < TYPE_COUNT ? table[id] : NULL;
}

bool type_from_gguf(uint32_t number, type_id *out) {
    for (int i = 0; i < TYPE_COUNT; i++) {
        if (table[i]->gguf >= 0 && (uint32_t)table[i]->gguf == number) {
            *out = (type_id)i;
            return true;
        }
    }
    return false;
}

bool type_from_safetensors(const char *name, type_id *out) {
    for (int i = 0; i < TYPE_COUNT; i++) {
        if (table[i]->st && !strcmp(table[i]->st, name)) {
            *out = (type_id)i;
            return true;
        }
    }
    return false;
}

bool type_from_name(const char *name, type_id *out) {
    for (int i = 0; i < TYPE_COUNT; i++) {
        if (!strcasecmp(table[i]->name, name)) {
            *out = (type_id)i;
            return true;
        }
    }
    return false;
}

void type_name_small(char *name) {
    for (; *name; name++)
        *name = (char)tolower((unsigned char)*name);
}

bool type_row_bytes(type_id id, int64_t n, uint64_t *bytes) {
    const type_info *t = type_get(id);
    if (!t || n < 0 || n % t->block_elems)
        return false;
    return num_mul_u64((uint64_t)(n / t->block_elems), (uint64_t)t->block_bytes, bytes) &&
           num_add_u64(*bytes,
                       (uint64_t)t->row_bytes + (uint64_t)type_outliers(id, n) * sizeof(block_outlier),
                       bytes);
}

int64_t type_outliers(type_id id, int64_t k) {
    return outliers_of_row(type_get(id)->sparse, k);
}

static void add_outliers(type_id id, const void *row, int64_t k, int64_t at, float *out, int64_t n) {
    uint64_t bytes = 0;
    const int64_t n_outlier = type_outliers(id, k);
    type_row_bytes(id, k, &bytes);
    const block_outlier *of = (const void *)((const uint8_t *)row + bytes - sizeof *of * (size_t)n_outlier);
    for (int64_t i = 0; i < n_outlier; i++) {
        const int64_t column = block_u16(of[i].column);
        if (column >= at && column < at + n)
            out[column - at] += bf16_to_float(block_u16(of[i].value));
    }
}

void type_dequantize_part(type_id id, const void *row, int64_t k, int64_t at, float *out, int64_t n) {
    enum { SOME = 256 /* elements, four blocks or more */, MAX_BYTES = 256 };
    const type_info *info = type_get(id), *t = info->row_bytes ? type_get(info->dense) : info;
    const uint8_t *blocks = (const uint8_t *)row + t->row_bytes + at / t->block_elems * t->block_bytes;
    uint8_t part[MAX_BYTES];
    if (t->row_bytes == 0) {
        t->dequantize(blocks, out, n);
        return;
    }
    memcpy(part, row, (size_t)t->row_bytes);
    for (int64_t i = 0; i < n; i += SOME) {
        const int64_t some = NUM_MIN(n - i, (int64_t)SOME);
        const size_t bytes = (size_t)(some / t->block_elems * t->block_bytes);
        memcpy(part + t->row_bytes, blocks, bytes);
        t->dequantize(part, out + i, some);
        blocks += bytes;
    }
    if (info->sparse)
        add_outliers(id, row, k, at, out, n);
}
