/* charsmap.c - see charsmap.h. */
#include "tokenizer/charsmap.h"
#include "tokenizer/unicode.h"

#include "base/mem.h"
#include "base/num.h"

#include <string.h>

/* The longest compatibility decomposition (U+FDFA) has 33 bytes. */
#define MAX_REPLACEMENT 256
/* The longest key of nmt_nfkc has 10 bytes; the trie of a damaged map may be cyclic. */
#define MAX_KEY 256u

struct charsmap {
    const uint32_t *unit; /* [n_unit] */
    size_t n_unit;
    const char *text; /* [n_text], ends in NUL */
    size_t n_text;
    uint32_t data[];
};

nib_status charsmap_open(const void *data, size_t n_byte, charsmap **out, nib_error *err) {
    uint32_t n_trie;
    if (n_byte < 4)
        return nib_fail(err, NIB_E_MODEL, "charsmap: expected at least 4 bytes, found %zu", n_byte);
    memcpy(&n_trie, data, 4);
    if (n_trie % 4 || n_trie > n_byte - 4 || n_trie < 4)
        return nib_fail(err, NIB_E_MODEL, "charsmap: expected a trie of at most %zu bytes, found %u",
                        n_byte - 4, n_trie);
    charsmap *m = mem_alloc(sizeof *m + n_byte + 1);
    if (!m)
        return nib_fail_nomem(err, n_byte, "the charsmap");
    memcpy(m->data, (const char *)data + 4, n_byte - 4);
    m->unit = m->data;
    m->n_unit = n_trie / 4;
    m->text = (const char *)m->data + n_trie;
    m->n_text = n_byte - 4 - n_trie + 1;
    ((char *)m->data)[n_byte - 4] = 0;
    *out = m;
    return NIB_OK;
}

void charsmap_close(charsmap *m) {
    mem_free(m);
}

/* A unit of the double array: bit 31 marks a value, bits 0..7 the label, bit 8 "an entry ends here", bit 9
 * that the offset (bits 10..30) is shifted by 8. */
static size_t unit_offset(uint32_t unit) {
    return (size_t)(unit >> 10) << ((unit & (1u << 9)) >> 6);
}

/* The replacement at offset `at`; false: there is none, or it is so long that a short input would become
 * gigabytes. */
static bool replacement(const charsmap *m, size_t at, const char **to, size_t *n_to) {
    *to = m->text + at;
    *n_to = strnlen(*to, MAX_REPLACEMENT + 1);
    return *n_to <= MAX_REPLACEMENT && utf8_valid_prefix(*to, *n_to) == *n_to;
}

size_t charsmap_find(const charsmap *m, const char *text, size_t n_byte, bool longest, const char **to,
                     size_t *n_to) {
    size_t node = unit_offset(m->unit[0]), length = 0, found = 0;
    const size_t max = NUM_MIN(n_byte, MAX_KEY);
    for (size_t i = 0; i < max && (longest || !length); i++) {
        unsigned char b = (unsigned char)text[i];
        node ^= b;
        if (b == 0 || node >= m->n_unit)
            break;
        uint32_t unit = m->unit[node];
        if ((unit & (1u << 31 | 0xFF)) != b)
            break;
        node ^= unit_offset(unit);
        if (!(unit >> 8 & 1) || node >= m->n_unit || (m->unit[node] & 0x7FFFFFFFu) >= m->n_text)
            continue;
        found = m->unit[node] & 0x7FFFFFFFu;
        length = i + 1;
    }
    return length && replacement(m, found, to, n_to) ? length : 0;
}
