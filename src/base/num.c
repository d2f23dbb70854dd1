/* num.c - sizes and numbers as people write them. No strtod or %f here: both follow the embedding program's
 * locale. */
#include "base/num.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* "", "B", "K", "KiB", "kB", ... -> factor; 0: no unit. */
static uint64_t parse_unit(const char *text) {
    static const char letters[] = "kmgt";
    if (text[0] == 0 || strcasecmp(text, "b") == 0)
        return 1;
    const char *at = strchr(letters, text[0] | 0x20);
    if (!at)
        return 0;
    bool decimal = strcasecmp(text + 1, "b") == 0;
    if (!decimal && text[1] != 0 && strcasecmp(text + 1, "ib") != 0)
        return 0;
    uint64_t factor = 1;
    for (const char *l = letters; l <= at; l++)
        factor *= decimal ? 1000 : 1024;
    return factor;
}

bool num_parse_size(const char *text, uint64_t *bytes) {
    if (strcmp(text, "auto") == 0) {
        *bytes = UINT64_MAX;
        return true;
    }
    uint64_t whole = 0, part = 0, scale = 1;
    const char *s = text;
    for (; *s >= '0' && *s <= '9'; s++)
        if (!num_mul_u64(whole, 10, &whole) || !num_add_u64(whole, (uint64_t)(*s - '0'), &whole))
            return false;
    if (s == text)
        return false;
    if (*s == '.') {
        const char *point = s++;
        for (; *s >= '0' && *s <= '9'; s++)
            if (scale < 1000000) { /* digits beyond a millionth are ignored */
                part = part * 10 + (uint64_t)(*s - '0');
                scale *= 10;
            }
        if (s == point + 1)
            return false;
    }
    if (*s == ' ')
        s++;
    uint64_t unit = parse_unit(s);
    if (unit == 0 || !num_mul_u64(whole, unit, &whole))
        return false;
    /* unit <= 2^40 and part < 2^20: the product fits */
    if (!num_add_u64(whole, part * unit / scale, &whole) || whole == UINT64_MAX)
        return false;
    *bytes = whole;
    return true;
}

const char *num_format_size(uint64_t bytes, char *out) {
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (bytes < 1024) {
        snprintf(out, 32, "%u B", (unsigned)bytes);
        return out;
    }
    unsigned i = 1;
    /* In 1/1024 of the unit, so that one more digit never overflows; 1023.95 and above go to the next unit.
     */
    while (i + 1 < NUM_COUNT(names) && (bytes >> (10 * (i - 1))) >= 1024 * 1024 - 51)
        i++;
    uint64_t fine = bytes >> (10 * (i - 1));
    uint64_t tenths = (fine * 10 + 512) / 1024;
    snprintf(out, 32, "%u.%u %s", (unsigned)(tenths / 10), (unsigned)(tenths % 10), names[i]);
    return out;
}

const char *num_format_cap(uint64_t bytes, char *out) {
    enum { SLACK = 1536 << 10 };
    uint64_t unit = 1, above;
    if (!num_add_u64(bytes, SLACK, &above))
        above = UINT64_MAX;
    while (above / unit >= 1024)
        unit *= 1024;
    if (!num_add_u64(above, unit / 20 + 1,
                     &above)) /* half of the last digit, because formatting rounds to the nearest */
        above = UINT64_MAX;
    return num_format_size(above, out);
}

enum { TEXTS = 8, DECIMALS = 12 };

/* Writes x below 2^64 with `decimals` digits after the point; no %f, see above. */
static void write_plain(double x, int decimals, char *out, size_t size) {
    double scale = 1;
    for (int i = 0; i < decimals; i++)
        scale *= 10;
    const double whole = floor(x);
    uint64_t before = (uint64_t)whole, after = (uint64_t)floor((x - whole) * scale + 0.5);
    if ((double)after >= scale) {
        after = 0;
        before++;
    }
    while (decimals > 0 && after % 10 == 0) {
        after /= 10;
        decimals--;
    }
    if (decimals > 0)
        snprintf(out, size, "%llu.%0*llu", (unsigned long long)before, decimals, (unsigned long long)after);
    else
        snprintf(out, size, "%llu", (unsigned long long)before);
}

const char *num_text(double x, int digits) {
    static _Thread_local char texts[TEXTS][40];
    static _Thread_local unsigned next;
    char *out = texts[next++ % TEXTS];
    const double size = fabs(x);
    if (!isfinite(x) || size >= 1e21) {
        snprintf(out, sizeof texts[0],
                 isnan(x)           ? "nan"
                 : size == INFINITY ? "%sinf"
                                    : "%s10^%d or more",
                 x < 0 ? "-" : "", isfinite(x) ? (int)floor(log10(size)) : 0);
        return out;
    }
    const int place = size > 0 ? (int)floor(log10(size)) : 0;
    const int decimals = size < 1e-9 ? 0 : NUM_MIN(NUM_MAX(digits - 1 - place, 0), (int)DECIMALS);
    const bool negative = x < 0 && size >= 1e-9;
    out[0] = '-';
    if (size >= 1e15)
        snprintf(out + negative, sizeof texts[0] - 1, "%.0f", size);
    else
        write_plain(size, decimals, out + negative, sizeof texts[0] - 1);
    return out;
}
