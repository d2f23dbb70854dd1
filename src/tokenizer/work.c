/* work.c - see work.h. */
#include "tokenizer/work.h"

#include <stdio.h>

nib_status work_over(const text_work *w, const char *who, nib_error *err) {
    return nib_fail(err, NIB_E_MODEL,
                    "%s: expected at most %llu units of work for a text of %zu bytes, it needs more", who,
                    (unsigned long long)work_of(w->n_byte).left, w->n_byte);
}

nib_status work_fail_in(nib_status status, const char *what, size_t i, const char *name, nib_error *err) {
    char prefix[80];
    snprintf(prefix, sizeof prefix, "tokenizer: %s %zu (%s)", what, i + 1, name);
    return status == NIB_E_MODEL ? nib_fail_prefix(err, status, prefix) : status;
}
