/* normal_form.c - see normal_form.h. utf8proc has the tables. Its own ordering of combining marks is
 * quadratic in the length of a run, so runs are sorted here, and its composition is then linear. The text is
 * processed in runs that end before a starter which cannot combine with them, so working memory is that of
 * one run. */
#include "tokenizer/normal_form.h"
#include "tokenizer/normalize.h"
#include "tokenizer/unicode.h"

#include "base/mem.h"

#include <string.h>
#include <utf8proc.h>

typedef struct run {
    utf8proc_int32_t *c; /* [n + 1]: utf8proc's composition wants one more */
    size_t n, cap;
    utf8proc_int32_t *spare;
    size_t cap_spare;
} run;

static int combining_class(utf8proc_int32_t c) {
    return utf8proc_get_property(c)->combining_class;
}

/* Stable counting sort by combining class; the class fits a byte. */
static nib_status order_marks(run *r, size_t begin, size_t end, nib_error *err) {
    size_t at[257] = {0}, n = end - begin;
    bool ordered = true;
    for (size_t i = begin + 1; i < end && ordered; i++)
        ordered = combining_class(r->c[i - 1]) <= combining_class(r->c[i]);
    if (ordered)
        return NIB_OK;
    if (mem_grow((void **)&r->spare, &r->cap_spare, n, sizeof *r->spare))
        return nib_fail_nomem(err, n * sizeof *r->spare, "normalising a text");
    for (size_t i = begin; i < end; i++)
        at[combining_class(r->c[i]) + 1]++;
    for (int k = 1; k < 257; k++)
        at[k] += at[k - 1];
    for (size_t i = begin; i < end; i++)
        r->spare[at[combining_class(r->c[i])]++] = r->c[i];
    memcpy(r->c + begin, r->spare, n * sizeof *r->spare);
    return NIB_OK;
}

static nib_status flush(run *r, bool compose, text_buffer *out, nib_error *err) {
    for (size_t i = 0; i < r->n;) {
        size_t end = i;
        while (end < r->n && combining_class(r->c[end]))
            end++;
        if (end - i > 1)
            NIB_TRY(order_marks(r, i, end, err));
        i = end > i ? end : i + 1;
    }
    size_t n = r->n;
    if (compose && n > 1)
        n = (size_t)utf8proc_normalize_utf32(r->c, (utf8proc_ssize_t)n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    for (size_t i = 0; i < n; i++) {
        char utf8[4];
        size_t length = utf8_put((uint32_t)r->c[i], utf8);
        NIB_TRY(text_append(out, utf8, length, err));
    }
    r->n = 0;
    return NIB_OK;
}

/* A character below U+0300 is a starter that never joins the one before it. */
static nib_status put(run *r, uint32_t c, bool compatible, bool compose, text_buffer *out, nib_error *err) {
    if (c < 0x300 && r->n)
        NIB_TRY(flush(r, compose, out, err));
    /* U+FDFA has the longest decomposition: 18 characters. */
    if (mem_grow((void **)&r->c, &r->cap, r->n + 33, sizeof *r->c))
        return nib_fail_nomem(err, (r->n + 33) * sizeof *r->c, "normalising a text");
    int last_boundary = 0;
    utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0);
    utf8proc_ssize_t n =
        utf8proc_decompose_char((utf8proc_int32_t)c, r->c + r->n, 32, options, &last_boundary);
    if (n < 0 || n > 32)
        return nib_fail(err, NIB_E_FAILED, "normalising U+%04X: utf8proc returned the error %lld", c,
                        (long long)n);
    r->n += (size_t)n;
    return NIB_OK;
}

nib_status normal_form(const char *text, size_t n_byte, bool compatible, bool compose, text_buffer *out,
                       nib_error *err) {
    run r = {0};
    nib_status status = NIB_OK;
    for (const char *p = text, *end = text + n_byte; p < end && status == NIB_OK;)
        status = put(&r, utf8_next(&p), compatible, compose, out, err);
    if (status == NIB_OK)
        status = flush(&r, compose, out, err);
    mem_free(r.c);
    mem_free(r.spare);
    return status;
}
