/* Faults that wait: threads on the same far pages, forks, mapping calls. Until its standard input ends.
 * usage: slow_faults MIB */
#include "common.h"

static struct ballast ballast;
static volatile int stop;

static void *sweeps(void *arg) {
    size_t at = 0, step = (size_t)arg;
    while (!stop) {
        at = (at + step) % ballast.pages;
        CHECK(pattern_check(ballast.base + at * WORDS, ballast.tag + at + 1) < 0, "page %zu", at);
    }
    return NULL;
}

static void *forks(void *arg) {
    while (!stop) {
        pid_t pid = fork();
        CHECK(pid >= 0, "fork: %s", strerror(errno));
        if (pid == 0)
            _exit(0);
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && status == 0, "child: %#x", status);
        usleep(20000);
    }
    return arg;
}

static void *maps(void *arg) {
    while (!stop) {
        volatile char *p = map_pages(1024, PROT_READ | PROT_WRITE);
        for (size_t i = 0; i < 1024; i++)
            p[i * PAGE] = 1;
        munmap((void *)p, 1024 * PAGE);
        usleep(1000);
    }
    return arg;
}

int main(int argc, char **argv) {
    CHECK(argc == 2, "usage: slow_faults MIB");
    ballast_make(&ballast, (size_t)atol(argv[1]), 3);
    pthread_t t[5];
    for (int i = 0; i < 3; i++) /* the same pages in the same order */
        CHECK(pthread_create(&t[i], NULL, sweeps, (void *)(uintptr_t)7919) == 0, "thread");
    CHECK(pthread_create(&t[3], NULL, forks, NULL) == 0, "thread");
    CHECK(pthread_create(&t[4], NULL, maps, NULL) == 0, "thread");
    printf("ready\n");
    fflush(stdout);
    char c;
    while (read(0, &c, 1) > 0)
        ;
    stop = 1;
    for (int i = 0; i < 5; i++)
        pthread_join(t[i], NULL);
    printf("right\n");
    return 0;
}
