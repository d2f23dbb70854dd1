/* gguf_value.c - see gguf_value.h. */
#include "formats/gguf_value.h"

#include "base/num.h"

#include <inttypes.h>

enum { MAX_NESTING = 4 };

typedef struct reading {
    cursor *at;
    const char *key;
    meta_table *table;
    bool *large;
} reading;

static nib_status fail_type(const reading *r, uint32_t type, nib_error *err) {
    return nib_fail(err, NIB_E_MODEL, "metadata key '%s' has value type %" PRIu32 ", expected 0 to %d",
                    r->key, type, GGUF_VALUE_COUNT - 1);
}

/* Decodes an integer or bool from little-endian bytes. False: an unsigned value exceeds int64_t. */
static bool decode_int(gguf_value type, const uint8_t *p, int64_t *out) {
    const int n_bit = 8 * gguf_value_bytes[type];
    uint64_t u = 0;
    memcpy(&u, p, gguf_value_bytes[type]);
    const bool is_signed = type == GGUF_I8 || type == GGUF_I16 || type == GGUF_I32 || type == GGUF_I64;
    if (is_signed && u >> (n_bit - 1)) /* sign extension */
        u |= ~(UINT64_MAX >> (64 - n_bit));
    *out = (int64_t)u;
    return is_signed || u <= INT64_MAX;
}

static double decode_float(gguf_value type, const uint8_t *p) {
    if (type == GGUF_F32) {
        float f;
        memcpy(&f, p, sizeof f);
        return f;
    }
    if (type == GGUF_F64) {
        double d;
        memcpy(&d, p, sizeof d);
        return d;
    }
    uint64_t u; /* exceeds int64_t */
    memcpy(&u, p, sizeof u);
    return (double)u;
}

static bool is_float(gguf_value type) {
    return type == GGUF_F32 || type == GGUF_F64;
}

static nib_status check_bool(const reading *r, int64_t v, nib_error *err) {
    return v == 0 || v == 1
               ? NIB_OK
               : nib_fail(err, NIB_E_MODEL, "metadata key '%s' has the bool %" PRId64 ", expected 0 or 1",
                          r->key, v);
}

static nib_status read_scalar(const reading *r, gguf_value type, meta_value *out, nib_error *err) {
    uint8_t bytes[8] = {0};
    NIB_TRY(cursor_take(r->at, bytes, gguf_value_bytes[type], err));
    int64_t i = 0;
    if (is_float(type) || !decode_int(type, bytes, &i)) {
        *out = (meta_value){.type = META_FLOAT, .v.f = decode_float(type, bytes)};
        return NIB_OK;
    }
    if (type != GGUF_BOOL) {
        *out = (meta_value){.type = META_INT, .v.i = i};
        return NIB_OK;
    }
    NIB_TRY(check_bool(r, i, err));
    *out = (meta_value){.type = META_BOOL, .v.b = i != 0};
    return NIB_OK;
}

static nib_status read_string(const reading *r, bool large, meta_string *out, nib_error *err) {
    uint64_t n;
    NIB_TRY(cursor_u64(r->at, &n, err));
    NIB_TRY(cursor_need(r->at, n, err));
    char *text = meta_table_text(r->table, (size_t)n, large);
    if (!text)
        return nib_fail_nomem(err, (size_t)n, "metadata text");
    *out = (meta_string){text, (size_t)n};
    return cursor_take(r->at, text, (size_t)n, err);
}

static nib_status read_strings(const reading *r, size_t n, meta_value *out, nib_error *err) {
    void *data = NULL;
    NIB_TRY(meta_table_array(r->table, n, sizeof(meta_string), &data, r->large, err));
    meta_string *all = data;
    out->v.strings = all;
    out->elem = META_STRING;
    for (size_t i = 0; i < n; i++)
        NIB_TRY(read_string(r, *r->large, &all[i], err));
    return NIB_OK;
}

/* Numbers are widened to 8 bytes. If an unsigned one does not fit int64_t, the numbers read so far are
 * converted to floats in place. */
static nib_status read_numbers(const reading *r, gguf_value type, size_t n, meta_value *out, nib_error *err) {
    union {
        int64_t i;
        double f;
    } * all;
    void *data = NULL;
    NIB_TRY(meta_table_array(r->table, n, sizeof *all, &data, r->large, err));
    all = data;
    const size_t each = gguf_value_bytes[type];
    bool floats = is_float(type);
    uint8_t piece[4096];
    for (size_t done = 0; done < n;) {
        const size_t m = NUM_MIN(n - done, sizeof piece / each);
        NIB_TRY(cursor_take(r->at, piece, m * each, err));
        for (size_t k = 0; k < m; k++) {
            int64_t i = 0;
            if (!floats && !decode_int(type, piece + k * each, &i)) {
                for (size_t back = 0; back < done + k; back++)
                    all[back].f = (double)all[back].i;
                floats = true;
            }
            if (type == GGUF_BOOL)
                NIB_TRY(check_bool(r, i, err));
            if (floats)
                all[done + k].f = decode_float(type, piece + k * each);
            else
                all[done + k].i = i;
        }
        done += m;
    }
    out->elem = type == GGUF_BOOL ? META_BOOL : floats ? META_FLOAT : META_INT;
    if (floats)
        out->v.floats = &all->f;
    else
        out->v.ints = &all->i;
    return NIB_OK;
}

