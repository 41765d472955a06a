/* Memory that a device may write to during an ioctl is not evicted, although no argument names it; afterwards it is
 * reclaimed as before, even if such calls never stop.
 *
 * usage: device held MIB | device busy MIB
 *
 * The device is a pseudo terminal. A change of its settings that waits for its output (TCSETSW) waits as long as
 * another thread's write to it, which ends when another process reads.
 */
#include "common.h"

#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <termios.h>

#define BUFFER_PAGES 1024

static int master, terminal;
static volatile int caller, over;

static void open_terminal(void) {
    master = posix_openpt(O_RDWR | O_NOCTTY);
    CHECK(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0, "%s", strerror(errno));
    terminal = open(ptsname(master), O_RDWR | O_NOCTTY);
    CHECK(terminal >= 0, "%s", strerror(errno));
}

/* Number of pages of a range that the kernel has in memory. */
static size_t present(const volatile void *at, size_t pages) {
    int fd = open("/proc/self/pagemap", O_RDONLY);
    CHECK(fd >= 0, "%s", strerror(errno));
    size_t n = 0;
    for (size_t p = 0; p < pages; p++) {
        uint64_t entry;
        off_t place = (off_t)(((uintptr_t)at / PAGE + p) * sizeof entry);
        CHECK(pread(fd, &entry, sizeof entry, place) == sizeof entry, "%s", strerror(errno));
        n += entry >> 63;
    }
    close(fd);
    return n;
}

static void *write_much(void *arg) {
    static char text[1 << 16];
    (void)arg;
    memset(text, 'x', sizeof text);
    CHECK(write(terminal, text, sizeof text) == sizeof text, "%s", strerror(errno));
    return NULL;
}

static void *change_settings(void *arg) {
    CHECK(tcgetattr(terminal, arg) == 0, "%s", strerror(errno));
    caller = (int)syscall(SYS_gettid);
    CHECK(ioctl(terminal, TCSETSW, arg) == 0, "%s", strerror(errno));
    return NULL;
}

/* Waits until a thread blocks in a system call. */
static void wait_for_call(const char *what, int tid) {
    char path[64], line[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", tid);
    for (int i = 0; i < 20000; i++) {
        FILE *f = fopen(path, "r");
        CHECK(f, "%s: %s", path, strerror(errno));
        int read = fgets(line, sizeof line, f) != NULL;
        fclose(f);
        if (read && strncmp(line, what, strlen(what)) == 0)
            return;
        usleep(1000);
    }
    fail("thread %d is not in call %s", tid, what);
}

static void held(size_t mib) {
    pthread_t writer, changer;
    struct termios settings;
    volatile uint64_t *buffer = map_pages(BUFFER_PAGES, PROT_READ | PROT_WRITE);
    for (size_t p = 0; p < BUFFER_PAGES; p++)
        pattern_fill(buffer + p * WORDS, 17 + p);
    CHECK(pthread_create(&writer, NULL, write_much, NULL) == 0, "no thread");
    /* The terminal accepts some of it; the rest waits. */
    int waiting = 0;
    for (int last = -1; waiting == 0 || waiting != last; usleep(50000)) {
        last = waiting;
        CHECK(ioctl(master, FIONREAD, &waiting) == 0, "%s", strerror(errno));
    }
    CHECK(pthread_create(&changer, NULL, change_settings, &settings) == 0, "no thread");
    while (!caller)
        usleep(1000);
    wait_for_call("16 ", caller);
    size_t before = present(buffer, BUFFER_PAGES);
    CHECK(before > BUFFER_PAGES / 2, "%zu of the buffer's pages to begin with", before);
    struct ballast first, second;
    ballast_make(&first, mib, 1);
    size_t during = present(buffer, BUFFER_PAGES);
    CHECK(during == before, "%zu of %zu pages are left during the call", during, before);
    wait_for_call("16 ", caller);
    char text[4096];
    for (size_t left = 1 << 16; left > 0;) {
        ssize_t n = read(master, text, sizeof text < left ? sizeof text : left);
        CHECK(n > 0, "%s", strerror(errno));
        left -= (size_t)n;
    }
    CHECK(pthread_join(writer, NULL) == 0 && pthread_join(changer, NULL) == 0, "threads");
    ballast_make(&second, mib, 2);
    size_t after = present(buffer, BUFFER_PAGES);
    CHECK(after < before / 2, "%zu of %zu pages are left after the call", after, before);
    for (size_t p = 0; p < BUFFER_PAGES; p++)
        CHECK(pattern_check(buffer + p * WORDS, 17 + p) < 0, "page %zu", p);
    ballast_sweep(&first);
    ballast_sweep(&second);
}

static void *ask_size(void *arg) {
    struct winsize size;
    while (!over)
        CHECK(ioctl(terminal, TIOCGWINSZ, &size) == 0, "%s", strerror(errno));
    return arg;
}

static void busy(size_t mib) {
    pthread_t askers[2];
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&askers[i], NULL, ask_size, NULL) == 0, "no thread");
    struct ballast b;
    ballast_make(&b, mib, 3);
    ballast_sweep(&b);
    size_t local = present(b.base, b.pages);
    CHECK(local < b.pages / 2, "%zu of %zu pages are local", local, b.pages);
    over = 1;
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(askers[i], NULL) == 0, "threads");
}

int main(int argc, char **argv) {
    CHECK(argc == 3, "usage: device held|busy MIB");
    open_terminal();
    if (strcmp(argv[1], "held") == 0)
        held((size_t)atoi(argv[2]));
    else
        busy((size_t)atoi(argv[2]));
    printf("device %s: right\n", argv[1]);
    return 0;
}
