/* schema_format.c - `format`: the characters of dates and times (RFC 3339, with leap years, and with the
 * second 60 where the time is 23:59:60 at Greenwich at the end of June or December), durations (its appendix
 * A), UUIDs (RFC 9562), IP addresses (RFC 2673, RFC 4291), and mailboxes (RFC 5321). Fractions of seconds
 * have at most 32 digits, numbers of durations 20. */
#include "grammar/schema_parts.h"

#include "base/num.h"

#include <string.h>

typedef enum rule_set { TIMES, ADDRESSES, MAILBOX } rule_set;

static const char *const time_rules[] = {
    "leap-year ::= [0-9]{2} (\"0\" [48] | [2468] [048] | [13579] [26]) | "
    "(\"0\" [048] | [2468] [048] | [13579] [26]) \"00\"",
    "date ::= [0-9]{4} \"-\" ((\"0\" [13578] | \"1\" [02]) \"-\" (\"0\" [1-9] | [12] [0-9] | \"3\" [01]) | "
    "(\"0\" [469] | \"11\") \"-\" (\"0\" [1-9] | [12] [0-9] | \"30\") | "
    "\"02-\" (\"0\" [1-9] | \"1\" [0-9] | \"2\" [0-8])) | %s-leap-year \"-02-29\"",
    "clock ::= ([01] [0-9] | \"2\" [0-3]) \":\" [0-5] [0-9]", "fraction ::= \".\" [0-9]{1,32}",
    "usual-time ::= %s-clock \":\" [0-5] [0-9] %s-fraction? ([Zz] | [-+] %s-clock)",
    "at-60 ::= \":60\" %s-fraction?", "time ::= %s-usual-time | %s-leap-second | %s-leap-second-east",
    "date-time ::= %s-date [Tt] %s-usual-time | "
    "[0-9]{4} (\"-06-30\" | \"-12-31\") [Tt] %s-leap-second | "
    "[0-9]{4} (\"-07-01\" | \"-01-01\") [Tt] %s-leap-second-east",
    /* the clock shows a leap second if its hour and its minute both fit to the offset: at Greenwich and west
     * of it on the same day, east of it on the next one */
    "leap-second ::= \"23:59\" %s-at-60 ([Zz] | [-+] \"00:00\") | (%s-west-hour & %s-west-minute)",
    "leap-second-east ::= %s-east-hour & %s-east-minute",
    "duration-time ::= \"T\" (%s-count \"H\" (%s-count \"M\" (%s-count \"S\")?)? | "
    "%s-count \"M\" (%s-count \"S\")? | %s-count \"S\")",
    "duration ::= \"P\" ((%s-count \"Y\" (%s-count \"M\" (%s-count \"D\")?)? | %s-count \"M\" (%s-count "
    "\"D\")? "
    "| %s-count \"D\") %s-duration-time? | %s-duration-time | %s-count \"W\")",
    "count ::= [0-9]{1,20}"};

static const char *const address_rules[] = {
    "ipv4 ::= %s-octet \".\" %s-octet \".\" %s-octet \".\" %s-octet",
    "octet ::= \"25\" [0-5] | \"2\" [0-4] [0-9] | \"1\" [0-9] [0-9] | [1-9]? [0-9]",
    "h16 ::= [0-9a-fA-F]{1,4}",
    "uuid ::= %s-hex{8} \"-\" %s-hex{4} \"-\" %s-hex{4} \"-\" %s-hex{4} \"-\" %s-hex{12}"};

/* The backslashes of a quoted text are those of JSON. */
static const char *const mailbox_rules[] = {
    "email ::= (%s-local & %s-char{1,64}) \"@\" ((%s-domain & %s-char{1,255}) | %s-literal)",
    "local ::= %s-atom (\".\" %s-atom)* | \"\\\\\\\"\" %s-quoted* \"\\\\\\\"\"",
    "atom ::= [A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+",
    "quoted ::= [ !#-\\[\\]-~] | \"\\\\\\\\\" ([ !#-\\[\\]-~] | \"\\\\\\\"\" | \"\\\\\\\\\")",
    "domain ::= %s-label (\".\" %s-label)*",
    "label ::= [A-Za-z0-9] ([A-Za-z0-9-]{0,61} [A-Za-z0-9])?",
    "snum ::= \"25\" [0-5] | \"2\" [0-4] [0-9] | [01]? [0-9]{1,2}",
    "mail-v4 ::= %s-snum \".\" %s-snum \".\" %s-snum \".\" %s-snum",
    "literal ::= \"[\" (%s-mail-v4 | [Ii] [Pp] [Vv] \"6:\" %s-mail-v6) \"]\""};

