/* nib_tools.h - describes, converts and makes models, and measures models and machines.
 *
 * The rules are those of nib.h: nothing prints, exits or aborts, a call that can fail returns a nib_status
 * and fills the nib_error it is given, and memory for the caller is freed with nib_free(). MODEL is a .gguf
 * file, a folder with config.json, or a name from the models folder. Every call may be made from any thread.
 * It blocks until it is done, and polls options->cancel meanwhile.
 *
 * Documents are JSON in UTF-8 (invalid bytes of a file's text become U+FFFD). Later versions may add keys;
 * the keys that are listed here stay. */
#ifndef NIB_TOOLS_H
#define NIB_TOOLS_H

#include "nib.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- a model ------------------------------------------------------------------------------------ */

/* Describes a model from its headers, as JSON (*json, caller frees): "arch", "name", "container" ("gguf" or
 * "safetensors"), "n_layer", "d_model", "n_head", "n_kv_head", "d_head", "d_ff", "n_vocab", "n_ctx_train",
 * "params" (weights), "active_params" (of them, those that a token is multiplied by: without tables and the
 * experts that it does not use), "n_expert", "n_expert_used" (0: no mixture), "ahead_params" (of a head that
 * predicts later tokens, 0: none), "bytes" (of all tensors as stored), "kv_bytes" (f16 keys and values of one
 * position),
 * "tensors": [{"name", "shape" (outermost first), "format", "bytes"}]. NIB_E_NOTFOUND, NIB_E_MODEL. */
NIB_API nib_status nib_model_describe(const char *model, char **json, nib_error *err);

/* Computes tokens[0..n_token) in one sequence, as nib_session_forward, and writes the logits of every
 * position to `path`: a safetensors file with `logits`, F32 [n_token, n_vocab]. The file appears when it is
 * whole; after an error an earlier file is unchanged. */
NIB_API nib_status nib_session_logits_save(nib_session *session, const int32_t *tokens, size_t n_token,
                                           const char *path, nib_error *err);

/* ---- a rank of a pipeline ----------------------------------------------------------------------- */

/* Computes a stage of the model that another process has opened with nib_engine_options.devices, which
 * starts "nibble --rank CONNECTIONS". Blocks until one of these ends. log: as of an engine; NULL: none. */
NIB_API nib_status nib_rank_serve(const char *connections, nib_log_fn log, void *user, nib_error *err);

/* Plans the ranks of `options->devices` or `hosts`, as opening such an engine would cut the model, for
 * n_session sequences (*json, caller frees): "model", "simulated" (a place has rates of a file, so no host
 * was asked), "n_sequence", "n_row" (rows of a pass), "n_ctx", "ranks": [{"rank", "host", "device", "blocks"
 * (the first and the last), "first", "last" (their names), "weights", "kv", "cap" (bytes; null: none),
 * "tiers":
 * {"vram", "ram", "disk"} (bytes), "pass_s" (seconds of a pass), "busy" (share of the slowest rank's),
 * "rates" ("measured", "guess", "file")}], "predicted": {"tok_s" (of all sequences), "one_tok_s" (of one
 * alone)}, "binds" (the slowest rank). The network is not counted. Hosts are asked for their rates by the
 * launcher. */
NIB_API nib_status nib_plan_ranks(const char *model, const nib_engine_options *options, char **json,
                                  nib_error *err);

/* ---- a model in smaller number formats ---------------------------------------------------------- */

/* The file is written tensor by tensor, a few rows at a time, so memory does not depend on the model's size.
 * It is written as OUT.part, with OUT.part.log, a checksum for each finished tensor. After an interruption (a
 * signal, a full disk, a power failure) both remain, and the same call continues after the last tensor whose
 * checksum is right. OUT appears when all is written; an earlier OUT stays until then. docs/quantize.md has
 * the formats and methods. */
