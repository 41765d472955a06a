/* Calls functions of libc that have probes, while pages are evicted and faulted in; returns the number of wrong
 * results. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGES (40L << 8)

int main(void) {
    unsigned char *p = aligned_alloc(4096, PAGES << 12);
    int bad = 0;
    for (long i = 0; i < PAGES; i++)
        p[i << 12] = i * 7;
    for (int round = 0; round < 3; round++)
        for (long i = 0; i < PAGES; i++) {
            bad += p[i << 12] != (unsigned char)(i * 7);
            if (i % 64 == 0) {
                getppid();
                bad += write(1, "", 0) != 0 || madvise(p, 0, MADV_NORMAL) != 0;
            }
        }
    printf("bad %d\n", bad);
    return bad != 0;
}
