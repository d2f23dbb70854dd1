/* unicode.c - see unicode.h. Categories come from utf8proc. Characters that are newer than its Unicode
 * version are in a short table of ranges, so that every system cuts text in the same way. */
#include "tokenizer/unicode.h"
#include "tokenizer/unicode_new.h"

#include "base/num.h"

#include <utf8proc.h>

#define L UNI_LETTER | UNI_WORD
#define N UNI_NUMBER | UNI_DIGIT | UNI_WORD
#define P UNI_PUNCT
#define S UNI_SYMBOL
#define W UNI_SPACE
const uint8_t unicode_class_ascii[128] = {
    0, 0, 0, 0, 0, 0, 0, 0, 0, W, W, W, W, W, 0, 0,            /* 00 */
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,            /* 10 */
    W, P, P, P, S, P, P, P, P, P, P, S, P, P, P, P,            /* 20 */
    N, N, N, N, N, N, N, N, N, N, P, P, S, S, S, P,            /* 30 */
    P, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L,            /* 40 */
    L, L, L, L, L, L, L, L, L, L, L, P, P, P, S, P | UNI_WORD, /* 50 */
    S, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L,            /* 60 */
    L, L, L, L, L, L, L, L, L, L, L, P, S, P, S, 0,            /* 70 */
};
#undef L
#undef N
#undef P
#undef S
#undef W

/* The general category in utf8proc's numbering, newer characters included. */
static int unicode_category(uint32_t c) {
    int category = (int)utf8proc_category((utf8proc_int32_t)c);
    if (category != UTF8PROC_CATEGORY_CN)
        return category;
    size_t low = 0, high = NUM_COUNT(unicode_new);
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (c > unicode_new[mid].last)
            low = mid + 1;
        else
            high = mid;
    }
    return low < NUM_COUNT(unicode_new) && c >= unicode_new[low].first ? unicode_new[low].category : category;
}

int unicode_new_range(size_t i, uint32_t *first, uint32_t *last) {
    if (i >= NUM_COUNT(unicode_new))
        return -1;
    *first = unicode_new[i].first;
    *last = unicode_new[i].last;
    return unicode_new[i].category;
}

static bool is_space(uint32_t c) {
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
           c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

/* Characters of category So that have the property Alphabetic. */
static bool is_circled_letter(uint32_t c) {
    return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
           (c >= 0x1F170 && c <= 0x1F189);
}

unsigned unicode_class_wide(uint32_t c) {
    unsigned space = is_space(c) ? UNI_SPACE : 0;
    switch (unicode_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: return UNI_LETTER | UNI_WORD;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME: return UNI_MARK | UNI_WORD;
    case UTF8PROC_CATEGORY_ND: return UNI_NUMBER | UNI_DIGIT | UNI_WORD;
    case UTF8PROC_CATEGORY_NL: return UNI_NUMBER | UNI_WORD;
    case UTF8PROC_CATEGORY_NO: return UNI_NUMBER;
    case UTF8PROC_CATEGORY_PC: return UNI_PUNCT | UNI_WORD;
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO: return UNI_PUNCT;
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK: return UNI_SYMBOL;
    case UTF8PROC_CATEGORY_SO: return UNI_SYMBOL | (is_circled_letter(c) ? UNI_WORD : 0);
    default: return space;
    }
}

/* Bytes of the character that begins with s[0], if its other bytes are there and continue one; 0: they do
 * not. */
static size_t whole_length(const unsigned char *s, size_t n) {
    size_t length = utf8_length(s[0]);
    if (n < length)
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((s[i] & 0xC0) != 0x80)
            return 0;
    return length;
}

/* The ranges of the first two bytes follow table 3-7 of the Unicode standard. */
size_t utf8_check(const char *text, size_t n) {
    const unsigned char *s = (const unsigned char *)text;
    if (n == 0)
        return 0;
    if (s[0] < 0x80)
        return 1;
    if (s[0] < 0xC2 || s[0] > 0xF4)
        return 0;
    const size_t length = whole_length(s, n);
    if (!length)
        return 0;
    bool overlong = (s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xF0 && s[1] < 0x90);
    bool beyond = (s[0] == 0xED && s[1] > 0x9F) || (s[0] == 0xF4 && s[1] > 0x8F);
    return overlong || beyond ? 0 : length;
}

size_t utf8_check_shape(const char *text, size_t n, uint32_t *c) {
    const unsigned char *s = (const unsigned char *)text;
    if (n == 0 || (s[0] >= 0x80 && s[0] < 0xC0) || s[0] >= 0xF8)
        return 0;
    const size_t length = whole_length(s, n);
    if (length)
        *c = utf8_next(&text);
    return length;
}

bool utf8_unfinished(const char *text, size_t n) {
    char whole[4];
    if (n == 0 || n > 3 || (unsigned char)text[0] < 0xC2 || (unsigned char)text[0] > 0xF4)
        return false;
    size_t length = utf8_length((unsigned char)text[0]);
    if (n >= length)
        return false;
    /* Completes the character with bytes that are valid for all leads except those with restricted second
     * bytes: E0, F0, ED and F4 are handled separately. */
    unsigned char lead = (unsigned char)text[0];
    for (size_t i = 0; i < 4; i++)
        whole[i] = i < n ? text[i] : (char)0x80;
    if (n == 1 && (lead == 0xE0 || lead == 0xF0))
        whole[1] = (char)0xA0;
    return utf8_check(whole, length) == length;
}

size_t utf8_damaged(const char *s, size_t n) {
    size_t length = 1;
    while (length < 3 && length < n && utf8_unfinished(s, length + 1))
        length++;
    return length;
}

size_t utf8_valid_prefix(const char *s, size_t n) {
    size_t i = 0;
    while (i < n) {
        uint64_t eight;
        if (n - i >= 8) {
            __builtin_memcpy(&eight, s + i, 8);
            if (!(eight & 0x8080808080808080u)) {
                i += 8;
                continue;
            }
        }
        size_t length = utf8_check(s + i, n - i);
        if (!length)
            break;
        i += length;
    }
    return i;
}

size_t utf8_put(uint32_t c, char out[4]) {
    return (size_t)utf8proc_encode_char((utf8proc_int32_t)c, (utf8proc_uint8_t *)out);
}

static bool stands_for_itself(uint32_t b) {
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
}

uint32_t byte_to_char(unsigned char b) {
    if (stands_for_itself(b))
        return b;
    if (b <= 0x20) /* 00..20, then 7F..A0, then AD take U+0100 and on */
        return 0x100u + b;
    return b == 0xAD ? 0x143u : 0x121u + (b - 0x7Fu);
}

int char_to_byte(uint32_t c) {
    if (c < 0x100)
        return stands_for_itself(c) ? (int)c : -1;
    if (c <= 0x120)
        return (int)(c - 0x100);
    if (c <= 0x142)
        return (int)(c - 0x121 + 0x7F);
    return c == 0x143 ? 0xAD : -1;
}