static nib_status skip_bytes(cursor *at, uint64_t n, nib_error *err) {
    uint8_t piece[4096];
    NIB_TRY(cursor_need(at, n, err));
    while (n) {
        const size_t m = (size_t)NUM_MIN(n, (uint64_t)sizeof piece);
        NIB_TRY(cursor_take(at, piece, m, err));
        n -= m;
    }
    return NIB_OK;
}

/* Reads the element type and the count of an array, and checks that the rest of the header can hold it. */
static nib_status read_array_head(const reading *r, uint32_t *elem, uint64_t *n, nib_error *err) {
    NIB_TRY(cursor_u32(r->at, elem, err));
    NIB_TRY(cursor_u64(r->at, n, err));
    if (*elem >= GGUF_VALUE_COUNT)
        return fail_type(r, *elem, err);
    const uint64_t min = *elem == GGUF_ARRAY ? 12 : *elem == GGUF_STRING ? 8 : gguf_value_bytes[*elem];
    if (*n > cursor_left(r->at) / min)
        return nib_fail(err, NIB_E_MODEL,
                        "metadata key '%s' says an array of %" PRIu64 " elements, more than the %" PRIu64
                        " bytes that follow can hold (cut off?)",
                        r->key, *n, cursor_left(r->at));
    return NIB_OK;
}

static nib_status skip_array(const reading *r, int depth, nib_error *err) {
    uint32_t elem;
    uint64_t n;
    if (depth > MAX_NESTING)
        return nib_fail(err, NIB_E_MODEL, "metadata key '%s': arrays in arrays deeper than %d", r->key,
                        MAX_NESTING);
    NIB_TRY(read_array_head(r, &elem, &n, err));
    if (elem != GGUF_ARRAY && elem != GGUF_STRING)
        return skip_bytes(r->at, n * gguf_value_bytes[elem], err);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t n_byte = 0;
        if (elem == GGUF_ARRAY) {
            NIB_TRY(skip_array(r, depth + 1, err));
        } else {
            NIB_TRY(cursor_u64(r->at, &n_byte, err));
            NIB_TRY(skip_bytes(r->at, n_byte, err));
        }
    }
    return NIB_OK;
}

/* Reports the elements of an array that is left out. */
static nib_status report_strings(const reading *r, size_t n, nib_error *err) {
    for (size_t i = 0; i < n; i++) {
        uint64_t n_byte;
        NIB_TRY(cursor_u64(r->at, &n_byte, err));
        NIB_TRY(skip_bytes(r->at, n_byte, err));
        meta_table_report(r->table, r->key, META_STRING, (int64_t)n_byte, (size_t)n_byte + 1);
    }
    return NIB_OK;
}

static nib_status report_numbers(const reading *r, gguf_value type, size_t n, nib_error *err) {
    for (size_t i = 0; i < n; i++) {
        meta_value one;
        NIB_TRY(read_scalar(r, type, &one, err));
        meta_table_report(r->table, r->key, one.type, one.type == META_INT ? one.v.i : 0, 0);
    }
    return NIB_OK;
}

static nib_status report_array(const reading *r, uint32_t elem, size_t n, bool *keep, nib_error *err) {
    *keep = false;
    return elem == GGUF_STRING ? report_strings(r, n, err) : report_numbers(r, (gguf_value)elem, n, err);
}

static nib_status read_array(const reading *r, meta_value *out, bool *keep, nib_error *err) {
    uint32_t elem;
    uint64_t n;
    NIB_TRY(read_array_head(r, &elem, &n, err));
    *out =
        (meta_value){.type = META_ARRAY, .elem = elem == GGUF_ARRAY ? META_ARRAY : META_BOOL, .n = (size_t)n};
    const size_t each = elem == GGUF_STRING ? sizeof(meta_string) : sizeof(int64_t);
    if (elem != GGUF_ARRAY && meta_table_leaves_out(r->table, r->key, (size_t)n, each))
        return report_array(r, elem, (size_t)n, keep, err);
    if (elem == GGUF_STRING)
        return read_strings(r, (size_t)n, out, err);
    if (elem != GGUF_ARRAY)
        return read_numbers(r, (gguf_value)elem, (size_t)n, out, err);
    *keep = false;
    for (uint64_t i = 0; i < n; i++)
        NIB_TRY(skip_array(r, 1, err));
    return NIB_OK;
}

nib_status gguf_value_read(cursor *at, const char *key, meta_table *table, meta_value *out, bool *large,
                           bool *keep, nib_error *err) {
    const reading r = {at, key, table, large};
    uint32_t type;
    *large = false;
    *keep = true;
    at->what = "a metadata value";
    NIB_TRY(cursor_u32(at, &type, err));
    if (type >= GGUF_VALUE_COUNT)
        return fail_type(&r, type, err);
    if (type == GGUF_ARRAY)
        return read_array(&r, out, keep, err);
    if (type != GGUF_STRING)
        return read_scalar(&r, (gguf_value)type, out, err);
    *out = (meta_value){.type = META_STRING};
    return read_string(&r, false, &out->v.s, err);
}
