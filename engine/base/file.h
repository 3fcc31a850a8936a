/* Read-only file access: memory maps for weights, and path helpers. */
#ifndef SPECD_BASE_FILE_H
#define SPECD_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/err.h"

struct file_map {
    const char *p; /* page aligned; not NUL terminated; never NULL after open */
    size_t len;
};

int file_map_open(struct file_map *m, const char *path, struct err *e);
void file_map_close(struct file_map *m);
/* Hints. Part of a map is about to be read: its pages come in with one call instead of one by one.
 * Nothing of a map is read for a while: its pages leave this process (the system may keep them). */
void file_will_read(const char *p, size_t n);
void file_map_release(const struct file_map *m);
/* Whole file as a NUL-terminated string (mem_free). E_RANGE when longer than max. */
int file_read(char **out, size_t *len, const char *path, size_t max, struct err *e);
bool file_exists(const char *path);
char *path_join(const char *dir, const char *name);   /* mem_free */
const char *path_base(const char *path, size_t *len); /* last component, trailing '/' ignored */

#endif