typedef struct nib_quantize_options {
    const char *out;  /* the GGUF file to write */
    const char *type; /* a number format ("q4_0") or a mix of some ("q4_k_m"); NULL: q4_k_m */
    double bits;      /* average bits of a weight, allocated by block among the formats that `type` lists
                         ("c3,c4"; NULL: n2g64, n3g64, q4_0, q5_0, q8_0); 0: `type` for all */
    double
        outliers; /* 0.45 or 1: percentage of each row of c3 and c4 stored as 16-bit outliers too; 0: none */
    const char *head_type; /* number format of embedding and output head, outside `bits`; NULL: as all */
    const char *method;    /* "rtn", "squeezellm", "awq", "gptq"; NULL: rtn */
    const char *calib;     /* text whose lines are the calibration prompts; NULL: nibble's own prompts */
    const char
        *imatrix;   /* llama.cpp's importance matrix, instead of measuring one; "none": rounding uses none */
    bool permute;   /* channels with outliers come first in all tensors, and the file says which inputs of
                       products have 8 bits with NIB_ACT_AX. `type` NULL: values are not rounded */
    double share8;  /* with permute: maximum percentage of the multiply-adds with 8-bit activations */
    double outlier; /* with permute: a channel has outliers if its 99.9th percentile is above so many times
                       the median of its input's channels; 0: 6 */
    bool rotate; /* the residual stream and the heads of values are multiplied by orthogonal matrices, in all
                    tensors. `type` NULL: values are not rounded; coarse ones become f16 */
    const char *keep_imatrix; /* writes the importance matrix for llama.cpp; NULL: no */
    const char *residual;     /* also writes the rounding residuals, with the engine options' residual_bits a
                                 weight, to this file, which nib_engine_options.residual accepts in place of the
                                 original; NULL: no */
} nib_quantize_options;

typedef struct nib_quantize_report {
    uint64_t bytes_in, bytes_out; /* of the two files' tensors */
    uint64_t n_weight;            /* values in tensors that were quantized */
    double bits;                  /* mean bits of one of these values, scales included */
    double error; /* relative squared error: the sum of squared errors divided by the sum of squares, both
                     weighted by column; over this call's tensors */
    double kl;    /* predicted loss with `bits`, in nats: the blocks' costs summed; else 0 */
    int n_tensor; /* tensors in the file */
    int n_quantized,
        n_resumed;  /* tensors that were written in another format; that an earlier call had finished */
    int n_fallback; /* tensors whose row length is no multiple of the format's block; they have the next
                       larger format that fits */
    int n_first;    /* channels that `permute` put first, over all inputs that can be permuted */
    double share8;  /* with permute: percentage of the multiply-adds with 8-bit activations */
    int n_rotated;  /* with rotate: the residual stream, and layers whose heads of values are rotated */
    int n_coarse;   /* tensors that were in a coarse format already */
    double seconds;
    uint64_t rss_peak;    /* of the process, in bytes */
    char importance[256]; /* source of the importance matrix, for people */
} nib_quantize_report;

/* options: as nib_engine_open (threads, RAM cap, progress, log, cancel). NIB_E_USAGE: an unknown type or
 * method, or an unsupported model. After NIB_E_CANCELLED and NIB_E_IO the next call continues. */
NIB_API nib_status nib_quantize(const char *model, const nib_engine_options *options,
                                const nib_quantize_options *how, nib_quantize_report *out, nib_error *err);

/* ---- residuals within a bound on the slowdown
 * -------------------------------------------------------------------- */

/* Finds how many channels each kind of product gets back in an engine with residuals (nib_engine_options), at
 * most k_chunk, so that a token takes at most `slowdown` (0.05: 5 %) longer than without residuals (QDEC,
 * paper 4.4), and leaves the engine like that. Candidates are timed by generating tokens in a session of its
 * own, some seconds long; no other thread uses the engine meanwhile. *json (caller frees): "slowdown"
 * (measured at the end: at most what was asked for), "token_s" (seconds without residuals), "kinds":
 * [{"products", "k_chunk", "n_tb"}] as a plan has them, "ram" (bytes of all residuals), "read" (bytes of
 * residuals that one token reads), "steps": [{"slowdown", "read", "kinds"}], each candidate that was better
 * than all before it. With max_s > 0 the quality is measured too: "perplexity" of nibble's own prompts, in
 * "steps" and beside "kinds" for the choice, and "perplexity_without". Steps are measured until max_s seconds
 * have passed; the choice is always measured. NIB_E_USAGE: the engine has no residuals. */
