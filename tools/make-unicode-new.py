#!/usr/bin/env python3
"""Writes src/tokenizer/unicode_new.h: general categories of the characters that Unicode 16 has and 14 has not.

Needs the PyPI package unicodedata2==16.0.0 and a Python whose own unicodedata is Unicode 14 (3.11)."""
import unicodedata
import unicodedata2

assert unicodedata2.unidata_version == "16.0.0" and unicodedata.unidata_version == "14.0.0"
rows = []
for c in range(0x110000):
    category = unicodedata2.category(chr(c))
    if unicodedata.category(chr(c)) != "Cn" or category == "Cn":
        continue
    if rows and rows[-1][1] == c - 1 and rows[-1][2] == category:
        rows[-1][1] = c
    else:
        rows.append([c, c, category])

print("""/* unicode_new.h - made by tools/make-unicode-new.py: characters of Unicode 15 to 16, for systems whose
 * utf8proc or PCRE2 is older. Data of the Unicode Character Database, in order. */
#ifndef NIB_TEXT_UNICODE_NEW_H
#define NIB_TEXT_UNICODE_NEW_H

#include <stdint.h>
#include <utf8proc.h>

static const struct unicode_range {
    uint32_t first, last;
    int category;
} unicode_new[] = {""")
for first, last, category in rows:
    print("    {0x%04X, 0x%04X, UTF8PROC_CATEGORY_%s}," % (first, last, category.upper()))
print("""};

#endif""")
