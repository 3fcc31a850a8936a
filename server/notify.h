/* Messages to the service manager (systemd's notification protocol); nothing without a socket. */
#ifndef SPECD_SERVER_NOTIFY_H
#define SPECD_SERVER_NOTIFY_H

/* path: NOTIFY_SOCKET's value, borrowed for the process' life, or NULL. */
void notify_init(const char *path);
void notify_send(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
