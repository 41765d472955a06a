/* A program that has not allocated anything reads and writes below its initial break, where a heap may be, and
 * restores the break. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(void)
{
    char *start = sbrk(0);
    volatile char *below = start - 1;
    *below = (char)(*below + 1);
    for (int i = 0; i < 2000; i++) {
        char *page = sbrk(4096);
        if (page != start + 4096L * i)
            return 1;
        memset(page, i, 4096);
    }
    if (brk(start) != 0 || sbrk(0) != start || *below != 1)
        return 2;
    if (write(1, "right\n", 6) != 6)
        return 3;
    return 0;
}
