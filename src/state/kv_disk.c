/* kv_disk.c - the names of page files, and reading them; see kv_disk.h. */
#include "state/kv_disk_parts.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
    TOKENS_AT_A_TIME = 1024,
    USE_MS = 1000 /* pages that are read within this time belong to one prefix */
};

/* ---- names and heads ---- */

void kv_disk_name(const kv_disk *d, const int32_t *tokens, int64_t first, bool tail, char out[KV_DISK_NAME]) {
    const uint64_t *key = d->options.key;
    const int64_t n = tail ? first : first + KV_BLOCK;
    const XXH128_hash_t h = XXH3_128bits_withSeed(tokens, (size_t)n * sizeof *tokens, key[1]);
    snprintf(out, KV_DISK_NAME, "%016llx-%016llx%016llx%s" KV_DISK_SUFFIX, (unsigned long long)key[0],
             (unsigned long long)h.high64, (unsigned long long)h.low64, tail ? "t" : "");
}

static kv_disk_head head_without_hash(const kv_disk *d, uint64_t page_bytes, uint64_t n_token) {
    return (kv_disk_head){.magic = "NIBKV01",
                          .key = {d->options.key[0], d->options.key[1]},
                          .page_bytes = page_bytes,
                          .n_token = n_token};
}

static void begin_hash(XXH3_state_t *h, const kv_disk_head *head) {
    XXH3_64bits_reset(h);
    XXH3_64bits_update(h, head, offsetof(kv_disk_head, hash));
}

kv_disk_head kv_disk_head_of(const kv_disk *d, uint64_t page_bytes, const int32_t *tokens, int64_t n) {
    kv_disk_head head = head_without_hash(d, page_bytes, (uint64_t)n);
    XXH3_state_t h;
    begin_hash(&h, &head);
    XXH3_64bits_update(&h, tokens, (size_t)n * sizeof *tokens);
    head.hash = XXH3_64bits_digest(&h);
    return head;
}

/* ---- reading ---- */

static void note_damage(kv_disk *d, const char *path, const char *what) {
    log_line(&d->options.log, "%s: %s; it is removed", path, what);
    (void)unlink(path);
    pthread_mutex_lock(&d->lock);
    d->counts.n_damaged++;
    pthread_mutex_unlock(&d->lock);
}

/* Compares the file's tokens with those of the sequence. Returns NULL, or what is wrong. *n_same: number of
 * the page's own tokens that agree; -1: the page belongs to another sequence. */
static const char *check_tokens(file *f, const kv_disk_head *head, const int32_t *tokens, int64_t first,
                                int64_t n, int64_t *n_same) {
    int32_t piece[TOKENS_AT_A_TIME];
    const int64_t n_token = (int64_t)head->n_token;
    int64_t same = 0;
    XXH3_state_t h;
    begin_hash(&h, head);
    for (int64_t at = 0, m; at < n_token; at += m) {
        m = NUM_MIN(n_token - at, (int64_t)TOKENS_AT_A_TIME);
        if (file_read_at(f, piece, sizeof *head + (uint64_t)at * sizeof *piece, (uint64_t)m * sizeof *piece,
                         NULL))
            return "it cannot be read";
        XXH3_64bits_update(&h, piece, (size_t)m * sizeof *piece);
        for (int64_t i = 0; i < m && same == at + i && same < n; i++)
            same += piece[i] == tokens[at + i];
    }
    if (XXH3_64bits_digest(&h) != head->hash)
        return "its tokens are damaged";
    *n_same = same < first ? -1 : same - first;
    return NULL;
}

/* Returns NULL, or what is wrong with the file. */
static const char *check_file(kv_disk *d, file *f, const int32_t *tokens, int64_t first, int64_t n,
                              int64_t *n_same) {
    kv_disk_head head;
    *n_same = -1;
    if (file_size(f) < sizeof head || file_read_at(f, &head, 0, sizeof head, NULL))
        return "it has no head";
    const bool part = head.page_bytes == d->page_bytes;
    d->found_bytes = part ? d->page_bytes : d->page_bytes - d->part_bytes;
    const kv_disk_head want = head_without_hash(d, d->found_bytes, head.n_token);
    if (memcmp(&head, &want, offsetof(kv_disk_head, hash)) != 0)
        return "made by another version, or damaged";
    if (head.n_token <= (uint64_t)first || head.n_token - (uint64_t)first > KV_BLOCK)
        return "it has another number of tokens";
    const uint64_t at = sizeof head + head.n_token * sizeof *tokens;
    if (file_size(f) != at + d->found_bytes + sizeof(uint64_t))
        return "it has another size";
    d->found_at = at;
    return check_tokens(f, &head, tokens, first, n, n_same);
}

