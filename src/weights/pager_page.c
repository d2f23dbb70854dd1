/* pager_page.c - the jobs of loading one page, from the packed file or from the model's own.
 */
#include "weights/pager_parts.h"

#include "base/num.h"

uint64_t pager_job_bytes(const load_job *j) {
    if (!j->w)
        return j->in_runs ? j->span.useful : j->bytes.n_byte;
    return loader_row_bytes(j->w) * (uint64_t)j->n_row;
}

load_job pager_unit_job(const pager *p, uint64_t image, uint64_t n_byte, uint64_t unit, uint8_t *dst) {
    uint64_t begin;
    file *f = packed_image(p->packed, &begin);
    return (load_job){
        .to = {.dst = dst}, .bytes = {f, begin + image, n_byte, n_byte}, .unit = unit, .n_unit = 1};
}

/* A job with the rows of w from `row` on that fit one read, at most up to `end`. */
static load_job rows_job(const weight *w, int64_t row, int64_t end, const load_buffer *buffer) {
    return (load_job){.w = w, .first = row, .n_row = NUM_MIN(end - row, loader_rows_at_once(w, buffer))};
}

/* The destination at this offset of the page; NULL if the caller only lists jobs. */
static uint8_t *in_page(const page_jobs *l, uint64_t offset) {
    return l->dst ? l->dst + offset : NULL;
}

bool pager_page_next(const pager *p, page_jobs *l, const load_buffer *buffer, load_job *out) {
    const page_layout *lay = &p->layout;
    const weight_page *page = &lay->pages[l->page];
    if (p->packed) {
        if (l->given)
            return false;
        l->given = true;
        *out = pager_unit_job(p, page->image, page->bytes, page_layout_vector_units(lay) + (uint64_t)l->page,
                              l->dst);
        return true;
    }
    if (page->w >= 0) {
        if (l->row == page->n_row)
            return false;
        const weight *w = pager_weight(p, page->block, page->w);
        *out = rows_job(w, page->first_row + l->row, page->first_row + page->n_row, buffer);
        out->to = (load_target){l->dst, page->n_row, l->row};
        l->row += out->n_row;
        return true;
    }
    const block *blk = layout_block(p->layout.of, page->block);
    const weight_place *places = lay->places + lay->first_weight[page->block];
    while (l->i < blk->n_weight && (places[l->i].n_page == 0 || places[l->i].first_page != l->page ||
                                    l->row == blk->weights[l->i].n)) {
        l->i++;
        l->row = 0;
    }
    if (l->i == blk->n_weight)
        return false;
    *out = rows_job(&blk->weights[l->i], l->row, blk->weights[l->i].n, buffer);
    out->to = (load_target){in_page(l, places[l->i].offset), blk->weights[l->i].n, l->row};
    l->row += out->n_row;
    return true;
}

uint64_t pager_page_file_bytes(const pager *p, int i) {
    const weight_page *page = &p->layout.pages[i];
    const weight_place *places = p->layout.places + p->layout.first_weight[page->block];
    uint64_t all = 0;
    if (p->packed)
        return page->bytes;
    for (int w = 0; w < layout_block(p->layout.of, page->block)->n_weight; w++) {
        const bool here = page->w < 0 ? places[w].n_page == 1 && places[w].first_page == i : page->w == w;
        const weight *of = pager_weight(p, page->block, w);
        const load_job rows = {.w = of, .n_row = page->w < 0 ? of->n : page->n_row};
        all += here ? pager_job_bytes(&rows) : 0;
    }
    return all;
}

/* The bytes of the experts that a block's row reads, if each is in memory as often as experts are. */
static uint64_t expert_bytes(const pager *p, int b) {
    const pager as_files = {.layout = p->layout};
    const block *blk = layout_block(p->layout.of, b);
    uint64_t all = 0;
    for (int i = 0; i < blk->program.n_op && p->experts; i++) {
        const op *o = &blk->program.ops[i];
        if (o->kind != OP_EXPERTS)
            continue;
        const weight_place *at = page_layout_place(&p->layout, b, o->w);
        uint64_t absent = 0;
        for (int j = at->first_page; j < at->first_page + at->n_page; j++)
            absent += p->state[j].resident ? 0 : pager_page_file_bytes(&as_files, j);
        all += absent / (uint64_t)o->u.experts.n_expert * (uint64_t)o->u.experts.n_used;
    }
    return all;
}

uint64_t pager_pass_bytes(const pager *p) {
    const visits pass = visits_of_one_row(p->layout.n_block, 0, p->layout.n_block);
    page_cursor at = page_cursor_of(&p->streamed, &pass);
    uint64_t all = 0;
    for (; !at.ended; page_cursor_step(&p->streamed, &at))
        all += pager_page_file_bytes(p, p->streamed.pages[at.i]);
    for (int b = 0; b < p->layout.n_block; b++)
        all += expert_bytes(p, b);
    return all;
}

/* ---- a page that is streamed from the model's files ---- */

static const load_buffer unlimited = {.raw_bytes = INT64_MAX};

bool pager_page_reads(const pager *p, int i, load_reads *out, uint64_t *bytes) {
    const pager as_files = {.layout = p->layout};
    page_jobs jobs = {.page = i};
    load_job j;
    out->n = 0;
    while (pager_page_next(&as_files, &jobs, &unlimited, &j))
        if (!load_reads_add(out, j.w, j.first, j.n_row))
            return false;
    *bytes = load_reads_place(out);
    return true;
}

void pager_page_pack(const pager *p, int i, const load_reads *reads, const uint8_t *from, uint8_t *to,
                     const load_buffer *scratch, int part, int n_part) {
    const pager as_files = {.layout = p->layout};
    page_jobs jobs = {.page = i, .dst = to};
    load_job j;
    while (pager_page_next(&as_files, &jobs, &unlimited, &j)) {
        int64_t begin, end;
        pool_split(j.n_row, PACK_PANEL, part, n_part, &begin, &end);
        const load_target at = {j.to.dst, j.to.dst_n, j.to.dst_first + begin};
        if (begin < end)
            load_reads_pack(reads, j.w, j.first + begin, end - begin, &at, from, scratch);
    }
}

nib_status pager_page_in_turn(const pager *p, int i, uint8_t *to, load_buffer *buffer, nib_error *err) {
    const pager as_files = {.layout = p->layout};
    page_jobs jobs = {.page = i, .dst = to};
    load_job j;
    while (pager_page_next(&as_files, &jobs, buffer, &j))
        NIB_TRY(loader_matrix(p->loader, j.w, j.first, j.n_row, &j.to, buffer, err));
    return NIB_OK;
}
