/* quantized.c - see quantized.h. */
#include "support/quantized.h"
#include "base/file.h"
#include "support/engine.h"
#include "support/expected.h"
#include "support/tempdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static const tiny_shape shape = {TYPE_F32, 2, 256, 288, 4, 2, 384, 64, false};

struct small_paths small;

void small_choose(void) {
    snprintf(small.model, sizeof small.model, "%s", tiny_model("whole.gguf", &shape));
    snprintf(small.out, sizeof small.out, "%s", temp_path("small.gguf"));
    snprintf(small.part, sizeof small.part, "%s.part", small.out);
    snprintf(small.log, sizeof small.log, "%s.part.log", small.out);
    unlink(small.out);
    unlink(small.part);
    unlink(small.log);
    setenv("XDG_CACHE_HOME", temp_path("cache"), 1);
}

nib_status small_make(const nib_quantize_options *q, const nib_engine_options *o, nib_quantize_report *r,
                      nib_error *err) {
    const nib_engine_options usual = engine_usual();
    return nib_quantize(small.model, o ? o : &usual, q, r, err);
}

void small_must_make(const nib_quantize_options *q, nib_quantize_report *r) {
    nib_error err;
    if (small_make(q, NULL, r, &err) != NIB_OK)
        fail_msg("%s", err.message);
    assert_false(path_exists(small.part));
    assert_false(path_exists(small.log));
}

char *small_read(const char *path, size_t *n) {
    char *data;
    nib_error err;
    if (file_read_all(path, 1 << 26, &data, n, &err) != NIB_OK)
        fail_msg("%s", err.message);
    return data;
}

float *small_values(const container *c, const char *name, int64_t *n) {
    const container_tensor *t = container_find(c, name);
    nib_error err;
    if (!t) {
        fail_msg("no %s", name);
        return NULL;
    }
    *n = 1;
    for (int i = 0; i < t->n_dim; i++)
        *n *= t->shape[i];
    char *raw = malloc(t->bytes);
    float *out = malloc((size_t)*n * sizeof *out);
    assert_int_equal(file_read_at(container_file(c, t->file), raw, t->offset, t->bytes, &err), NIB_OK);
    type_get(t->type)->dequantize(raw, out, *n);
    free(raw);
    return out;
}

double small_distance(const container *a, const container *b, const char *name) {
    int64_t n, m;
    float *x = small_values(a, name, &n), *y = small_values(b, name, &m);
    assert_int_equal(n, m);
    const double far = relative_error(x, y, n);
    free(x);
    free(y);
    return far;
}
