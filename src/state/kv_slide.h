/* kv_slide.h - the parts of a table's pages for layers with a window (kv_pool.h); used by kv_table.c only.
 *
 * A row at position p of such a layer reads positions above p - window. A table refers only to the parts of
 * the pages [first_part, n_part): those that its next row reads, and those that its pass writes. The parts
 * before them are dropped when the next pass begins. A shorter prefix is continued where its pages still have
 * their parts.
 *
 * Rows are stored and attended to at most KV_ROWS at a time (kernels.h), in the order of their positions. So
 * a quota of parts, for the window and KV_ROWS rows, is enough for a pass of any number of rows: when the
 * pool has no more, the part of the table's first page becomes that of its next one. In the view both pages
 * then have one address: an op has read the one when it stores the other. A part with other references is
 * copied before. Parts beyond the quota are taken when all tables of a pass have theirs, and dropped with
 * their content after the pass, so that other sequences find it. If several ops attend to such a layer
 * (kv_paging.read_again), no part is reused in a pass: kv_formats.rows, for which the pool has parts too, are
 * all that a pass may have.
 *
 * With a part for every page that is reserved there is no quota: different referenced parts have different
 * referenced pages. */
#ifndef NIB_STATE_KV_SLIDE_H
#define NIB_STATE_KV_SLIDE_H

#include "state/kv_table.h"

/* Most parts that a table of n_page pages needs, with those for kv_formats.kept; 0: no layer slides. */
int64_t kv_slide_quota(const kv_paging *p, int64_t n_page);
/* The largest position up to n at which the sequence can continue; the table refers to the parts that are
 * read from there on. */
int64_t kv_slide_keep(kv_table *t, int64_t n);
/* Drops the parts of pages from n_page on; the parts that no row from position n on reads. */
void kv_slide_cut(kv_table *t, int64_t n_page);
void kv_slide_drop(kv_table *t, int64_t n);
/* Takes the parts of the table's new pages, for a pass up to position `end`: up to its quota. kv_table_fill
 * takes the others. */
nib_status kv_slide_reach(kv_table *t, int64_t end, nib_error *err);
/* The table's last page, which begins at position `first`, gets its part, or a new one if its content can be
 * read. Returns the part whose content must be read; NULL: none. Earlier pages keep the parts that rows from
 * `first` on read. */
kv_page *kv_slide_load(kv_table *t, int64_t first, bool readable);
/* Replaces page i's part, which the table refers to. */
void kv_slide_replace(kv_table *t, int64_t i, kv_page *part);
/* How many of the first n_page pages another table can share, with their parts. */
int64_t kv_slide_shareable(const kv_table *t, int64_t n_page);

#endif