NIB_API nib_status nib_residuals_tune(nib_engine *engine, double slowdown, double max_s, char **json,
                                      nib_error *err);

/* Whether the residuals that `options` ask for are worth their RAM. NIB_RESIDUALS_NO_ROOM: with them, weights
 * are read from disk for a token, or without a cap less than an eighth of the system's free memory is left.
 * NIB_RESIDUALS_MORE_BITS: on a processor, a plan of the original that takes no more RAM reads no weights
 * from disk and loses at most what the quality "high" allows, by measured costs. Decided by plans (nib_plan)
 * from headers alone. Errors are those of nib_plan. */
typedef enum nib_residuals_worth {
    NIB_RESIDUALS_FIT,
    NIB_RESIDUALS_NO_ROOM,
    NIB_RESIDUALS_MORE_BITS
} nib_residuals_worth;
NIB_API nib_status nib_residuals_fit(const char *model, const nib_engine_options *options,
                                     const nib_plan_options *how, nib_residuals_worth *worth, nib_error *err);

/* ---- a block of work --------------------------------------------------------------------------------- */

/* Requests that are computed together: their number, and the means of their tokens. */
typedef struct nib_workload {
    int64_t n_request;
    double n_prompt, n_gen;
    int64_t n_position;   /* maximum positions of one: its prompt and its answer; 0: the means' sum */
    int64_t max_n_ctx;    /* positions that none exceeds for certain (nib_engine_options); 0: not known */
    double max_latency_s; /* from a prompt's beginning to its answer's end, in the mean; 0: any */
} nib_workload;

/* Shares on the GPU, in RAM and on disk. */
typedef struct nib_shares {
    double vram, ram, disk;
} nib_shares;

/* Formats between which a plan for a workload chooses, where the engine's options leave it the choice: those
 * of keys and values with NIB_KV_AUTO, those of weights with `quality` of the options' `planning`. */
typedef struct nib_flow_format {
    int kv_type;  /* a nib_kv_type; NIB_KV_AUTO: by layer, the fewest bytes within the loss; 0: the engine's
                     rule */
    int weights;  /* NIB_WEIGHTS_FILE or NIB_WEIGHTS_FEWEST */
    double loss;  /* measured, nats a token; that of keys and values counts twice (docs/budget.md). Negative:
                     not  measured */
    double tok_s; /* of the fastest plan with them; 0: none, because of the loss or the caps */
} nib_flow_format;
enum { NIB_FLOW_FORMATS = 8, NIB_FLOW_KV_LAYERS = 1024 };

/* The plan for a workload (docs/paper-flexgen.md): with what this build can do, or the bound with keys,
 * values and the residual stream on every tier. */
typedef struct nib_flow {
    int schedule;       /* a nib_schedule */
    int64_t n_sequence; /* sequences together */
    int64_t n_cell;     /* of them, those that go through a layer together */
    int64_t n_pass;     /* rows of a pass (n_batch of the engine's options); 0: the default */
    int64_t n_ctx;      /* positions that a request may need, with a margin for estimated lengths; at most
                           those that the model was trained with */
    nib_shares weights, kv, stream;
    bool host_attends;     /* the processor attends to the keys and values in RAM */
    double tok_s;          /* tokens of answers a second, while all places are taken */
    double seconds;        /* for the whole workload, with its first and last passes */
    double latency_s;      /* from a prompt's beginning to its answer's end */
    double measured_tok_s; /* what a trial run has reached (nib_keep_trial); 0: none */
    int32_t kv_on_disk;    /* layers with their keys and values on the disk (nib_engine_options) */
    nib_flow_format formats[NIB_FLOW_FORMATS]; /* what was compared */
    int n_format, format;                      /* format: the chosen one */
    double max_loss;                           /* bound on their loss */
    char kv_layers[NIB_FLOW_KV_LAYERS]; /* with NIB_KV_AUTO: the formats of layers (nib_engine_options) */
    double kv_loss;        /* the part of the loss that keys and values take (nib_plan_options) */
    char binds[24];        /* the busiest of link, disk, memory and products */
    double one_more_gb[3]; /* tokens a second that one more GiB of VRAM, RAM or disk would give */
    bool guessed;          /* rates that it stands on were not measured on this machine (nib_hardware) */
    int n_program;         /* linear programs that were solved for it */
    double search_s;       /* and how long that took */
} nib_flow;