static bool find_file(kv_disk *d, const int32_t *tokens, int64_t first, int64_t n, int64_t n_min, bool tail,
                      int64_t *n_same) {
    char name[KV_DISK_NAME];
    kv_disk_name(d, tokens, first, tail, name);
    char *path = path_join(d->folder, name);
    if (!path || file_open(path, 0, &d->found, NULL) != NIB_OK) {
        mem_free(path);
        return false;
    }
    const char *wrong = check_file(d, d->found, tokens, first, n, n_same);
    if (wrong)
        note_damage(d, path, wrong);
    if (!wrong && *n_same > n_min) {
        d->path = path;
        d->found_page = first / KV_BLOCK;
        return true;
    }
    file_close(d->found);
    d->found = NULL;
    mem_free(path);
    return false;
}

bool kv_disk_find(kv_disk *d, const int32_t *tokens, int64_t first, int64_t n, int64_t n_min,
                  int64_t *n_same) {
    const bool whole = kv_formats_any_coded(kv_pool_paging(d->pool)->formats);
    const int64_t now = kv_disk_now();
    if (first == 0 || now - d->found_begun > USE_MS)
        d->found_begun = now;
    return (n - first >= KV_BLOCK && find_file(d, tokens, first, n, n_min, false, n_same)) ||
           (!whole && find_file(d, tokens, first, n, n_min, true, n_same));
}

int64_t kv_disk_begin(kv_disk *d, int64_t n) {
    if (!d->staged[0])
        return n;
    d->n_staged = 0;
    return d->options.settle(d->options.user, d->pool, NULL) == NIB_OK ? NUM_MIN(n, KV_DISK_STAGED) : 0;
}

/* Reads the memory of a page, or of its part, which begins at byte `at` of the page on disk. */
static bool read_memory(kv_disk *d, void *to, uint64_t at, uint64_t n, XXH3_state_t *h) {
    if (n == 0)
        return true;
    const bool read = file_read_at(d->found, to, d->found_at + at, n, NULL) == NIB_OK;
    if (read)
        XXH3_64bits_update(h, to, (size_t)n);
    return read;
}

bool kv_disk_has_part(const kv_disk *d) {
    return d->part_bytes > 0 && d->found_bytes == d->page_bytes;
}

bool kv_disk_read(kv_disk *d, kv_page *page, kv_page *part) {
    const kv_page *staged = d->staged[0] ? d->staged[d->n_staged++] : NULL;
    const uint64_t in_part = part && !staged ? d->part_bytes : 0, n = d->found_bytes - in_part;
    uint64_t sum = 0;
    XXH3_state_t h;
    XXH3_64bits_reset(&h);
    const bool good =
        read_memory(d, kv_page_at(staged ? staged : page), 0, n, &h) &&
        read_memory(d, part ? kv_page_at(part) : NULL, n, in_part, &h) &&
        file_read_at(d->found, &sum, d->found_at + d->found_bytes, sizeof sum, NULL) == NIB_OK &&
        sum == XXH3_64bits_digest(&h);
    if (!good) {
        note_damage(d, d->path, "its keys and values are damaged");
    } else {
        kv_disk_note_use(d->path, d->found_begun, d->found_page);
        pthread_mutex_lock(&d->lock);
        d->counts.n_read++;
        pthread_mutex_unlock(&d->lock);
    }
    file_close(d->found);
    mem_free(d->path);
    d->found = NULL;
    d->path = NULL;
    return good && (!staged || (kv_pool_put(d->pool, page, staged) &&
                                (!part || kv_pool_put_part(d->pool, page, staged))));
}

/* ---- an open folder ---- */

static nib_status take_memory(kv_disk *d, nib_error *err) {
    const uint64_t tokens = (uint64_t)d->options.n_ctx * sizeof(int32_t);
    const uint64_t bytes = KV_DISK_PIECE + (KV_DISK_WAITING + 1) * tokens;
    NIB_TRY(ledger_charge(d->ledger, PLACE_RAM, NIB_OWNER_STAGING, bytes, err));
    d->charged = bytes;
    d->piece = mem_alloc(KV_DISK_PIECE);
    bool taken = d->piece && (d->now.tokens = mem_alloc((size_t)tokens));
    for (int i = 0; i < KV_DISK_WAITING && taken; i++)
        taken = (d->waiting[i].tokens = mem_alloc((size_t)tokens)) != NULL;
    return taken ? NIB_OK : nib_fail_nomem(err, (size_t)bytes, "the keys and values to be written");
}

