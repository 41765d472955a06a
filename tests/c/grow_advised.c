/* Mappings with advice for forks grow and move as one: memory added by mremap belongs to the mapping that it grows,
 * with its advice, so that the next mremap and the next fork see one mapping. Contents are checked after each step. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096UL

static char *fill(char *at, unsigned long from, unsigned long to)
{
    for (unsigned long i = from; i < to; i++)
        memset(at + i * PAGE, (int)(i % 251) + 1, PAGE);
    return at;
}

static int holds(const char *at, unsigned long pages)
{
    for (unsigned long i = 0; i < pages; i++)
        for (unsigned long b = 0; b < PAGE; b += 511)
            if (at[i * PAGE + b] != (char)(i % 251 + 1))
                return 0;
    return 1;
}

int main(void)
{
    const int advice[] = {MADV_WIPEONFORK, MADV_DONTFORK, MADV_NORMAL};
    for (int n = 0; n < 3; n++) {
        unsigned long pages = 100;
        char *at = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED || madvise(at, pages * PAGE, advice[n]))
            return 1;
        fill(at, 0, pages);
        /* Beyond the memory limit, so that pages of all kinds are moved: resident, far, untouched. */
        for (; pages < 12000; pages *= 2) {
            at = mremap(at, pages * PAGE, 2 * pages * PAGE, MREMAP_MAYMOVE);
            if (at == MAP_FAILED) {
                perror("mremap");
                return 2;
            }
            fill(at, pages, 2 * pages);
            if (!holds(at, 2 * pages))
                return 3;
        }
        /* Moved to the place of another mapping, at an odd distance. */
        char *place = mmap(0, (pages + 7) * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (place == MAP_FAILED)
            return 1;
        place += 7 * PAGE;
        at = mremap(at, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place);
        if (at != place || !holds(at, pages))
            return 4;
        pid_t child = advice[n] == MADV_DONTFORK ? 0 : fork();
        if (child == 0 && advice[n] == MADV_WIPEONFORK) {
            for (unsigned long i = 0; i < pages; i++)
                if (at[i * PAGE] != 0)
                    _exit(5);
            _exit(0);
        }
        if (child == 0 && advice[n] == MADV_NORMAL)
            _exit(holds(at, pages) ? 0 : 5);
        int status = 0;
        /* While the child exists, pages are shared, and cannot be moved without a copy. */
        if (advice[n] == MADV_NORMAL) {
            char *next = mmap(0, pages * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            at = mremap(at, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, next);
            if (next == MAP_FAILED || at != next)
                return 6;
        }
        if (child > 0 && (waitpid(child, &status, 0) != child || status != 0))
            return 5;
        if (!holds(at, pages) || munmap(at, pages * PAGE))
            return 7;
    }
    if (write(1, "right\n", 6) != 6)
        return 8;
    return 0;
}
