// Threads that each read several arrays side by side, page by page: streams of one thread, not of
// all. Prints the sum that it read; exit 1 when it is wrong.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 8, ARRAYS = 4, PAGES = 1024, WORDS = 512, ROUNDS = 3 };

static uint64_t *array[THREADS][ARRAYS];

static void *reader(void *arg) {
    uint64_t me = (uint64_t)arg, sum = 0;
    for (int round = 0; round < ROUNDS; round++)
        for (int page = 0; page < PAGES; page++)
            for (int a = 0; a < ARRAYS; a++)
                for (int word = 0; word < WORDS; word += 64)
                    sum += array[me][a][page * WORDS + word];
    return (void *)sum;
}

int main(void) {
    uint64_t want = 0, got = 0, seed = 88172645463325252ull;
    for (int t = 0; t < THREADS; t++)
        for (int a = 0; a < ARRAYS; a++) {
            array[t][a] = malloc((size_t)PAGES * WORDS * 8);
            for (int i = 0; i < PAGES * WORDS; i++) {
                seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
                array[t][a][i] = i % 2 ? seed : (uint64_t)i;
                if (i % 64 == 0) want += array[t][a][i] * ROUNDS;
            }
        }
    pthread_t thread[THREADS];
    for (uint64_t t = 0; t < THREADS; t++) pthread_create(&thread[t], 0, reader, (void *)t);
    for (int t = 0; t < THREADS; t++) {
        void *sum;
        pthread_join(thread[t], &sum);
        got += (uint64_t)sum;
    }
    printf("%s %llu\n", got == want ? "ok" : "WRONG", (unsigned long long)got);
    return got != want;
}
