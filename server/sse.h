/* Event streams: a bounded buffer between the engine's events and a client's socket. Loop thread
 * only. The HTTP library writes the head; from then on its connection is suspended and the chunks
 * are written here, one system call a wake-up; at the end the library gets the connection back. */
#ifndef SPECD_SERVER_SSE_H
#define SPECD_SERVER_SSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "engine/base/buf.h"

struct hreq;
struct sse;

/* on_pause is called when the unsent bytes pass the limit and again when they have gone. */
struct sse *sse_new(struct hreq *r, size_t limit, void (*on_pause)(struct hreq *r, bool on));
void sse_free(struct sse *s);
struct buf *sse_buf(struct sse *s); /* events to send are appended here; then sse_flush */
void sse_flush(struct sse *s);
void sse_end(struct sse *s);           /* nothing more is appended; flushes */
bool sse_is_open(const struct sse *s); /* the head is out or on its way */
/* Silence: sends a comment. True: the reader has taken nothing of what waits for
 * it for stuck_us. */
bool sse_tick(struct sse *s, int64_t now, int64_t ping_us, int64_t stuck_us);

/* for http.c */
ssize_t sse_reader(void *cls, uint64_t pos, char *buf, size_t max);
void sse_queued(struct sse *s);
void sse_writable(struct sse *s);
void sse_direct(struct sse *s); /* from here on the bytes are written to r->dup_fd */

#endif
