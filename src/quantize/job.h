/* job.h - shared by the files of quantize/: one model that is being written. */
#ifndef NIB_QUANTIZE_JOB_H
#define NIB_QUANTIZE_JOB_H

#include "base/log.h"
#include "formats/gguf_write.h"
#include "quantize/awq.h"
#include "quantize/gptq.h"
#include "quantize/journal.h"
#include "quantize/mix.h"
#include "nib_tools.h"
#include "quantize/rows.h"
#include "quantize/stats.h"
#include "tiers/ledger.h"

typedef enum method { METHOD_RTN, METHOD_AWQ, METHOD_GPTQ } method;

typedef struct job {
    const char *model;
    nib_engine_options options;
    const nib_quantize_options *q;
    nib_quantize_report *report;
    logger log;
    canceller cancel;
    model *m; /* headers alone */
    const container *c;
    gguf_tensors tensors; /* that are written, in the order of the model's file, or block by block */
    size_t n_tensor;
    bool keeps;       /* every tensor stays in its type: of a packed checkpoint, unless a type is given */
    bool narrow;      /* --type packed: in fewer bits than formats that others know */
    tensor_use *uses; /* [n_tensor] */
    type_id *types;   /* [n_tensor]: what each becomes */
    size_t *order;    /* [n_tensor]: as they are written, block by block */
    stats stats;
    mix mix;
    type_id head_type;    /* of matrices outside layers, where q->head_type is given */
    int outliers;         /* of 10,000 columns of rows with code books */
    type_id *block_types; /* [n_block]: instead of the mix, of all matrices of a block; NULL: the mix */
    ledger *ledger;
    uint64_t charged;
    pool *threads;
    row_scratch scratch;
    gguf_writer *writer;
    journal journal;
    size_t n_done;        /* of order */
    uint64_t done, total; /* bytes of the file */
    double error, all;
    method method;
    calibration prompts; /* of AWQ and GPTQ */
    gram inputs;         /* of the block that is being made; AWQ and GPTQ */
    awq awq;
} job;

/* Opens the model, decides what each tensor becomes, and begins the file. */
nib_status job_open(job *j, nib_error *err);
void job_close(job *j); /* zeroed, with journal.fd -1, is fine; keeps what is not finished */
/* What is left of the file, or of a block and those before it, whose inputs j->inputs has. */
nib_status job_block(job *j, int last, nib_error *err);
/* The next tensor in order. */
nib_status job_next(job *j, nib_error *err);
nib_status job_commit(job *j, nib_error *err);

#endif
