/* residual_reader.c - see residual_reader.h. */
#include "exec/residual_reader.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/read_queue.h"
#include "base/thread.h"

#include <string.h>

enum {
    BLOCK = 64,  /* outputs that are whole bytes, and whole groups of codes, for any width of codes */
    PIECE = 256, /* minimum bytes of a channel in one read, if the piece has as many */
    GAP = 256,   /* bytes between two channels that take less time to read than a second read */
    MIN_BYTES = 256 << 10,
    UNIT = 16, /* alignment of codes in the buffer */
    WORD = 64
};

struct residual_reader {
    file *f;
    read_queue *queue;
    uint8_t *buffer;
    uint64_t n_buffer;
    int32_t *offset; /* [k]: offset of a chosen channel's codes in the buffer, in units of UNIT bytes */
    uint64_t *words; /* a bit for each of k channels: some row of the piece has chosen it */
    salient *local;  /* [n_channel] */
    int64_t n_word;
    int idle[MAX_READ_QUEUE], n_idle;
    residual_piece now;
    /* Offset in the file of the piece's bytes of channel 0; bytes from one channel to the next. */
    uint64_t at, step;
    uint64_t n_byte, used; /* bytes of each channel; used bytes of the buffer */
    int64_t next;          /* the first channel that is not requested yet */
    nib_status status;     /* status of the piece's reads, the first error */
    nib_error why;
    residual_read count;
};

/* ---- memory ---- */

static uint64_t buffer_bytes(int64_t n_channel) {
    return NUM_MAX((uint64_t)n_channel * (PIECE + GAP), (uint64_t)MIN_BYTES);
}
static int64_t words_of(int64_t k) {
    return num_div_up(k, WORD);
}
static uint64_t take(uint64_t *at, uint64_t n_byte) {
    const uint64_t begin = *at;
    *at = (begin + n_byte + WORD - 1) / WORD * WORD;
    return begin;
}

uint64_t residual_reader_bytes(int64_t n_channel, int64_t k) {
    uint64_t at = 0;
    take(&at, buffer_bytes(n_channel));
    take(&at, (uint64_t)k * sizeof(int32_t));
    take(&at, (uint64_t)words_of(k) * sizeof(uint64_t));
    take(&at, (uint64_t)n_channel * sizeof(salient));
    return at;
}

nib_status residual_reader_open(file *f, void *memory, int64_t n_channel, int64_t k, residual_reader **out,
                                nib_error *err) {
    uint64_t at = 0;
    uint8_t *of = memory;
    residual_reader *r = mem_calloc(1, sizeof *r);
    if (!r)
        return nib_fail_nomem(err, sizeof *r, "the reader of residuals");
    r->f = f;
    r->n_buffer = buffer_bytes(n_channel);
    r->buffer = of + take(&at, r->n_buffer);
    r->offset = (int32_t *)(void *)(of + take(&at, (uint64_t)k * sizeof(int32_t)));
    r->n_word = words_of(k);
    r->words = (uint64_t *)(void *)(of + take(&at, (uint64_t)r->n_word * sizeof(uint64_t)));
    r->local = (salient *)(void *)(of + take(&at, (uint64_t)n_channel * sizeof(salient)));
    for (; r->n_idle < MAX_READ_QUEUE; r->n_idle++)
        r->idle[r->n_idle] = r->n_idle;
    const nib_status status = read_queue_open(MAX_READ_QUEUE, 0, r->buffer, r->n_buffer, &r->queue, err);
    if (status != NIB_OK) {
        mem_free(r);
        return status;
    }
    *out = r;
    return NIB_OK;
}

void residual_reader_close(residual_reader *r) {
    if (!r)
        return;
    read_queue_close(r->queue);
    mem_free(r);
}

/* ---- channels and outputs of a piece ---- */

/* Adds a row's channels to the piece, if it then has at most `max_channels`. Returns whether it was added. */
static bool add_row(residual_reader *r, const residual_rows *rows, int64_t row, int64_t max_channels,
                    int64_t *n) {
    const salient *chosen = rows->chosen + row * rows->max_chosen;
    int64_t fresh = 0;
    for (int32_t i = 0; i < rows->n_chosen[row]; i++)
        fresh += !(r->words[chosen[i].at / WORD] >> chosen[i].at % WORD & 1);
    if (*n > 0 && *n + fresh > max_channels)
        return false;
    *n += fresh;
    for (int32_t i = 0; i < rows->n_chosen[row]; i++)
        r->words[chosen[i].at / WORD] |= UINT64_C(1) << chosen[i].at % WORD;
    return true;
}

/* The bytes of each channel in a piece: for one row, as many as fit the buffer; for several rows PIECE, so
 * that more rows share their reads. */