/* Pages in RAM to read into, if the host cannot read the device. */
static nib_status take_pages(kv_disk *d, nib_error *err) {
    for (int i = 0; i < KV_DISK_STAGED && !kv_pool_host_reads(d->pool); i++) {
        d->staged[i] = kv_pool_take_in_ram(d->pool);
        if (!d->staged[i])
            return nib_fail(err, NIB_E_NOFIT,
                            "keys and values on disk: expected space for %d pages in RAM, found %d",
                            KV_DISK_STAGED, i);
    }
    return NIB_OK;
}

static nib_status open_all(kv_disk *d, const kv_disk_options *o, nib_error *err) {
    d->folder = mem_strdup(o->folder);
    if (!d->folder)
        return nib_fail_nomem(err, strlen(o->folder), "a path");
    d->quota = (kv_disk_quota){.folder = d->folder, .ledger = d->ledger, .max = o->max};
    NIB_TRY(take_memory(d, err));
    NIB_TRY(take_pages(d, err));
    NIB_TRY(kv_disk_quota_open(&d->quota, err));
    d->counts.bytes = d->quota.total;
    if (pthread_create(&d->thread, NULL, kv_disk_writes, d))
        return nib_fail(err, NIB_E_FAILED, "the system gave no thread for writing keys and values");
    d->runs = true;
    return NIB_OK;
}

nib_status kv_disk_open(const kv_disk_options *o, kv_pool *pool, ledger *l, kv_disk **out, nib_error *err) {
    kv_disk *d = mem_calloc(1, sizeof *d);
    if (!d)
        return nib_fail_nomem(err, sizeof *d, "keys and values on disk");
    d->options = *o;
    d->pool = pool;
    d->ledger = l;
    d->page_bytes = kv_pool_page_bytes(pool);
    d->part_bytes = kv_pool_paging(pool)->part_bytes;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->changed, NULL);
    const nib_status status = open_all(d, o, err);
    if (status == NIB_OK)
        *out = d;
    else
        kv_disk_close(d);
    return status;
}

void kv_disk_close(kv_disk *d) {
    if (!d)
        return;
    if (d->runs) {
        pthread_mutex_lock(&d->lock);
        d->ends = true;
        pthread_cond_broadcast(&d->changed);
        pthread_mutex_unlock(&d->lock);
        pthread_join(d->thread, NULL);
    }
    kv_disk_quota_close(&d->quota);
    for (int i = 0; i < KV_DISK_STAGED && d->staged[i]; i++)
        kv_pool_drop(d->pool, d->staged[i]);
    ledger_release(d->ledger, PLACE_RAM, NIB_OWNER_STAGING, d->charged);
    for (int i = 0; i < KV_DISK_WAITING; i++)
        mem_free(d->waiting[i].tokens);
    mem_free(d->now.tokens);
    mem_free(d->piece);
    mem_free(d->folder);
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->lock);
    mem_free(d);
}

void kv_disk_save(kv_disk *d, const int32_t *tokens, int64_t n_prompt, int64_t first, int64_t n, bool tails) {
    first = first / KV_BLOCK * KV_BLOCK;
    if (!tails && n < first + KV_BLOCK)
        return;
    pthread_mutex_lock(&d->lock);
    if (d->n_waiting == KV_DISK_WAITING) {
        d->counts.n_missed += (uint64_t)num_div_up(n - first, KV_BLOCK);
    } else {
        kv_disk_task *t = &d->waiting[d->n_waiting++];
        memcpy(t->tokens, tokens, (size_t)n * sizeof *tokens);
        t->n_prompt = n_prompt;
        t->first = first;
        t->n = n;
        t->tails = tails;
        t->begun = kv_disk_now();
        pthread_cond_broadcast(&d->changed);
    }
    pthread_mutex_unlock(&d->lock);
}

void kv_disk_count(kv_disk *d, kv_disk_counts *out) {
    pthread_mutex_lock(&d->lock);
    *out = d->counts;
    pthread_mutex_unlock(&d->lock);
}