static const struct {
    const char *name;
    rule_set set;
} formats[] = {{"date", TIMES},     {"time", TIMES},     {"date-time", TIMES}, {"duration", TIMES},
               {"uuid", ADDRESSES}, {"ipv4", ADDRESSES}, {"ipv6", ADDRESSES},  {"email", MAILBOX}};

static void put_leap_rules(schema_maker *m) {
    writer *w = &m->out;
    const char *r = m->root;
    writer_put(w, "%s-west-hour ::= []", r);
    for (int h = 0; h < 24; h++)
        writer_put(w, " | \"%02d:\" [0-5] [0-9] %s-at-60 \"-%02d:\" [0-5] [0-9]", h, r, 23 - h);
    writer_put(w, "\n%s-west-minute ::= []", r);
    for (int k = 0; k < 60; k++)
        writer_put(w, " | [0-2] [0-9] \":%02d\" %s-at-60 \"-\" [0-2] [0-9] \":%02d\"", k, r, 59 - k);
    writer_put(w, "\n%s-east-hour ::= []", r);
    for (int h = 0; h < 24; h++) {
        writer_put(w, " | \"%02d:\" ([0-4] [0-9] | \"5\" [0-8]) %s-at-60 \"+%02d:\" [0-5] [0-9]", h, r, h);
        if (h < 23)
            writer_put(w, " | \"%02d:59\" %s-at-60 \"+%02d:00\"", h, r, h + 1);
    }
    writer_put(w, "\n%s-east-minute ::= []", r);
    for (int k = 0; k < 60; k++)
        writer_put(w, " | [0-2] [0-9] \":%02d\" %s-at-60 \"+\" [0-2] [0-9] \":%02d\"", k, r, (k + 1) % 60);
    writer_put(w, "\n");
}

/* IPv6 with at most `most` groups beside "::", or `most_v4` beside it and an IPv4 address. */
static void put_ipv6(schema_maker *m, const char *name, int most, int most_v4, const char *v4) {
    writer *w = &m->out;
    const char *r = m->root;
    writer_put(w, "%s-%s ::= %s-h16 (\":\" %s-h16){7} | (%s-h16 \":\"){6} %s-%s", r, name, r, r, r, r, v4);
    for (int i = 0; i <= most; i++) {
        writer_put(w, " | ");
        if (i > 0)
            writer_put(w, "%s-h16 (\":\" %s-h16){%d} ", r, r, i - 1);
        writer_put(w, "\"::\" (");
        if (i < most)
            writer_put(w, "(%s-h16 (\":\" %s-h16){0,%d})?", r, r, most - i - 1);
        if (i <= most_v4)
            writer_put(w, " | (%s-h16 \":\"){0,%d} %s-%s", r, most_v4 - i, r, v4);
        writer_put(w, ")");
    }
    writer_put(w, "\n");
}

static void put_set(schema_maker *m, rule_set set) {
    if (m->formats & 1u << set)
        return;
    m->formats |= 1u << set;
    if (set == TIMES) {
        schema_put_rules(m, time_rules, NUM_COUNT(time_rules));
        put_leap_rules(m);
    } else if (set == ADDRESSES) {
        schema_put_rules(m, address_rules, NUM_COUNT(address_rules));
        put_ipv6(m, "ipv6", 7, 5, "ipv4");
    } else {
        put_set(m, ADDRESSES);
        schema_put_rules(m, mailbox_rules, NUM_COUNT(mailbox_rules));
        put_ipv6(m, "mail-v6", 6, 4, "mail-v4");
    }
}

bool schema_format(schema_maker *m, const char *name, writer *body) {
    for (size_t i = 0; i < NUM_COUNT(formats); i++)
        if (!strcmp(name, formats[i].name)) {
            put_set(m, formats[i].set);
            writer_put(body, "%s-%s", m->root, name);
            return true;
        }
    return false;
}