/* Finds the fastest schedule for a workload under the caps of `options`. bound NULL: not wanted. Reads
 * headers and profiles only. NIB_E_USAGE: no solver of linear programs is installed. NIB_E_NOFIT: not even
 * one sequence fits, or none is within max_latency_s. */
NIB_API nib_status nib_plan_workload(const char *model, const nib_engine_options *options,
                                     const nib_workload *work, nib_flow *out, nib_flow *bound,
                                     nib_error *err);

/* Several such plans: the fastest ones that differ in the number of sequences or in the tiers of keys and
 * values, the fastest first; or the frontier of latency and throughput: each is the fastest for its latency,
 * the shortest latency first. Writes *n of at most max >= 1 to `out`. */
typedef enum nib_flows { NIB_FLOWS_FASTEST, NIB_FLOWS_FRONTIER } nib_flows;
NIB_API nib_status nib_plan_flows(const char *model, const nib_engine_options *options,
                                  const nib_workload *work, nib_flows which, nib_flow *out, size_t max,
                                  size_t *n, nib_error *err);

/* The lanes of a processor's passes since the engine was opened, as in table 4 of FlexGen: seconds in which
 * reads of weights from the disk were in flight, in which keys and values were read from it and written to it
 * (kv_on_disk), and for which computing waited for either. The residual stream stays in RAM. A GPU's lanes
 * are those of a timeline (nib_engine_spans_start). Any thread may call it; it waits for a running pass. */
typedef struct nib_lanes {
    double load_weights_s, load_cache_s, store_cache_s, wait_s;
} nib_lanes;
NIB_API void nib_engine_lanes(nib_engine *engine, nib_lanes *out);

/* Stores what a trial run of a plan has reached, tokens of answers a second, under
 * $XDG_CACHE_HOME/nibble/trials: for this model, these caps and formats, this context and machine, and
 * workloads with about as many tokens. Plans of nib_plan_flows have it then. */
NIB_API nib_status nib_keep_trial(const char *model, const nib_engine_options *options,
                                  const nib_workload *work, const nib_flow *plan, double tok_s,
                                  nib_error *err);

/* ---- many sequences ------------------------------------------------------------------------------ */

/* A GPU's back end may have two kinds of kernels for generated rows: the fastest for few sequences, and those
 * for many, which are slower for one. An engine has one kind for its life (docs/gpu.md). Returns the
 * n_sequence (nib_engine_options) from which on an engine of this model and back end has the second kind; 0:
 * there is one kind. */
NIB_API int32_t nib_engine_many_from(const nib_engine *engine);

/* ---- a model with random weights ----------------------------------------------------------------- */

/* The shapes of a known model with pseudo-random weights, for timing and for testing budgets. It is written
 * front to back in a megabyte of memory. */
typedef struct nib_synth_options {
    const char *shape;        /* a name of nib_synth_shape, letter case ignored */
    const char *type;         /* of the matrices: "q4_0", "q8_0", "f16"; NULL: q4_0 */
    int64_t n_layer;          /* maximum number of layers; 0: all */
    const char *routing;      /* how routers of mixtures choose: "uniform", "fitted", "flat"; NULL: fitted */
    const char *tokenizer;    /* a model whose tokenizer the file gets, a GGUF file or a folder; NULL: none */
    uint64_t seed;            /* the same seed gives the same file */
    bool hollow;              /* the header, followed by a hole that takes no disk space: for planning */
    nib_progress_fn progress; /* NULL: none */
    nib_cancel_fn cancel;     /* NULL: none */
    void *user;               /* for the two above */
} nib_synth_options;

typedef struct nib_synth_report {
    const char *shape, *type; /* the names, as the tables have them; static */
    int64_t n_layer;
    uint64_t bytes; /* of all tensors */
} nib_synth_report;

