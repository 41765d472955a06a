/* A break that moves by a page at a time: new memory is zeros, memory beyond it does not exist, and untouched
 * memory costs next to nothing. */
#include "common.h"

static sigjmp_buf back;

static void on_signal(int sig) {
    siglongjmp(back, sig);
}

/* The signal that a write to `at` raises; 0 if it succeeds. */
static int signal_of(volatile char *at) {
    int sig = sigsetjmp(back, 1);
    if (sig == 0)
        *at = 1;
    return sig;
}

static void grow_and_write(int pages) {
    char *start = sbrk(0);
    for (int i = 0; i < pages; i++) {
        char *page = sbrk(PAGE);
        CHECK(page == start + PAGE * i, "the break grew from %p", (void *)page);
        for (unsigned k = 0; k < PAGE; k += 64)
            CHECK(page[k] == 0, "page %d is not zero", i);
        memset(page, 1 + i % 251, PAGE);
        /* Like a stack: down by one, and up again. */
        if (i % 8 == 7) {
            CHECK(sbrk(-(long)PAGE) == page + PAGE, "shrink");
            CHECK(sbrk(PAGE) == page, "grow again");
            CHECK(page[0] == 0 && page[PAGE - 1] == 0, "page %d kept what was given up", i);
            memset(page, 1 + i % 251, PAGE);
        }
    }
    for (int i = 0; i < pages; i++)
        CHECK(start[PAGE * i + 77] == (char)(1 + i % 251), "page %d is wrong", i);
}

static void leave_alone(int pages) {
    unsigned char *resident = malloc((size_t)pages);
    char *start = sbrk(0);
    for (int i = 0; i < pages; i++)
        CHECK(sbrk(PAGE) == start + PAGE * i, "grow");
    CHECK(mincore(start, PAGE * (size_t)pages, resident) == 0, "mincore: %s", strerror(errno));
    int there = 0;
    for (int i = 0; i < pages; i++)
        there += resident[i] & 1;
    CHECK(there <= 16, "%d of %d pages that nobody touched are there", there, pages);
}

static void beyond_is_nothing(void) {
    struct sigaction act = {.sa_handler = on_signal};
    sigaction(SIGSEGV, &act, NULL);
    sigaction(SIGBUS, &act, NULL);
    /* A write by the kernel agrees. */
    for (int i = 0; i < 40; i++) {
        char *end = sbrk(PAGE) + PAGE;
        int zero = open("/dev/zero", O_RDONLY);
        CHECK(read(zero, end, 10) == -1 && errno == EFAULT, "read beyond the break");
        close(zero);
        CHECK(signal_of(end + PAGE * (unsigned)(i % 5)) == SIGSEGV, "write beyond the break");
        CHECK(signal_of(end - 1) == 0, "write below the break");
        CHECK(sbrk(-(long)PAGE) == end, "shrink");
        CHECK(signal_of(end - 1) == SIGSEGV, "write to what was given up");
    }
    /* Another mapping has its own protection there. */
    char *end = sbrk(PAGE) + PAGE;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    CHECK(mmap(end + PAGE, PAGE, PROT_NONE, flags, -1, 0) == end + PAGE, "mmap: %s", strerror(errno));
    CHECK(signal_of(end + PAGE) == SIGSEGV && signal_of(end) == SIGSEGV, "a page without access");
    CHECK(munmap(end + PAGE, PAGE) == 0, "munmap");
    CHECK(sbrk(4 * PAGE) == end && signal_of(end + 2 * PAGE) == 0, "grow over it");
}

int main(void) {
    grow_and_write(6000);
    leave_alone(2000);
    beyond_is_nothing();
    grow_and_write(100);
    printf("right\n");
    return 0;
}
