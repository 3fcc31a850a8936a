/* Requests and events: allocation. An event is one block, so that a token costs one allocation. */
#include "engine/sched/gen.h"

#include <math.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"

struct gen_req *gen_req_new(void)
{
    struct gen_req *r = MEM_NEW(struct gen_req);
    r->p.top_p = 1;
    r->p.repetition = 1;
    r->p.n_logprobs = r->p.n_prompt_logprobs = -1;
    return r;
}

void gen_req_free(struct gen_req *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < r->n_stop; i++)
        mem_free(r->stop[i]);
    mem_free(r->stop);
    mem_free(r->prompt);
    mem_free(r);
}

struct gen_evt *gen_evt_new(uint64_t id, enum gen_evt_kind kind, int n_tok, int n_top,
                            size_t n_text)
{
    CHECK(n_tok >= 0 && n_top >= 0);
    size_t nt = (size_t)n_tok, na = mem_mul(nt, (size_t)n_top);
    size_t off_tok = sizeof(struct gen_evt); /* members are ordered by falling alignment */
    size_t off_id = off_tok + mem_mul(nt, sizeof(struct gen_tok));
    size_t off_lp = off_id + mem_mul(na, sizeof(int32_t));
    size_t off_text = off_lp + mem_mul(na, sizeof(float));
    char *m = mem_alloc(off_text + n_text + 1);
    struct gen_evt *e = (struct gen_evt *)m;
    memset(e, 0, sizeof *e);
    e->id = id;
    e->kind = kind;
    e->stop_string = -1;
    e->stop_id = -1;
    e->tok = (struct gen_tok *)(m + off_tok);
    e->n_tok = n_tok;
    e->text = m + off_text;
    e->n_text = n_text;
    e->text[n_text] = 0;
    for (size_t i = 0; i < nt; i++)
        e->tok[i] = (struct gen_tok){
            .logprob = NAN,
            .top_id = (const int32_t *)(m + off_id) + i * (size_t)n_top,
            .top_logprob = (const float *)(m + off_lp) + i * (size_t)n_top,
        };
    return e;
}

void gen_evt_free(struct gen_evt *e)
{
    mem_free(e);
}
