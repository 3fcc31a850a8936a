/* State of a completion and the table of live sequences; private to gen.c and gen_table.c. */
#ifndef SPECD_SERVER_GEN_TABLE_H
#define SPECD_SERVER_GEN_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "server/http.h"
#include "server/render.h"
#include "server/request.h"

struct gen;

struct choice {
    uint64_t id; /* the engine's request */
    struct gen *g;
    int index;
    size_t prompt; /* index in q.prompt */
    bool live;     /* in the table: its final event is still to come */
    bool started, done, role_sent;
    bool pending; /* text is to be sent as a chunk at the next flush */
    int n_out, n_cached;
    int n_verify, n_draft, n_accepted; /* once it is done */
    uint64_t seed;                     /* the one used, once it is done */
    int64_t last_us;                   /* last token */
    struct buf text;                   /* not yet sent; the whole text when not streaming */
    struct buf ids;                    /* return_token_ids: not yet sent, comma separated */
    struct lp_acc lp;                  /* not yet sent */
    struct ending ending;
};

/* Owned by its request (hreq.ud). */
struct gen {
    struct hreq *r;
    struct server *srv;
    struct api_req q;
    struct api_err err;
    bool failed;   /* of a pool job */
    bool finished; /* the answer or the stream's end is decided: events no longer matter */
    char id[40];
    struct render render;
    struct choice *c;
    size_t n, n_done;
    int64_t submit_us; /* 0: not yet */
    struct gen *dirty_next;
    bool dirty;
};

struct gen_table *gens_new(void);
void gens_add(struct gen_table *t, struct choice *c); /* gives it an id */
void gens_remove(struct gen_table *t, struct choice *c);
struct choice *gens_find(const struct gen_table *t, uint64_t id);
void gens_mark(struct gen_table *t, struct gen *g); /* to be flushed */
void gens_unmark(struct gen_table *t, struct gen *g);

/* Writes what is pending of a stream. */
void gen_flush(struct gen *g);

/* callbacks of hreq */
void gen_pause(struct hreq *r, bool on);
void gen_gone(struct hreq *r);
void gen_tick(struct hreq *r, int64_t now);
void gen_free(struct hreq *r);

#endif