NIB_API const char *nib_synth_shape(size_t i); /* the shapes' names; NULL after the last */
/* Writes the GGUF file `path`. NIB_E_USAGE: an unknown shape or type; the message lists the known ones. After
 * an error an earlier file is unchanged. */
NIB_API nib_status nib_synth(const nib_synth_options *options, const char *path, nib_synth_report *out,
                             nib_error *err);

/* ---- the quality of answers ---------------------------------------------------------------------- */

/* Perplexity as llama-perplexity computes it: the tokens are cut into chunks of n_ctx, the first token of
 * each is replaced by BOS where the model asks for one, and the second half of each chunk is scored. */
typedef struct nib_perplexity {
    int64_t n_chunk, n_done; /* chunks of n_ctx tokens: all, and those that are finished */
    int64_t n_scored;        /* tokens that were scored */
    double ppl, stderr_ppl;  /* perplexity and its standard error; NAN while no token is scored */
    double seconds;
    bool saved, compared;            /* the file of distributions was written; was read and compared */
    double kld, stderr_kld, max_kld; /* with `compared`: KL(base || this) in nats, mean over the tokens */
    double same_top;                 /* share of the tokens whose most probable token is the base's */
    double base_ppl;                 /* with `compared`: perplexity of the base on the same tokens */
} nib_perplexity;

typedef struct nib_perplexity_options {
    int64_t n_ctx;     /* tokens of a chunk, 4 or more; at most the session's context */
    int64_t max_chunk; /* maximum number of chunks; 0: all */
    /* NULL: none. If the file does not exist, the distribution of every scored token is written to it; if it
     * exists, distributions are compared with it. It must be of the same tokens, n_ctx and vocabulary. */
    const char *kld_base;
    bool (*on_chunk)(
        void *user,
        const nib_perplexity *so_far); /* called after each chunk; return false to cancel. NULL: none */
    void *user;                        /* of on_chunk */
} nib_perplexity_options;

/* After an error *out has the partial result. NIB_E_USAGE: fewer tokens than a chunk, or a kld_base of
 * another text. A written file appears when it is whole. */
NIB_API nib_status nib_session_perplexity(nib_session *session, const int32_t *tokens, size_t n_token,
                                          const nib_perplexity_options *how, nib_perplexity *out,
                                          nib_error *err);

/* HellaSwag accuracy as llama-perplexity computes it: of four endings, the one with the highest mean
 * log-probability per token counts as the model's choice. Tokens that all four have in common are not scored.
 */
typedef struct nib_hellaswag {
    int64_t n_task, n_done, n_right; /* tasks: all, finished, chosen right */
    int64_t n_token;                 /* computed */
    double seconds;
} nib_hellaswag;

typedef struct nib_hellaswag_options {
    int64_t max_task; /* at most so many tasks; 0: all */
    bool (*on_task)(
        void *user,
        const nib_hellaswag *so_far); /* called after each task; return false to cancel. NULL: none */
    void *user;                       /* of on_task */
} nib_hellaswag_options;

/* text: six lines a task (context, index of the right ending, four endings); empty lines are skipped. After
 * an error *out has the partial result. NIB_E_USAGE: the text has another form. */
NIB_API nib_status nib_session_hellaswag(nib_session *session, const char *text, size_t n_byte,
                                         const nib_hellaswag_options *how, nib_hellaswag *out,
                                         nib_error *err);

/* ---- what is measured about a model --------------------------------------------------------------- */

/* The importance of each layer (MCAP, paper 3.1) and the cost of lower precision, block by block. Both depend
 * on the weights and the calibration prompts alone: they are stored, found again, and have the same bytes on
 * every machine. */
/* A nib_kv_type: the format of each layer by measured losses (nib_profile_options.costs), so that they add up
 * to at most 0.003 nats a token. Without a measurement f16, which is logged. The processor only. */
enum { NIB_KV_AUTO = 16 };

