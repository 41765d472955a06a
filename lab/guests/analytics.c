/* Programs of FastSwap's table III and figure 4 for a guest, each with an answer that follows from its size.
 *
 * analytics lr|kmeans|sort MIB PASSES
 *
 * Fills MIB of memory and goes over it; prints "ready" with the seconds that filling took, and "done" with the
 * seconds of the passes and the answer. Samples have 20 features in steps of a sixteenth.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FEATURES = 20, CENTRES = 4 };

struct sample {
    float label, feature[FEATURES];
};

static uint64_t state = 88172645463325252ull;

static uint32_t draw(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state >> 32;
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static struct sample *fill(size_t n)
{
    struct sample *all = malloc(n * sizeof *all);
    if (!all)
        exit(1);
    for (size_t i = 0; i < n; i++) {
        float sum = 0;
        for (int k = 0; k < FEATURES; k++) {
            all[i].feature[k] = (float)(draw() % 64) / 16 - 2;
            sum += k % 2 ? all[i].feature[k] : -all[i].feature[k];
        }
        all[i].label = sum > 0;
    }
    return all;
}

static double lr(const struct sample *all, size_t n, int passes)
{
    float weight[FEATURES] = {0};
    for (int pass = 0; pass < passes; pass++) {
        float step[FEATURES] = {0};
        for (size_t i = 0; i < n; i++) {
            float sum = 0;
            for (int k = 0; k < FEATURES; k++)
                sum += weight[k] * all[i].feature[k];
            /* A sigmoid without a library. */
            float guess = 0.5f + sum / (2 * (1 + (sum < 0 ? -sum : sum)));
            for (int k = 0; k < FEATURES; k++)
                step[k] += (all[i].label - guess) * all[i].feature[k];
        }
        for (int k = 0; k < FEATURES; k++)
            weight[k] += step[k] / (float)n;
    }
    double answer = 0;
    for (int k = 0; k < FEATURES; k++)
        answer += weight[k] * (k + 1);
    return answer;
}

static double kmeans(const struct sample *all, size_t n, int passes)
{
    float centre[CENTRES][FEATURES];
    double total = 0;
    for (int c = 0; c < CENTRES; c++)
        memcpy(centre[c], all[n / CENTRES * c].feature, sizeof centre[c]);
    for (int pass = 0; pass < passes; pass++) {
        double sum[CENTRES][FEATURES] = {{0}}, count[CENTRES] = {0};
        total = 0;
        for (size_t i = 0; i < n; i++) {
            int best = 0;
            float least = 1e30f;
            for (int c = 0; c < CENTRES; c++) {
                float far = 0;
                for (int k = 0; k < FEATURES; k++) {
                    float d = all[i].feature[k] - centre[c][k];
                    far += d * d;
                }
                if (far < least) {
                    least = far;
                    best = c;
                }
            }
            total += least;
            count[best]++;
            for (int k = 0; k < FEATURES; k++)
                sum[best][k] += all[i].feature[k];
        }
        for (int c = 0; c < CENTRES; c++)
            for (int k = 0; k < FEATURES && count[c] > 0; k++)
                centre[c][k] = (float)(sum[c][k] / count[c]);
    }
    return total;
}

static int compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    size_t bytes = strtoull(argv[2], NULL, 10) << 20;
    int passes = atoi(argv[3]);
    double began = now_s(), answer = 0;
    if (!strcmp(argv[1], "sort")) {
        size_t n = bytes / sizeof(uint32_t);
        uint32_t *all = malloc(bytes);
        if (!all)
            return 1;
        for (size_t i = 0; i < n; i++)
            all[i] = draw() % 20000000;
        printf("ready %.3f\n", now_s() - began);
        fflush(stdout);
        began = now_s();
        qsort(all, n, sizeof *all, compare);
        for (size_t i = 1; i < n; i++)
            answer += all[i] < all[i - 1] ? 1e18 : all[i] ^ (uint32_t)i;
    } else {
        size_t n = bytes / sizeof(struct sample);
        struct sample *all = fill(n);
        printf("ready %.3f\n", now_s() - began);
        fflush(stdout);
        began = now_s();
        answer = strcmp(argv[1], "lr") ? kmeans(all, n, passes) : lr(all, n, passes);
    }
    printf("done %.3f %.9g\n", now_s() - began, answer);
    return 0;
}
