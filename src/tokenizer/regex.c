/* regex.c - see regex.h. The translation is in regex_translate.c. PCRE2's own match limit counts neither the
 * characters that an item consumes ([^x]+ may consume the whole text from each position) nor the positions at
 * which a match is tried. So PCRE2 makes a callout before each item, and the callout charges units of work
 * for the call and for the characters since the last one. The match limit is only a second safeguard. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "tokenizer/regex.h"
#include "tokenizer/regex_translate.h"

#include "base/mem.h"
#include "base/num.h"

#include <string.h>

/* Steps of a callout: it takes as long as about a dozen characters. */
#define CALLOUT_UNITS 16
/* Memory for backtracking. Compiled code has its own stack; if that is too small, the interpreter takes over,
 * with memory from the heap. */
#define JIT_STACK_FIRST ((size_t)32 << 10)
#define MAX_JIT_STACK   ((size_t)1 << 20)
#define HEAP_LIMIT_KIB  65536u
/* Four times the longest published pattern; a class of this length still takes only a step or two. */
#define MAX_PATTERN 4096u

struct regex {
    pcre2_code *code;
};

static void *pcre_alloc(size_t n_byte, void *user) {
    (void)user;
    return mem_alloc(n_byte);
}

static void pcre_free(void *p, void *user) {
    (void)user;
    mem_free(p);
}

static nib_status compile(const text_buffer *translated, const char *shown, regex *r, nib_error *err) {
    pcre2_general_context *general = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    pcre2_compile_context *context = general ? pcre2_compile_context_create(general) : NULL;
    nib_status status = NIB_OK;
    if (!context) {
        status = nib_fail_nomem(err, translated->n, "a regular expression");
    } else {
        int code;
        PCRE2_SIZE at;
        pcre2_set_newline(context, PCRE2_NEWLINE_LF);
        r->code = pcre2_compile((PCRE2_SPTR)translated->data, translated->n,
                                PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C |
                                    PCRE2_NO_AUTO_CAPTURE | PCRE2_AUTO_CALLOUT,
                                &code, &at, context);
        if (!r->code && code == PCRE2_ERROR_HEAP_FAILED) {
            status = nib_fail_nomem(err, translated->n, "a regular expression");
        } else if (!r->code) {
            PCRE2_UCHAR message[128] = "";
            pcre2_get_error_message(code, message, sizeof message);
            status = nib_fail(err, NIB_E_MODEL, "tokenizer: regular expression '%.200s': %s", shown,
                              (char *)message);
        } else {
            pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE); /* without JIT support the interpreter is used */
        }
    }
    pcre2_compile_context_free(context);
    pcre2_general_context_free(general);
    return status;
}

nib_status regex_open(const char *pattern, size_t n_byte, regex **out, nib_error *err) {
    if (n_byte > MAX_PATTERN)
        return nib_fail(err, NIB_E_MODEL,
                        "tokenizer: expected a regular expression of at most %u bytes, found %zu",
                        MAX_PATTERN, n_byte);
    text_buffer translated = {0};
    regex *r = mem_calloc(1, sizeof *r);
    nib_status status = r ? regex_translate(pattern, n_byte, &translated, err)
                          : nib_fail_nomem(err, sizeof *r, "a regular expression");
    if (status == NIB_OK)
        status = compile(&translated, pattern, r, err);
    text_buffer_clear(&translated);
    if (status != NIB_OK) {
        regex_close(r);
        return status;
    }
    *out = r;
    return NIB_OK;
}

void regex_close(regex *r) {
    if (r)
        pcre2_code_free(r->code);
    mem_free(r);
}

size_t regex_heap_bytes(const regex *r) {
    size_t code = 0, jit = 0;
    pcre2_pattern_info(r->code, PCRE2_INFO_SIZE, &code);
    pcre2_pattern_info(r->code, PCRE2_INFO_JITSIZE, &jit);
    return sizeof *r + code + jit;
}

