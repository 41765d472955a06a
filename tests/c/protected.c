// Pages that come back for a read are write-protected by canvas. Whatever writes to one then (the
// program, the kernel for it, a child after a fork, a page that was moved or whose access changed)
// must be seen, or the change is lost when the page leaves. Prints "ok"; exit 1 and the step where
// a byte is wrong. usage: protected ROUNDS
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 8192 };

static uint64_t *memory;
static uint32_t stamp[PAGES];
static int pipes[2];

static uint64_t word(int page, int i) { return (uint64_t)page * 7919 + stamp[page] * 104729u + i; }
static uint64_t *at(int page) { return memory + (size_t)page * (PAGE / 8); }

static void fail(const char *step, int page) {
    printf("WRONG after %s: page %d\n", step, page);
    fflush(stdout);
    _exit(1);
}
static void read_all(const char *step) {
    for (int p = 0; p < PAGES; p++)
        for (int i = 0; i < PAGE / 8; i += 101)
            if (at(p)[i] != word(p, i)) fail(step, p);
}
static void fill(uint64_t *to, int page) {
    for (int i = 0; i < PAGE / 8; i++) to[i] = word(page, i);
}
// Reads the page, which is resident and perhaps protected then. Is it one to change in this round?
static int touched(int round, int p) {
    volatile uint64_t seen = at(p)[8];
    (void)seen;
    return (p * 31 + round) % 3 == 0;
}
static void by_program(int page) { fill(at(page), page); }
static void by_read(int page) {
    uint64_t copy[PAGE / 8];
    fill(copy, page);
    if (write(pipes[1], copy, PAGE) != PAGE || read(pipes[0], at(page), PAGE) != PAGE)
        fail("read(2)", page);
}
static void by_readv(int page) {
    uint64_t copy[PAGE / 8];
    fill(copy, page);
    struct iovec halves[2] = {{at(page), PAGE / 2}, {at(page) + PAGE / 16, PAGE / 2}};
    if (write(pipes[1], copy, PAGE) != PAGE || readv(pipes[0], halves, 2) != PAGE)
        fail("readv(2)", page);
}
static void by_access(int page) {
    mprotect(at(page), PAGE, PROT_READ);
    mprotect(at(page), PAGE, PROT_READ | PROT_WRITE);
    page % 2 ? by_read(page) : by_program(page);
}
static void by_move(int page) {
    void *aside = mremap(at(page), PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED,
                         mmap(0, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (aside == MAP_FAILED) fail("mremap", page);
    if (mremap(aside, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at(page)) != at(page))
        fail("mremap back", page);
    page % 2 ? by_read(page) : by_program(page);
}
static void change(const char *step, int round, void (*how)(int)) {
    for (int first = 0; first < PAGES; first += PAGES / 16) {
        int end = first + PAGES / 16;
        for (int p = first; p < end; p++) touched(round, p);
        for (int p = first; p < end; p++)
            if (touched(round, p)) {
                stamp[p]++;
                how(p);
            }
    }
    read_all(step);
}
// The child changes what it shares with its parent, which leaves while it reads all, and looks again.
static void in_child(int round) {
    // So often unchanged that they are expected to stay so, and come in protected.
    for (int i = 0; i < 3; i++) read_all("nothing");
    for (int p = 0; p < PAGES / 8; p++) touched(round, p);
    pid_t child = fork();
    if (child == 0) {
        for (int p = 0; p < PAGES / 8; p++)
            if (touched(round, p)) {
                stamp[p] += 1000;
                by_program(p);
            }
        read_all("a child's writes");
        read_all("a child's writes, again");
        _exit(0);
    }
    for (int p = 0; p < PAGES / 8; p++)
        if (touched(round, p)) {
            stamp[p]++;
            by_program(p);
        }
    int status = 1;
    waitpid(child, &status, 0);
    if (status != 0) _exit(1);
    read_all("a parent's writes beside a child");
}
// Threads add to words of pages that others read, so that protection is lifted under readers.
static void *adder(void *arg) {
    uint64_t me = (uint64_t)arg;
    for (int p = 0; p < PAGES; p++) {
        volatile uint64_t seen = at(p)[me * 64 + 7];
        if ((seen & 1) == 0 || p % 2) __atomic_add_fetch(&at(p)[me * 64 + 7], 1000000, __ATOMIC_RELAXED);
    }
    return 0;
}
static void by_threads(void) {
    pthread_t thread[4];
    for (int p = 0; p < PAGES; p++)
        for (int t = 0; t < 4; t++) at(p)[t * 64 + 7] = 0;
    for (uint64_t t = 0; t < 4; t++) pthread_create(&thread[t], 0, adder, (void *)t);
    for (int t = 0; t < 4; t++) pthread_join(thread[t], 0);
    for (int p = 0; p < PAGES; p++)
        for (int t = 0; t < 4; t++) {
            if (at(p)[t * 64 + 7] != 1000000) fail("threads' additions", p);
            at(p)[t * 64 + 7] = word(p, t * 64 + 7);
        }
}

int main(int argc, char **argv) {
    if (argc != 2 || pipe(pipes) != 0) return 2;
    int rounds = atoi(argv[1]);
    memory = mmap(0, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int p = 0; p < PAGES; p++) by_program(p);
    for (int round = 0; round < rounds; round++) {
        read_all("nothing");
        change("the program's writes", round, by_program);
        change("read(2)", round, by_read);
        change("readv(2)", round, by_readv);
        change("mprotect", round, by_access);
        change("mremap", round, by_move);
        by_threads();
        in_child(round);
    }
    puts("ok");
    return 0;
}
