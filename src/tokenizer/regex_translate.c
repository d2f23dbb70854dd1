/* regex_translate.c - see regex_translate.h. Differences of Oniguruma: \s is White_Space in Oniguruma (PCRE2
 * adds U+180E), \w includes marks and connectors, \h is a hexadecimal digit, \v one character, (?m) lets the
 * dot match a newline. References to groups and calls of groups are refused: no published tokenizer has them,
 * and their cost could not be bounded. Characters that are newer than PCRE2's tables are added to properties,
 * so that texts are cut in the same way everywhere. */
#include "tokenizer/regex_translate.h"
#include "tokenizer/normalize.h"
#include "tokenizer/unicode.h"

#include "base/num.h"

#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

#define SPACE                                                                                                \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{" \
    "3000}"
#define NOT_SPACE                                                                                            \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}" \
    "-\\x{2027}"                                                                                             \
    "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{d7ff}\\x{e000}-\\x{10ffff}"
#define CIRCLED "\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}"

typedef struct translation {
    const char *p, *end;
    text_buffer *out;
    nib_error *err;
} translation;

static nib_status put(translation *t, const char *text) {
    return text_append(t->out, text, strlen(text), t->err);
}

/* Oniguruma's long names of categories; a leading "+" marks a union of categories. */
static const struct {
    const char *name, *categories, *more;
} names[] = {
    {"Letter", "L", ""},
    {"Number", "N", ""},
    {"Mark", "M", ""},
    {"Punctuation", "P", ""},
    {"Symbol", "S", ""},
    {"Separator", "Z", ""},
    {"Digit", "Nd", ""},
    {"Alpha", "L M Nl", CIRCLED},
    {"Alnum", "L M Nl Nd", CIRCLED},
    {"Word", "L M Nl Nd Pc", CIRCLED},
    {"Space", "", SPACE},
    {"Upper", "Lu", ""},
    {"Lower", "Ll", ""},
    {"Punct", "P", "$+<=>^`|~"},
};

/* Adds the characters of a category that may be newer than the tables. Category names are in utf8proc's
 * order. */
static nib_status put_new(translation *t, const char *category) {
    static const char two[][3] = {"Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd",
                                  "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm",
                                  "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co"};
    bool han = strcmp(category, "Han") == 0;
    size_t n = strlen(category);
    if (n > 2 && !han)
        return NIB_OK;
    uint32_t first, last;
    int number;
    for (size_t i = 0; (number = unicode_new_range(i, &first, &last)) >= 0; i++) {
        bool wanted = han ? (first >= 0x2EBF0 && last <= 0x323AF && number == UTF8PROC_CATEGORY_LO)
                          : memcmp(two[number], category, n) == 0;
        char range[40];
        if (!wanted)
            continue;
        snprintf(range, sizeof range, "\\x{%x}-\\x{%x}", first, last);
        NIB_TRY(put(t, range));
    }
    return NIB_OK;
}

/* Writes the inside of a class for one category or script. */
static nib_status put_category(translation *t, const char *category, size_t n) {
    char name[64], property[80];
    snprintf(name, sizeof name, "%.*s", (int)NUM_MIN(n, sizeof name - 1), category);
    snprintf(property, sizeof property, "\\p{%s}", name);
    NIB_TRY(put(t, property));
    return put_new(t, name);
}

static nib_status put_named(translation *t, const char *name, size_t n) {
    for (size_t i = 0; i < NUM_COUNT(names); i++) {
        if (strlen(names[i].name) != n || strncasecmp(names[i].name, name, n) != 0)
            continue;
        for (const char *c = names[i].categories; *c;) {
            size_t length = strcspn(c, " ");
            NIB_TRY(put_category(t, c, length));
            c += length + (c[length] == ' ');
        }
        return put(t, names[i].more);
    }
    return put_category(t, name, n);
}