static int64_t bytes_each(const residual_reader *r, const residual_rows *rows, int64_t row) {
    const int64_t n = NUM_MAX(rows->n_chosen[row], 1);
    if (rows->n_row > 1)
        return PIECE;
    return NUM_MAX((int64_t)PIECE, ((int64_t)r->n_buffer / n - GAP) / PIECE * PIECE);
}

/* ---- reads ---- */

static void finish_one(residual_reader *r) {
    nib_error why;
    int tag;
    const bool waits = !read_queue_ready(r->queue);
    const double start = waits ? time_now() : 0;
    const nib_status status = read_queue_wait(r->queue, &tag, &why);
    if (waits)
        r->count.wait_s += time_now() - start;
    if (status != NIB_OK && r->status == NIB_OK) {
        r->status = status;
        r->why = why;
    }
    r->idle[r->n_idle++] = tag;
}

/* The first chosen channel from `from` on; -1: there is none. */
static int64_t next_channel(const residual_reader *r, int64_t from) {
    int64_t i = from / WORD;
    uint64_t word = i < r->n_word ? r->words[i] >> from % WORD << from % WORD : 0;
    while (word == 0 && ++i < r->n_word)
        word = r->words[i];
    return word ? i * WORD + __builtin_ctzll(word) : -1;
}

/* Submits one read of channel c and the next chosen channels that are close to it. */
static void read_neighbours(residual_reader *r, int64_t c) {
    const uint64_t begin = r->at + (uint64_t)c * r->step;
    uint64_t end = begin;
    for (; c >= 0 && r->at + (uint64_t)c * r->step <= end + (end > begin ? GAP : 0);
         c = next_channel(r, c + 1)) {
        const uint64_t at = r->at + (uint64_t)c * r->step;
        r->offset[c] = (int32_t)((r->used + (at - begin)) / UNIT);
        end = at + r->n_byte;
        r->next = c + 1;
    }
    const read_request what = {r->f, r->buffer + r->used, begin, end - begin, end - begin};
    read_queue_submit(r->queue, r->idle[--r->n_idle], &what);
    r->used += end - begin;
    r->count.n++;
    r->count.n_byte += end - begin;
}

/* Submits reads until the queue is full. all: also submits all others, as reads finish. */
static void read_on(residual_reader *r, bool all) {
    for (int64_t c; (c = next_channel(r, r->next)) >= 0;) {
        if (r->n_idle == 0 && !all)
            break;
        if (r->n_idle == 0)
            finish_one(r);
        read_neighbours(r, c);
    }
    read_queue_send(r->queue);
}

void residual_reader_request(residual_reader *r, const residual_rows *rows, int64_t row, int64_t n0,
                             int64_t n1) {
    const residual *of = rows->of;
    const int64_t each = bytes_each(r, rows, row),
                  max_channels = (int64_t)(r->n_buffer / (uint64_t)(each + GAP));
    const int64_t base = n0 - n0 % BLOCK, first = base * of->bits / 8;
    residual_piece *p = &r->now;
    int64_t n = 0;
    memset(r->words, 0, (size_t)r->n_word * sizeof *r->words);
    *p = (residual_piece){row, row, n0, NUM_MIN(base + each * 8 / of->bits, n1), base, {0}};
    while (p->end_row < rows->n_row && add_row(r, rows, p->end_row, max_channels, &n))
        p->end_row++;
    r->n_byte =
        (uint64_t)NUM_MIN(num_round_up(p->end - base, (int64_t)BLOCK) * of->bits / 8, of->step - first);
    p->part = (residual){.bits = of->bits,
                         .n = p->end - base,
                         .k = (int64_t)(r->n_buffer / UNIT),
                         .step = UNIT,
                         .rows = r->buffer,
                         .scale = of->scale + base};
    r->at = rows->at + (uint64_t)first;
    r->step = (uint64_t)of->step;
    r->used = 0;
    r->next = 0;
    r->status = NIB_OK;
    read_on(r, false);
}

nib_status residual_reader_wait(residual_reader *r, residual_piece *out, nib_error *err) {
    read_on(r, true);
    while (r->n_idle < MAX_READ_QUEUE)
        finish_one(r);
    *out = r->now;
    if (r->status != NIB_OK && err)
        *err = r->why;
    return r->status;
}

const salient *residual_reader_local(residual_reader *r, const salient *chosen, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        r->local[i] = (salient){r->offset[chosen[i].at], chosen[i].x};
    return r->local;
}

void residual_reader_count(const residual_reader *r, residual_read *sum) {
    sum->n += r->count.n;
    sum->n_byte += r->count.n_byte;
    sum->wait_s += r->count.wait_s;
}
