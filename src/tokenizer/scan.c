/* scan.c - see scan.h. An alternative is described by a prefix, a set of classes, a count and a suffix. */
#include "tokenizer/scan.h"
#include "tokenizer/unicode.h"

#include "base/num.h"

#include <string.h>

typedef enum scan_kind {
    CONTRACTION,      /* 's 't 're 've 'm 'll 'd */
    CONTRACTION_CASE, /* the same, ignoring case */
    RUN,              /* prefix? [classes]{min, max} suffix* */
    NEWLINES,         /* \s*[\r\n]+ */
    NEWLINE,          /* \s*[\r\n] */
    SPACES_BEFORE,    /* \s+(?!\S) */
    SPACES            /* \s+ */
} scan_kind;

typedef enum scan_prefix { NO_PREFIX, SPACE_PREFIX, OTHER_PREFIX } scan_prefix; /* OTHER: [^\r\n\p{L}\p{N}] */

#define L   UNI_LETTER
#define N   UNI_NUMBER
#define M   UNI_MARK
#define PS  (UNI_PUNCT | UNI_SYMBOL)
#define S   UNI_SPACE
#define ANY 65535

static const struct scan_part {
    const char *pattern;
    scan_kind kind;
    scan_prefix prefix;
    unsigned classes;
    bool negative; /* characters outside the classes match */
    int max;
    const char *suffix; /* ASCII characters that may follow, any number */
} parts[] = {
    {"'s|'t|'re|'ve|'m|'ll|'d", CONTRACTION, 0, 0, 0, 0, ""},
    {"'(?:[sdmt]|ll|ve|re)", CONTRACTION, 0, 0, 0, 0, ""},
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)", CONTRACTION_CASE, 0, 0, 0, 0, ""},
    {"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])", CONTRACTION_CASE, 0, 0, 0, 0, ""},
    {"'(?i:[sdmt]|ll|ve|re)", CONTRACTION_CASE, 0, 0, 0, 0, ""},
    {"(?i:[sdmt]|ll|ve|re)", CONTRACTION_CASE, 0, 0, 0, 0, ""},
    {"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])", CONTRACTION_CASE, 0, 0, 0, 0, ""},
    {" ?\\p{L}+", RUN, SPACE_PREFIX, L, 0, ANY, ""},
    {" ?\\p{N}+", RUN, SPACE_PREFIX, N, 0, ANY, ""},
    {" ?[^\\s\\p{L}\\p{N}]+", RUN, SPACE_PREFIX, S | L | N, 1, ANY, ""},
    {" ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*", RUN, SPACE_PREFIX, S | L | N, 1, ANY, "\r\n"},
    {" ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*", RUN, SPACE_PREFIX, S | L | N, 1, ANY, "\r\n/"},
    {" ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*", RUN, SPACE_PREFIX, S | L | M | N, 1, ANY, "\r\n"},
    {" ?[\\p{P}\\p{S}]+[\\r\\n]*", RUN, SPACE_PREFIX, PS, 0, ANY, "\r\n"},
    {" ?[\\p{P}\\p{S}]+", RUN, SPACE_PREFIX, PS, 0, ANY, ""},
    {"[^\\r\\n\\p{L}\\p{N}]?\\p{L}+", RUN, OTHER_PREFIX, L, 0, ANY, ""},
    {"[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+", RUN, OTHER_PREFIX, L | M, 0, ANY, ""},
    {"\\p{N}", RUN, NO_PREFIX, N, 0, 1, ""},
    {"\\p{N}{1}", RUN, NO_PREFIX, N, 0, 1, ""},
    {"\\p{N}{1,3}", RUN, NO_PREFIX, N, 0, 3, ""},
    {"\\p{N}+", RUN, NO_PREFIX, N, 0, ANY, ""},
    {"\\p{L}+", RUN, NO_PREFIX, L, 0, ANY, ""},
    {"\\s*[\\r\\n]+", NEWLINES, 0, 0, 0, 0, ""},
    {"\\s*[\\r\\n]", NEWLINE, 0, 0, 0, 0, ""},
    {"\\s+(?!\\S)", SPACES_BEFORE, 0, 0, 0, 0, ""},
    {"\\s+", SPACES, 0, 0, 0, 0, ""},
};

/* Copies the pattern with \r and \n always as escapes, for the comparison with known alternatives. */
static size_t spell(const char *pattern, size_t n, char *out, size_t cap) {
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        char c = pattern[i];
        if (used + 2 > cap)
            return SIZE_MAX;
        if (c == '\r' || c == '\n') {
            out[used++] = '\\';
            c = c == '\r' ? 'r' : 'n';
        }
        out[used++] = c;
    }
    return used;
}