void regex_run_deinit(regex_run *run) {
    pcre2_match_data_free(run->data);
    pcre2_match_context_free(run->context);
    pcre2_jit_stack_free(run->stack);
    *run = (regex_run){.work = run->work};
}

static int take_units(pcre2_callout_block *block, void *user) {
    regex_run *run = user;
    const size_t now = block->current_position;
    const size_t passed = now > run->last ? now - run->last : run->last - now;
    run->last = now;
    return work_take(run->work, CALLOUT_UNITS + passed) ? 0 : PCRE2_ERROR_CALLOUT;
}

static nib_status run_init(regex_run *run, nib_error *err) {
    if (run->stack)
        return NIB_OK;
    regex_run_deinit(run);
    pcre2_general_context *general = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    if (general) {
        run->data = pcre2_match_data_create(1, general);
        run->context = pcre2_match_context_create(general);
        run->stack = pcre2_jit_stack_create(JIT_STACK_FIRST, MAX_JIT_STACK, general);
    }
    pcre2_general_context_free(general);
    if (!run->data || !run->context || !run->stack) {
        regex_run_deinit(run);
        return nib_fail_nomem(err, JIT_STACK_FIRST, "a regular expression's working memory");
    }
    pcre2_set_callout(run->context, take_units, run);
    pcre2_set_heap_limit(run->context, HEAP_LIMIT_KIB);
    pcre2_jit_stack_assign(run->context, NULL, run->stack);
    return NIB_OK;
}

/* Returns PCRE2's result code; run->data has the match. */
static int match(const regex *r, regex_run *run, const char *text, size_t n_byte, size_t from) {
    run->last = from;
    pcre2_set_match_limit(run->context, (uint32_t)NUM_MIN(run->work->left, UINT32_MAX));
    int code =
        pcre2_match(r->code, (PCRE2_SPTR)text, n_byte, from, PCRE2_NO_UTF_CHECK, run->data, run->context);
    if (code == PCRE2_ERROR_JIT_STACKLIMIT)
        code = pcre2_match(r->code, (PCRE2_SPTR)text, n_byte, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                           run->data, run->context);
    return code;
}

static nib_status match_failed(const regex_run *run, int code, nib_error *err) {
    PCRE2_UCHAR message[128] = "";
    if (code == PCRE2_ERROR_NOMEMORY)
        return nib_fail_nomem(err, HEAP_LIMIT_KIB, "matching a regular expression");
    if (code == PCRE2_ERROR_CALLOUT || code == PCRE2_ERROR_MATCHLIMIT)
        return work_over(run->work, "its regular expression", err);
    pcre2_get_error_message(code, message, sizeof message);
    return nib_fail(err, NIB_E_MODEL, "matching a regular expression: %s", (char *)message);
}

nib_status regex_find(const regex *r, regex_run *run, const char *text, size_t n_byte, size_t from,
                      size_t not_empty_at, bool *found, size_t *begin, size_t *end, nib_error *err) {
    NIB_TRY(run_init(run, err));
    *found = false;
    for (;;) {
        int code = match(r, run, text, n_byte, from);
        if (code == PCRE2_ERROR_NOMATCH)
            return NIB_OK;
        if (code < 0)
            return match_failed(run, code, err);
        const PCRE2_SIZE *pair = pcre2_get_ovector_pointer(run->data);
        *begin = pair[0];
        *end = pair[1] < pair[0] ? pair[0] : pair[1]; /* \K in a lookahead can reverse them */
        if (*end > *begin || *begin != not_empty_at) {
            *found = true;
            return NIB_OK;
        }
        if (from >= n_byte)
            return NIB_OK;
        from = *begin; /* an empty match right after the last one: search from the next character */
        if (from >= n_byte)
            return NIB_OK;
        do
            from++;
        while (from < n_byte && ((unsigned char)text[from] & 0xC0) == 0x80);
    }
}
