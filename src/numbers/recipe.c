/* recipe.c - see recipe.h. */
#include "numbers/recipe.h"

#include <stdio.h>
#include <string.h>

/* Parses name[0..n): a uniform format, optionally with w for an imatrix. */
static bool parse_slice(const char *name, size_t n, int64_t k, pack_format *out, bool *uses_imatrix) {
    char plain[PACK_NAME];
    *uses_imatrix = n > 0 && name[n - 1] == 'w' && !(n >= 3 && !strncmp(name + n - 3, "row", 3));
    n -= *uses_imatrix;
    if (n >= sizeof plain)
        return false;
    memcpy(plain, name, n);
    plain[n] = '\0';
    return pack_from_name(plain, k, out);
}

/* Whether the residual can be computed group by group. */
static bool has_own_scales(const pack_format *f) {
    return f->scale == PACK_SCALE_F16 && f->group != PACK_GROUP_ROW;
}

bool recipe_parse(const char *name, int64_t k, recipe *out) {
    const char *plus = strchr(name, '+');
    bool second;
    memset(out, 0, sizeof *out);
    if (!strcmp(name, "file"))
        return true;
    out->n_slice = plus ? 2 : 1;
    if (!parse_slice(name, plus ? (size_t)(plus - name) : strlen(name), k, &out->slice[0],
                     &out->uses_imatrix))
        return false;
    if (out->uses_imatrix && (!has_own_scales(&out->slice[0]) || out->slice[0].rotated))
        return false; /* the statistics are those of the columns before they are rotated */
    if (!plus)
        return true;
    return parse_slice(plus + 1, strlen(plus + 1), k, &out->slice[1], &second) &&
           second == out->uses_imatrix && out->slice[0].rotated == out->slice[1].rotated &&
           has_own_scales(&out->slice[0]) && has_own_scales(&out->slice[1]);
}

void recipe_slice_name(const pack_format *f, bool uses_imatrix, bool second, char out[PACK_NAME]) {
    char plain[PACK_NAME];
    pack_name(f, plain);
    snprintf(out, PACK_NAME, "%s%.20s%s", second ? "+" : "", plain, uses_imatrix ? "w" : "");
}

bool recipe_is_second(const char *slice_name) {
    return slice_name[0] == '+';
}

bool recipe_join(const char *first, const char *second, char out[PACK_NAME]) {
    return snprintf(out, PACK_NAME, "%s%s", first, second) < PACK_NAME;
}