bool scan_compile(const char *pattern, size_t n_byte, scan_rule *out) {
    char spelled[1024];
    size_t n = spell(pattern, n_byte, spelled, sizeof spelled), at = 0;
    if (n == SIZE_MAX)
        return false;
    out->n = 0;
    while (at < n) {
        size_t best = SIZE_MAX, best_length = 0;
        for (size_t i = 0; i < NUM_COUNT(parts); i++) {
            size_t length = strlen(parts[i].pattern);
            bool here = length <= n - at && memcmp(spelled + at, parts[i].pattern, length) == 0 &&
                        (at + length == n || spelled[at + length] == '|');
            if (here && length > best_length) {
                best = i;
                best_length = length;
            }
        }
        if (best == SIZE_MAX || out->n == SCAN_PARTS)
            return false;
        out->part[out->n++] = (uint8_t)best;
        at += best_length;
        if (at < n && ++at == n)
            return false; /* the last alternative is empty */
    }
    return out->n > 0;
}

static char low(char c) {
    return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
}

/* Letters match in any case; U+017F folds to s. */
static size_t match_contraction(const char *p, const char *end, bool any_case) {
    if (*p != '\'' || end - p < 2)
        return 0;
    char a = any_case ? low(p[1]) : p[1];
    char b = end - p < 3 ? 0 : any_case ? low(p[2]) : p[2];
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
        return 3;
    return any_case && end - p >= 3 && memcmp(p + 1, "\xC5\xBF", 2) == 0 ? 3 : 0;
}

static inline bool takes(const struct scan_part *part, uint32_t c) {
    return (unicode_class(c) & part->classes ? 1 : 0) != part->negative;
}

static size_t match_run(const struct scan_part *part, const char *begin, const char *end) {
    const char *p = begin;
    if (part->prefix == SPACE_PREFIX && *p == ' ' && end - p > 1) {
        p++;
    } else if (part->prefix == OTHER_PREFIX) {
        const char *next = p;
        uint32_t c = utf8_next(&next);
        /* A mark can be the prefix or the first letter: the prefix is greedy but optional. */
        if (c != '\r' && c != '\n' && !(unicode_class(c) & (L | N)) && next < end) {
            const char *after = next;
            if (takes(part, utf8_next(&after)))
                p = next;
        }
    }
    int count = 0;
    for (const char *next = p; p < end && count < part->max; p = next) {
        if (!takes(part, utf8_next(&next)))
            break;
        count += part->max != ANY;
        if (next == end) {
            p = end;
            return (size_t)(p - begin);
        }
    }
    if (p == begin || (p == begin + 1 && part->prefix == SPACE_PREFIX && *begin == ' ' && !takes(part, ' ')))
        return 0;
    if (*part->suffix)
        while (p < end && *p && strchr(part->suffix, *p))
            p++;
    return (size_t)(p - begin);
}

/* Scans the run of spaces at p. If there is none, it ends at p. */
static void see_spaces(const char *p, const char *end, scan_spaces *out) {
    *out = (scan_spaces){.stop = p};
    while (out->stop < end) {
        const char *next = out->stop;
        uint32_t c = utf8_next(&next);
        if (!(unicode_class(c) & S))
            break;
        if (c == '\r' || c == '\n')
            out->newline = next;
        out->last = out->stop;
        out->stop = next;
    }
}

size_t scan_match(const scan_rule *rule, const char *p, const char *end, scan_spaces *seen) {
    for (int i = 0; i < rule->n; i++) {
        const struct scan_part *part = &parts[rule->part[i]];
        size_t n = 0;
        if (part->kind == RUN) {
            n = match_run(part, p, end);
        } else if (part->kind <= CONTRACTION_CASE) {
            n = match_contraction(p, end, part->kind == CONTRACTION_CASE);
        } else {
            if (!seen->stop || p >= seen->stop)
                see_spaces(p, end, seen);
            if (part->kind == NEWLINES || part->kind == NEWLINE)
                n = seen->newline && seen->newline > p ? (size_t)(seen->newline - p) : 0;
            else if (part->kind == SPACES || seen->stop == end)
                n = (size_t)(seen->stop - p);
            else if (seen->last)
                n = (size_t)(seen->last - p); /* all but the last one: a non-space follows */
        }
        if (n)
            return n;
    }
    return 0;
}