/* Writes a set as a class of its own, or into the current class. */
static nib_status put_set(translation *t, bool in_class, bool negative, const char *name, size_t n) {
    if (in_class && negative)
        return nib_fail(
            t->err, NIB_E_MODEL,
            "tokenizer: a negated property inside a class of a regular expression is not supported");
    if (!in_class)
        NIB_TRY(put(t, negative ? "[^" : "["));
    NIB_TRY(put_named(t, name, n));
    return in_class ? NIB_OK : put(t, "]");
}

static nib_status property(translation *t, bool in_class, bool negative) {
    const char *name = t->p, *end;
    if (t->p < t->end && *t->p == '{') {
        name++;
        end = memchr(name, '}', (size_t)(t->end - name));
        if (!end)
            return nib_fail(t->err, NIB_E_MODEL, "tokenizer: expected } after \\p{ in a regular expression");
        t->p = end + 1;
    } else {
        end = name + (t->p < t->end);
        t->p = end;
    }
    if (name < end && *name == '^') {
        negative = !negative;
        name++;
    }
    for (const char *c = name; c < end; c++)
        if (!((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || *c == '_' || (*c >= '0' && *c <= '9')))
            return nib_fail(t->err, NIB_E_MODEL,
                            "tokenizer: unknown property \\p{%.*s} in a regular expression",
                            (int)NUM_MIN(end - name, 40), name);
    if (in_class && negative) { /* uses PCRE2's own tables: only the newest characters may differ */
        NIB_TRY(put(t, "\\P{"));
        NIB_TRY(text_append(t->out, name, (size_t)(end - name), t->err));
        return put(t, "}");
    }
    return put_set(t, in_class, negative, name, (size_t)(end - name));
}

static nib_status boundary(translation *t, bool negative) {
    static const char *const part[2][5] = {{"(?:(?<=", ")(?!", ")|(?<!", ")(?=", "))"},
                                           {"(?:(?<=", ")(?=", ")|(?<!", ")(?!", "))"}};
    for (int i = 0; i < 5; i++) {
        NIB_TRY(put(t, part[negative][i]));
        if (i < 4)
            NIB_TRY(put_set(t, false, false, "Word", 4));
    }
    return NIB_OK;
}

static nib_status escape(translation *t, bool in_class) {
    if (t->p >= t->end)
        return nib_fail(t->err, NIB_E_MODEL,
                        "tokenizer: expected a character after the last backslash of a regular expression");
    char c = *t->p++;
    char plain[3] = {'\\', c, 0};
    switch (c) {
    case 'p': return property(t, in_class, false);
    case 'P': return property(t, in_class, true);
    case 's': return put(t, in_class ? SPACE : "[" SPACE "]");
    case 'S': return put(t, in_class ? NOT_SPACE : "[" NOT_SPACE "]");
    case 'd': return put_set(t, in_class, false, "Digit", 5);
    case 'w': return put_set(t, in_class, false, "Word", 4);
    case 'D': return in_class ? put(t, plain) : put_set(t, false, true, "Digit", 5);
    case 'W': return in_class ? put(t, plain) : put_set(t, false, true, "Word", 4);
    case 'h': return put(t, in_class ? "0-9a-fA-F" : "[0-9a-fA-F]");
    case 'H':
        return in_class ? nib_fail(t->err, NIB_E_MODEL,
                                   "tokenizer: \\H inside a class of a regular expression is not supported")
                        : put(t, "[^0-9a-fA-F]");
    case 'v': return put(t, "\\x{b}");
    case 'b': return in_class ? put(t, "\\x{8}") : boundary(t, false);
    case 'B': return boundary(t, true);
    case 'u': {
        char code[16];
        if (t->end - t->p < 4)
            return nib_fail(t->err, NIB_E_MODEL,
                            "tokenizer: expected four hexadecimal digits after \\u in a regular expression");
        snprintf(code, sizeof code, "\\x{%.4s}", t->p);
        t->p += 4;
        return put(t, code);
    }
    case 'C':
    case 'E':
    case 'K':
    case 'N':
    case 'Q':
    case 'g':
    case 'k':
        return nib_fail(t->err, NIB_E_MODEL, "tokenizer: \\%c in a regular expression is not supported", c);
    default: break;
    }
    if (c >= '1' && c <= '9')
        return nib_fail(t->err, NIB_E_MODEL,
                        "tokenizer: a back reference in a regular expression is not supported");
    NIB_TRY(text_append(t->out, plain, 1, t->err));
    return text_append(t->out, t->p - 1, 1, t->err);
}

/* Translates a class, from after '[' to after ']'. */
static nib_status class(translation *t) {
    NIB_TRY(put(t, "["));
    if (t->p < t->end && *t->p == '^') {
        NIB_TRY(put(t, "^"));
        t->p++;
    }
    for (bool first = true; t->p < t->end; first = false) {
        char c = *t->p++;
        if (c == ']' && !first)
            return put(t, "]");
        if (c == '[' && t->p < t->end && *t->p == ':') {
            const char *close = memmem(t->p, (size_t)(t->end - t->p), ":]", 2);
            if (!close)
                return nib_fail(t->err, NIB_E_MODEL,
                                "tokenizer: expected :] after [: in a regular expression");
            NIB_TRY(text_append(t->out, t->p - 1, (size_t)(close + 2 - t->p) + 1, t->err));
            t->p = close + 2;
            continue;
        }
        if (c == '[' || (c == '&' && t->p < t->end && *t->p == '&'))
            return nib_fail(t->err, NIB_E_MODEL,
                            "tokenizer: a class inside a class of a regular expression is not supported");
        if (c == '\\')
            NIB_TRY(escape(t, true));
        else
            NIB_TRY(text_append(t->out, &c, 1, t->err));
    }
    return nib_fail(t->err, NIB_E_MODEL, "tokenizer: expected ] after [ in a regular expression");
}

static bool starts_with(const translation *t, const char *text) {
    const size_t n = strlen(text);
    return (size_t)(t->end - t->p) >= n && memcmp(t->p, text, n) == 0;
}

/* Translates what follows "(?": a kind of group, or inline options (Ruby's m is PCRE2's s). Names of groups
 * are dropped, because nothing can refer to them. */
static nib_status group(translation *t) {
    static const char *const kinds[] = {":", "=", "!", ">", "<=", "<!", "#"};
    for (size_t i = 0; i < NUM_COUNT(kinds); i++)
        if (starts_with(t, kinds[i]))
            return NIB_OK;
    const char *p = t->p;
    while (p < t->end && *p && strchr("imx-", *p))
        p++;
    if (p == t->p || p >= t->end || (*p != ':' && *p != ')'))
        return nib_fail(t->err, NIB_E_MODEL, "tokenizer: (?%.*s in a regular expression is not supported",
                        (int)NUM_MIN(t->end - t->p, 1), t->p);
    for (; t->p < p; t->p++)
        NIB_TRY(put(t, *t->p == 'm' ? "s" : *t->p == 'i' ? "i" : *t->p == 'x' ? "x" : "-"));
    return NIB_OK;
}

/* Translates what follows '('. */
static nib_status parenthesis(translation *t) {
    if (starts_with(t, "*"))
        return nib_fail(t->err, NIB_E_MODEL, "tokenizer: (* in a regular expression is not supported");
    if (!starts_with(t, "?"))
        return NIB_OK;
    t->p++;
    NIB_TRY(put(t, "?"));
    return group(t);
}

nib_status regex_translate(const char *pattern, size_t n_byte, text_buffer *out, nib_error *err) {
    translation t = {pattern, pattern + n_byte, out, err};
    if (utf8_valid_prefix(pattern, n_byte) != n_byte)
        return nib_fail(err, NIB_E_MODEL, "tokenizer: expected a regular expression in valid UTF-8");
    while (t.p < t.end) {
        char c = *t.p++;
        if (c == '\\') {
            NIB_TRY(escape(&t, false));
        } else if (c == '[') {
            NIB_TRY(class(&t));
        } else {
            NIB_TRY(text_append(out, &c, 1, err));
            if (c == '(')
                NIB_TRY(parenthesis(&t));
        }
    }
    return text_append(out, "", 0, err);
}
