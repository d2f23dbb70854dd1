/* job.h - one model that is being written; shared by the files of quantize/.
 *
 * The caller fills the options, model, types and importance; job_open begins OUT.part or continues it;
 * tensors are then written in a fixed order, by job_next, or by job_block while a pass gives the inputs of
 * block after block; job_commit renames the file to OUT. One thread calls; the pool rounds. */
#ifndef NIB_QUANTIZE_JOB_H
#define NIB_QUANTIZE_JOB_H

#include "base/log.h"
#include "formats/gguf_write.h"
#include "quantize/awq.h"
#include "quantize/gptq.h"
#include "quantize/journal.h"
#include "quantize/mix.h"
#include "quantize/permute.h"
#include "quantize/rotate.h"
#include "nib_tools.h"
#include "quantize/rows.h"
#include "quantize/stats.h"
#include "memory/ledger.h"

typedef enum method { METHOD_RTN, METHOD_AWQ, METHOD_GPTQ } method;

typedef struct job {
    const char *model;
    nib_engine_options options;
    const nib_quantize_options *q;
    nib_quantize_report *report;
    logger log;
    canceller cancel;
    model *m;           /* headers alone; owned */
    const container *c; /* m's */
    gguf_tensors
        tensors; /* the output's tensors, in the order of the model's file; of a folder, block by block */
    size_t n_tensor;
    bool drops_ahead; /* the model's head that predicts later tokens is left out */
    bool keeps;       /* values are not rounded: a packed checkpoint without a format in --type */
    bool narrow; /* --type packed: nibble's own formats, which have fewer bits than those of other programs */
    tensor_use *uses; /* [n_tensor] */
    type_id *types;   /* [n_tensor]: the format that each becomes */
    size_t *order;    /* [n_tensor]: indices in the order of writing, block by block */
    stats stats;
    mix mix;
    type_id head_type;    /* of matrices outside layers, if q->head_type is given */
    int outliers;         /* outliers of a row with a codebook, in 10,000ths of its columns */
    type_id *block_types; /* [n_block]: the format of all matrices of a block, with --bits; NULL: the mix */
    ledger *ledger;
    uint64_t charged;
    pool *threads;
    row_scratch scratch;
    gguf_writer *writer;
    journal journal;
    bool begun;           /* the part file and the journal are this run's */
    size_t n_done;        /* number of finished tensors, in this order */
    uint64_t done, total; /* bytes of the file's data */
    double error, all;    /* sums of row_task over all tensors */
    method method;
    calibration prompts; /* AWQ and GPTQ */
    permutation permute; /* --permute; zeroed: channels keep their order */
    rotated rotate;      /* --rotate; zeroed: nothing is rotated */
    gram inputs;         /* AWQ and GPTQ: of the block that is being written */
    awq awq;             /* AWQ: factors of that block */
    gptq gptq;           /* GPTQ: the factor of the input of the matrix that was written last */
} job;

/* Decides the format of each tensor, checks and writes the header, allocates the scratch memory, and skips
 * the tensors that an earlier run has finished (n_done). NIB_E_USAGE: a packed matrix has no exact block
 * format; NIB_E_MODEL: GGUF cannot express the model; NIB_E_NOFIT: the cap of RAM is too small; NIB_E_IO;
 * NIB_E_NOMEM. Call job_close after an error too. */
nib_status job_open(job *j, nib_error *err);
/* Columns of the widest matrix that GPTQ or AWQ rounds; 0: none. To be called after job_open. */
int64_t job_longest_product(const job *j);
/* Keeps finished tensors for another run, unless `refused`: it would end in the same way. Zeroed, with
 * journal.fd -1, is fine. */
void job_close(job *j, bool refused);
/* Writes the remaining tensors of blocks up to `last`; j->inputs has the inputs of the last block. Errors as
 * job_next. */
nib_status job_block(job *j, int last, nib_error *err);
/* Converts and writes the next tensor in order, syncs the data and enters it in the journal. NIB_E_MODEL: a
 * value is not finite; NIB_E_IO; NIB_E_CANCELLED; NIB_E_NOMEM. */
nib_status job_next(job *j, nib_error *err);
/* To be called when all tensors are written: renames OUT.part to OUT and removes the journal. NIB_E_IO;
 * NIB_E_CANCELLED. */
nib_status job_commit(job *j, nib_error *err);

#endif
