/* texts.h - requests for the model's tokenizer and template alone. Each fills x->reply, or x->why. */
#ifndef NIB_SERVER_TEXTS_H
#define NIB_SERVER_TEXTS_H

#include "server/exchange.h"

void texts_tokenize(exchange *x);
void texts_detokenize(exchange *x);
void texts_tokenizer_info(exchange *x);
void texts_apply_template(exchange *x);

#endif
