/* expected.c - see expected.h. The files are our own, so this reader only asserts. */
#include "support/expected.h"

#include "base/file.h"
#include "base/jsonx.h"
#include "base/mem.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void *tensor(const json_t *header, char *data, const char *name, int64_t *rows, int64_t *cols) {
    const json_t *t = json_object_get(header, name);
    const json_t *shape = json_object_get(t, "shape"), *at = json_object_get(t, "data_offsets");
    assert_non_null(t);
    *rows = json_integer_value(json_array_get(shape, 0));
    *cols = json_array_size(shape) > 1 ? json_integer_value(json_array_get(shape, 1)) : 1;
    int64_t first = json_integer_value(json_array_get(at, 0)),
            end = json_integer_value(json_array_get(at, 1));
    assert_int_equal(end - first, *rows * *cols * 4);
    return data + first;
}

void expected_load(const char *path, expected *out) {
    nib_error err = {0};
    size_t n;
    uint64_t n_header;
    int64_t rows, cols;
    json_t *header;
    memset(out, 0, sizeof *out);
    assert_int_equal(file_read_all(path, 64 << 20, &out->bytes, &n, &err), NIB_OK);
    memcpy(&n_header, out->bytes, 8);
    assert_true(n_header < n - 8);
    assert_int_equal(jsonx_parse(out->bytes + 8, n_header, &header, &err), NIB_OK);
    char *data = out->bytes + 8 + n_header;
    out->logits = tensor(header, data, "logits", &rows, &out->n_vocab);
    out->input_ids = tensor(header, data, "input_ids", &rows, &cols);
    out->n_input = (int)rows;
    out->greedy = tensor(header, data, "greedy", &rows, &cols);
    out->n_greedy = (int)rows;
    if (json_object_get(header, "ahead")) {
        out->states = tensor(header, data, "states", &rows, &out->width);
        out->ahead = tensor(header, data, "ahead", &rows, &cols);
        out->answer = tensor(header, data, "answer", &rows, &cols);
        out->n_answer = (int)rows;
        out->proposed = *(int32_t *)tensor(header, data, "proposed", &rows, &cols);
        out->accepted = *(int32_t *)tensor(header, data, "accepted", &rows, &cols);
    }
    json_decref(header);
}

void expected_free(expected *e) {
    mem_free(e->bytes);
}

double relative_rms(const float *a, const float *b, int64_t n) {
    double mean = 0, var = 0, dif = 0;
    for (int64_t i = 0; i < n; i++)
        mean += b[i] / (double)n;
    for (int64_t i = 0; i < n; i++) {
        var += (b[i] - mean) * (b[i] - mean);
        dif += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    }
    return sqrt(dif / var);
}

double relative_error(const float *a, const float *b, int64_t n) {
    double all = 0, off = 0;
    for (int64_t i = 0; i < n; i++) {
        all += (double)a[i] * (double)a[i];
        off += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    }
    return sqrt(off / all);
}
