/* engine.h - an engine for the modules above: opening one with more options than nib.h, and the parts of it
 * that sessions and measurements use. Only engine/ sees its fields. */
#ifndef NIB_ENGINE_ENGINE_H
#define NIB_ENGINE_ENGINE_H

#include "engine/parts.h"
#include "engine/residual/kinds.h"
#include "sequence/generation.h"
#include "sequence/sequence.h"
#include "tokenizer/tokenizer.h"

/* As nib_engine_open, with internal options (NULL: none). */
nib_status engine_open(const char *name, const nib_engine_options *options, const engine_internal *internal,
                       nib_engine **out, nib_error *err);

/* As nib_engine_open for one process, with the options' plan. */
nib_status engine_open_planned(const char *name, const nib_engine_options *options,
                               const engine_internal *internal, nib_engine **out, nib_error *err);
/* Makes an open engine the first rank of a pipeline, before it has a session. rows: the least of all ranks,
 * of a pass and of a pass's generated rows. */
void engine_join(nib_engine *e, const engine_pipeline *with, int64_t n_pass, int64_t max_generated);
bool engine_is_joined(const nib_engine *e);

/* False: the engine was opened for its vocabulary only and has no parts. */
bool engine_has_weights(const nib_engine *e);
/* NIB_E_USAGE: the engine cannot answer: it has no weights, or those of a head that predicts later tokens. */
nib_status engine_check_answers(const nib_engine *e, nib_error *err);
engine_parts engine_parts_of(nib_engine *e);
/* Path, container and tokenizer; owned by the engine. */
const char *engine_path(const nib_engine *e);
const container *engine_container(const nib_engine *e);
const tokenizer *engine_tokenizer(const nib_engine *e); /* NULL: the checkpoint has none */

/* ---- for tuning residuals ---- */

/* The kinds of products that have residuals; NULL: none. Valid until the engine is closed. */
const residual_kinds *engine_residual_kinds(const nib_engine *e);
/* Sets the number of channels of each kind, from the next pass on. Any thread. */
void engine_residuals_choose(nib_engine *e, const tune_choice *choice);
/* The same for good: kinds without channels return their memory. */
void engine_residuals_settle(nib_engine *e, const tune_choice *choice);
/* Whether a plan has chosen the channels. */
bool engine_has_planned_residuals(const nib_engine *e);
/* Maximum number of GPU blocks that fetch residuals (1: the processor computes), and maximum number of
 * channels of each 1,024. */
int engine_fetch_blocks(const nib_engine *e);
int64_t engine_max_channels(const nib_engine *e);
/* Bytes of residuals in RAM, and the part of them that a token reads with the current choice. */
uint64_t engine_residual_bytes(const nib_engine *e);
uint64_t engine_residual_read(const nib_engine *e, const tune_choice *choice);

/* ---- for sequences ---- */

/* The formats of all layers by a nib_kv_type; false: 0, or an unknown type. */
bool engine_kv_formats(const nib_engine *e, int kv, kv_formats *out);
/* Fills *out with the memory for sequences of these formats: the engine's own, or one of all layers. Their
 * pool is opened at its first use. Any thread. */
nib_status engine_sequence_memory(nib_engine *e, kv_formats kv, sequence_memory *out, nib_error *err);
/* Opens the folder of at most `max` bytes for these KV pages, for sequences of n_ctx positions. *out is NULL,
 * which is logged, if the pages cannot be stored: they depend on the length of their sequence, or are not in
 * RAM. To be closed before the engine. */
nib_status engine_open_prefixes(nib_engine *e, kv_formats kv, const char *folder, uint64_t max, int64_t n_ctx,
                                kv_disk **out, nib_error *err);
/* Logs a line. */
void engine_log(const nib_engine *e, const char *text);
/* The setup for generating answers. */
generation_setup engine_generation_setup(const nib_engine *e);
/* begin and end enclose a generation; times of simultaneous generations are not used. Between them, `took`
 * reports the result's measured time, for predictions, and the number of positions. */
void engine_generation_begin(nib_engine *e);
void engine_generation_end(nib_engine *e);
void engine_generation_took(nib_engine *e, int64_t n_position, const nib_result *r);
/* Bytes of a session's tokens and logits. */
uint64_t engine_session_tables(const nib_engine *e, int64_t n_ctx);
/* Checks a number of positions: NIB_E_USAGE: more than the learned ones; NIB_E_NOFIT: more than the machine's
 * memory can ever hold. */
nib_status engine_check_positions(const nib_engine *e, kv_formats kv, int64_t n_ctx, nib_error *err);
/* Prefixes a NIB_E_NOFIT of a session or a batch with the sessions that the engine reserves; returns status.
 */
nib_status engine_name_sessions(const nib_engine *e, nib_status status, nib_error *err);

#endif
