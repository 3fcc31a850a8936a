/* One datagram a message; errors are ignored, since nothing can be done about them. Loop thread. */
#include "server/notify.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static const char *g_path;

void notify_init(const char *path)
{
    g_path = path && (*path == '/' || *path == '@') ? path : NULL;
}

void notify_send(const char *fmt, ...)
{
    if (!g_path)
        return;
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    size_t len = strlen(g_path);
    if (n < 0 || (size_t)n >= sizeof text || len >= sizeof sa.sun_path)
        return;
    memcpy(sa.sun_path, g_path, len);
    if (*g_path == '@')
        sa.sun_path[0] = 0; /* the abstract name space */
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    ssize_t w = sendto(fd, text, (size_t)n, MSG_NOSIGNAL, (struct sockaddr *)&sa,
                       (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len));
    (void)w;
    close(fd);
}