typedef struct nib_profile_options {
    const char *calib;   /* text whose lines are the prompts; NULL: nibble's own twelve */
    bool costs;          /* also the costs of lower precision, of weights and of keys and values */
    const char *formats; /* uniform formats whose costs are measured, separated by commas ("u4g64a,u2g32a");
                            NULL: a default list */
    bool again;          /* measure even if a stored profile exists */
    const char *file;    /* file of the costs, or without them of the importance; NULL: in
                            $XDG_CACHE_HOME/nibble/importance; a failure to store it there is logged only */
} nib_profile_options;

/* *json (caller frees) is the layers' profile as stored: "n_layer", "n_prompt", "n_token", "score" [n_layer]
 * (0 to 1), "mean" and "spread" {signal: [n_layer]}, "half_overlap", "half_overlap_min", "gap", "sigma",
 * "bound" (profile/importance.h has the formulas); and "path" (null: not stored), "found" (an earlier one was
 * used), "seconds", "tau" and "a16_layers" (with a score of at least tau), "prompts_are"; when measured,
 * "rss_peak" and "model_bytes". With `costs` also "quality": "n_block", "n_token", "formats" [n_format] and,
 * as mean KL divergence at the logits in nats a token (null: not measured), "kl" [n_block * n_format],
 * "kl_activation" [n_block * 2] (a8, a4), "kl_left_out" [n_block]; and "path", "found", "seconds" of the
 * costs; and "kv": "n_layer", "n_token", "formats" [n_format], "kl" [n_layer * n_format] with keys and values
 * of one layer in the format, "all" [n_format] with those of all layers, "path", "found" and "seconds".
 *
 * options: as nib_engine_open. NIB_E_USAGE: a format that is none; NIB_E_IO: no file `calib`, or `file`
 * cannot be written. When only the costs fail, *json has the importance; else it is NULL after an error. */
NIB_API nib_status nib_profile_model(const char *model, const nib_engine_options *options,
                                     const nib_profile_options *how, char **json, nib_error *err);

/* Statistics of the input channels of products (COMET, section 3.1), measured on the calibration prompts and
 * kept. *json (caller frees): "n_token", "outlier" (a channel is one if its 99.9th percentile is above so
 * many medians of its site), "sites": [{"layer" (null: output head), "products" ("q+k+v"), "channels",
 * "outliers", "median" of the percentiles, "largest" value, "strongest": [{"channel", "ratio"}]}]. calib: as
 * in nib_profile_options. Errors as nib_profile_model. */
NIB_API nib_status nib_profile_channels(const char *model, const nib_engine_options *options,
                                        const char *calib, char **json, nib_error *err);

/* How often the routers of a mixture choose each expert, measured on the calibration prompts and kept: an
 * engine that cannot hold all experts begins with the most popular ones of each layer. *json (caller frees):
 * "n_layer", "n_expert", "n_token", "share" [n_layer * n_expert] of the tokens, "quarter" [n_layer]: the
 * share of choices that the most popular quarter has; "path" (null: not stored), "found". how: calib, again,
 * file. NIB_E_USAGE: the model has no experts; other errors as nib_profile_model. */
NIB_API nib_status nib_profile_experts(const char *model, const nib_engine_options *options,
                                       const nib_profile_options *how, char **json, nib_error *err);

/* ---- a machine ----------------------------------------------------------------------------------- */

/* NIB_E_USAGE if the environment names instruction sets that this machine lacks: NIBBLE_ISA, one set of
 * kernels, or NIBBLE_CPU, the features that may be used. Without this check, other kernels are used. */
NIB_API nib_status nib_processor_check(nib_error *err);

/* The properties and the rates of this machine. Rates are measured the first time (some seconds) and stored;
 * plans use them. */
typedef struct nib_hardware_options {
    bool again;         /* measure even if a stored profile exists */
    const char *file;   /* the profile's file; NULL: in $XDG_CACHE_HOME/nibble/hardware; a failure to store it
                           there is logged only */
    const char *folder; /* folder on the disk to measure: a file is written there, read and removed; NULL:
                           $XDG_CACHE_HOME/nibble */
    nib_progress_fn progress; /* NULL: none */
    nib_log_fn log;           /* NULL: none */
    nib_cancel_fn cancel;     /* NULL: none */
    void *user;               /* for the three above */
} nib_hardware_options;

