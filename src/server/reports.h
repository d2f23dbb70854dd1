/* reports.h - what the server says about itself. Each fills x->reply, or x->why. */
#ifndef NIB_SERVER_REPORTS_H
#define NIB_SERVER_REPORTS_H

#include "server/exchange.h"

void report_health(exchange *x);
void report_models(exchange *x);
void report_model(exchange *x);
void report_metrics(exchange *x);
void report_memory(exchange *x);
void report_slots(exchange *x);
void report_page(exchange *x);
extern const char server_page[]; /* the folder page, as one file */
extern const size_t server_page_size;

#endif
