/* Children that are separate programs, and that take turns with their parent over pipes. */
#ifndef CANVAS_TEST_CHILDREN_H
#define CANVAS_TEST_CHILDREN_H
#include "common.h"

struct child {
    pid_t pid;
    int to, from;
};

static inline void say(int fd) {
    CHECK(write(fd, "x", 1) == 1, "%s", strerror(errno));
}

static inline void hear(int fd) {
    char byte;
    CHECK(read(fd, &byte, 1) == 1, "the other side has ended");
}

static inline struct child start(char *program, char *role, char *pages, char *growth) {
    int to[2], from[2];
    CHECK(pipe(to) == 0 && pipe(from) == 0, "%s", strerror(errno));
    char *argv[] = {program, role, pages, growth, NULL};
    /* vfork's child becomes another program at once. */
    pid_t pid = vfork();
    CHECK(pid >= 0, "%s", strerror(errno));
    if (pid == 0) {
        dup2(to[0], 0);
        dup2(from[1], 1);
        close(to[1]);
        close(from[0]);
        execv(program, argv);
        _exit(1);
    }
    close(to[0]);
    close(from[1]);
    return (struct child){pid, to[1], from[0]};
}

static inline void end(struct child c) {
    int status;
    CHECK(waitpid(c.pid, &status, 0) == c.pid && status == 0, "a child ended with %d", status);
}

#endif
