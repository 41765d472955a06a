/* A descriptor that the program opens has the lowest free number, as POSIX requires, whatever canvas's threads read
 * meanwhile: a shell closes its input and opens a file in its place. usage: lowest_fd MIB SECONDS */
#include "common.h"

static volatile uint64_t *base;
static size_t pages;
static volatile int over;

/* Keeps reclaim busy: in a fork's child it asks the kernel which pages are shared. */
static void *sweep(void *unused) {
    (void)unused;
    for (uint64_t round = 0; !over; round++)
        for (size_t p = round & 1; p < pages && !over; p += 3)
            base[p * WORDS] = round + p;
    return NULL;
}

static void open_and_close(double seconds, const char *who) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    double end = t.tv_sec + t.tv_nsec / 1e9 + seconds, now;
    pthread_t thread;
    over = 0;
    CHECK(pthread_create(&thread, NULL, sweep, NULL) == 0, "no thread");
    do {
        for (int i = 0; i < 2000; i++) {
            CHECK(close(0) == 0, "%s: close: %s", who, strerror(errno));
            int fd = open("/dev/null", O_RDONLY);
            CHECK(fd == 0, "%s: the lowest descriptor is 0, open gave %d", who, fd);
        }
        clock_gettime(CLOCK_MONOTONIC, &t);
        now = t.tv_sec + t.tv_nsec / 1e9;
    } while (now < end);
    over = 1;
    CHECK(pthread_join(thread, NULL) == 0, "join");
}

int main(int argc, char **argv) {
    CHECK(argc == 3, "usage: lowest_fd MIB SECONDS");
    pages = (size_t)atol(argv[1]) << 8;
    double seconds = atof(argv[2]);
    base = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(base != MAP_FAILED, "mmap: %s", strerror(errno));
    for (size_t p = 0; p < pages; p++)
        base[p * WORDS] = p;
    open_and_close(seconds, "the parent");
    fflush(stdout);
    pid_t pid = fork();
    CHECK(pid >= 0, "fork: %s", strerror(errno));
    if (pid == 0) {
        open_and_close(seconds, "the child");
        _exit(0);
    }
    open_and_close(seconds, "the parent of a child");
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0, "the child ended with %#x", status);
    printf("lowest_fd: right\n");
    return 0;
}
