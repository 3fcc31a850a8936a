/* Files and paths; any thread. */
#include "engine/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/mem.h"

int file_map_open(struct file_map *m, const char *path, struct err *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return FAIL(e, E_IO, "cannot open %s: %s", path, strerror(errno));
    struct stat st;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return FAIL(e, E_IO, "%s is not a regular file", path);
    }
    if (st.st_size == 0) {
        close(fd);
        *m = (struct file_map){.p = "", .len = 0};
        return OK;
    }
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    int saved = errno;
    close(fd);
    if (p == MAP_FAILED)
        return FAIL(e, E_IO, "cannot map %s: %s", path, strerror(saved));
    *m = (struct file_map){.p = p, .len = (size_t)st.st_size};
    return OK;
}

void file_map_close(struct file_map *m)
{
    if (m->len)
        munmap((void *)(size_t)m->p, m->len);
    *m = (struct file_map){0};
}

void file_will_read(const char *p, size_t n)
{
#ifdef MADV_POPULATE_READ
    size_t page = (size_t)sysconf(_SC_PAGESIZE), off = (size_t)p & (page - 1);
    if (n >= page)
        madvise((void *)((size_t)p - off), n + off, MADV_POPULATE_READ); /* older kernels refuse */
#else
    (void)p;
    (void)n;
#endif
}

void file_map_release(const struct file_map *m)
{
    if (m->len)
        madvise((void *)(size_t)m->p, m->len, MADV_DONTNEED);
}

int file_read(char **out, size_t *len, const char *path, size_t max, struct err *e)
{
    struct file_map m = {0};
    TRY(file_map_open(&m, path, e));
    int ret = OK;
    if (m.len > max) {
        ret = FAIL(e, E_RANGE, "%s has %zu bytes, more than the %zu allowed", path, m.len, max);
    } else {
        *out = mem_strndup(m.p, m.len);
        if (len)
            *len = m.len;
    }
    file_map_close(&m);
    return ret;
}

bool file_exists(const char *path)
{
    return access(path, R_OK) == 0;
}

char *path_join(const char *dir, const char *name)
{
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/')
        n--;
    return mem_printf("%.*s/%s", (int)n, dir, name);
}

const char *path_base(const char *path, size_t *len)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    size_t i = n;
    while (i > 0 && path[i - 1] != '/')
        i--;
    *len = n - i;
    return path + i;
}
