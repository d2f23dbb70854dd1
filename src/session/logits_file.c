/* logits_file.c - writes the logits of every position to a file; see nib_tools.h. */
#include "nib_tools.h"

#include "formats/safetensors_write.h"
#include "session/session.h"

typedef struct logits_job {
    safetensors_writer *writer;
    int64_t n_vocab;
    nib_error err;
    nib_status status; /* of writing */
} logits_job;

static void write_row(void *user, int64_t position, const float *logits) {
    (void)position;
    logits_job *job = user;
    if (!job->status)
        job->status =
            safetensors_writer_data(job->writer, logits, (size_t)job->n_vocab * sizeof *logits, &job->err);
}

nib_status nib_session_logits_save(nib_session *s, const int32_t *tokens, size_t n_token, const char *path,
                                   nib_error *err) {
    logits_job job = {.n_vocab = model_hparams(s->driver.on.m)->n_vocab};
    const int64_t shape[2] = {(int64_t)n_token, job.n_vocab};
    nib_status status = safetensors_writer_open(path, &job.writer, err);
    if (!status)
        status = safetensors_writer_tensor(job.writer, "logits", TYPE_F32, 2, shape, err);
    if (!status) {
        safetensors_writer_set_cancel(job.writer, &s->driver.on.step->cancel);
        status = nib_session_forward(s, tokens, n_token, 0, write_row, &job, err);
    }
    if (!status && job.status) {
        status = job.status;
        if (err)
            *err = job.err;
    }
    if (!status)
        return safetensors_writer_commit(job.writer, err);
    safetensors_writer_abort(job.writer);
    return status;
}
