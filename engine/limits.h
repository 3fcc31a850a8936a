/* Every bound in one place. A queue, list or string that a client or a file can make longer has
 * its limit here; what is exceeded is an error that names it. Seen by CUDA code: constants only. */
#ifndef SPECD_LIMITS_H
#define SPECD_LIMITS_H

enum {
    /* device-resident request slots */
    LIM_SLOTS = 1025,       /* slot 0 is padding, so at most 1,024 requests decode at once */
    LIM_STOP_IDS = 32,      /* stop token ids of a request, end-of-sequence ids included */
    LIM_BIAS = 1024,        /* logit_bias entries */
    LIM_LOGPROBS = 20,      /* alternatives reported beside the sampled token */
    LIM_ROWS_PER_REQ = 64,  /* rows of one request in one verify: root and drafts */
    LIM_EMIT = 16,          /* tokens one verify may emit: the longest drafted path, and one */
    LIM_SPEC_TOPK = 16,     /* branches of a drafted tree at every step */
    LIM_DRAFT_NODES = 1024, /* candidates of one draft round: topk + (steps - 1) topk^2 */
    LIM_TAPS = 8,           /* target layers whose input a drafter reads */
    LIM_KV_GROUPS = 4,
    LIM_EXPERTS_PER_TOK = 32,
    LIM_RANKS = 16, /* of tensor parallelism */

    /* requests */
    LIM_STOP_STRINGS = 16,
    LIM_STOP_BYTES = 1024, /* one stop string */
    LIM_N = 128,           /* choices */
    LIM_PROMPTS = 1024,    /* prompts of one completions request */
    LIM_MESSAGES = 16384,

    /* chat templates (server/chat); over a bound of a render is E_RANGE */
    LIM_CHAT_SOURCE = 1 << 20,   /* bytes of a template */
    LIM_CHAT_NAMES = 4096,       /* distinct variable names in it */
    LIM_CHAT_NESTING = 200,      /* nested expressions and blocks, at parse time */
    LIM_CHAT_DEPTH = 1500,       /* nested evaluations, at render time */
    LIM_CHAT_STEPS = 30000000,   /* nodes evaluated plus bytes touched / 32 */
    LIM_CHAT_OUTPUT = 16 << 20,  /* bytes of the prompt, and of any string on the way */
    LIM_CHAT_ITEMS = 1 << 20,    /* items of a list or dict */
    LIM_CHAT_RANGE = 100000,     /* items of range() */
    LIM_CHAT_MEMORY = 256 << 20, /* bytes of one render */
};

#endif