/* *json (caller frees): "cpu", "cores" (physical, that the process may use), "cpus" (logical), "features",
 * "kernels" (instruction sets with kernels, smallest first), "isa" (the one in use), "cache" {"l1d", "l2",
 * "l3"}, "ram" {"total", "available" (bytes), "read_gb_s_1", "read_gb_s"}, "gpus" [{"name", "compute", "sm",
 * "memory" (bytes)}]; and the rates as stored, each RATE = {"best", "median", "worst"}: "memory"
 * [{"threads", "read"}] (bytes a second), "disk" {"folder", "ring", "direct", "rates" [{"depth", "block",
 * "read"}]} (none where no file can be written), "threads" and "products" [{"bits" (0: f16), "asym",
 * "one_row", "two_rows" (bytes of weights/s), "many_rows" (multiply-adds/s)}], "attention" [{"bits" (of keys
 * and values), "one_thread", "all_threads"}], "pack" (one thread), "barrier_s", "seconds" (of measuring). */
NIB_API nib_status nib_hardware(const nib_hardware_options *options, char **json, nib_error *err);

/* The kernel map: the fastest strategy for each of a model's products on this machine, with weights that are
 * in no cache (docs/paper-adangel.md). It changes no bit of an answer. */
typedef struct nib_kernels_options {
    int n_thread;        /* 0: one for each physical core */
    uint64_t ram;        /* cap on the memory of the measurement, in bytes; NIB_AUTO: none */
    double seconds;      /* approximate duration */
    const char *map;     /* the map's file; NULL: this machine's own. nib_kernels_compare: "none" as well */
    const char *backend; /* "cuda": the GPU's products, and its map; NULL, "cpu", ...: the processor's */
    uint64_t vram;       /* cap on the GPU memory of the measurement, in bytes; NIB_AUTO: none */
    nib_progress_fn progress; /* NULL: none */
    nib_log_fn log;           /* NULL: none */
    nib_cancel_fn cancel;     /* NULL: none */
    void *user;               /* for the three above */
} nib_kernels_options;

/* Measures the model's products and stores the choices in the map's file, beside those of other shapes. *json
 * (caller frees): "map" (null: not stored), "shapes", "choices", "other_than_rule" (of the choices), "planes"
 * (shapes packed in planes), "seconds", "threads" (0: a GPU), "rotated_bytes". NIB_E_NOFIT: `ram` or `vram`
 * is too small; NIB_E_USAGE: the model has no packed weights; NIB_E_DEVICE: there is no GPU. */
NIB_API nib_status nib_kernels_profile(const char *model, const nib_kernels_options *options, char **json,
                                       nib_error *err);

/* Measures every strategy for each of the model's products (model NULL: a layer of an 8B model in several
 * widths) and the loss of choosing by the map, by the rule, or by one family (ADAngel, section 6.4). *json
 * (caller frees): "cpu" (or the GPU's name), "isa", "threads" (0: a GPU), "rotated_bytes"; "shapes" [{"n",
 * "k", "format", "activation", "count" (in a token), "map_packing" (absent: the map says nothing),
 * "mix_seconds" (512 rows together and 128 alone), "points" [{"m", "rows", "read_gb_s", "read_spread",
 * "strategies"
 * [{"name", "us", "spread", "gb_s", "peak_share", "peak_share_quarters", "gmac_s"}], "not_timed", "fastest",
 * "rule", "map", "regret"}]}]; "resident" (in the packings of the matrices) and "ablations" (in both)
 * [{"choosing", "seconds", "regret", "mean", "worst", "able", "points"}]; "units" [{"isa", "name", "w_bits",
 * "a_bits", "rate"}] (products a second and core, or multiprocessor); "choices" and "choices_not_timed".
 * After NIB_E_CANCELLED *json has the "shapes" that were finished, else it is NULL after an error. */
NIB_API nib_status nib_kernels_compare(const char *model, const nib_kernels_options *options, char **json,
                                       nib_error *err);

#ifdef __cplusplus
}
#endif
#endif
