/* Load generator for redis (RESP) and memcached (text) over a UNIX socket; checks every value.
 *
 * usage: kvload redis|memcached SOCKET load KEYS BYTES
 *        kvload redis|memcached SOCKET zipf|uniform KEYS BYTES SECONDS CONNECTIONS DEPTH SET_PERCENT SEED
 *
 * `load` stores all keys. The others run GETs and SETs with DEPTH requests in flight on each of the
 * connections, for a quarter of the time unmeasured. Prints one JSON object.
 */
#include "data.h"
#include <sys/socket.h>
#include <sys/un.h>

#define THETA 0.99
#define INPUT (1 << 20)

struct connection {
    int fd;
    unsigned char *in;
    size_t have, at;
    uint64_t *keys; /* keys of requests in flight; top bit: a SET */
    uint64_t sent_ns;
};

static int memcached;
static size_t value_bytes, key_count;
static double zetan, alpha, eta;
static uint64_t missing;

static int connect_to(const char *path) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof a.sun_path)
        die("socket path too long: %s", path);
    strcpy(a.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) != 0)
        die("connect %s: %s", path, strerror(errno));
    return fd;
}

static void send_all(int fd, const unsigned char *p, size_t n) {
    while (n) {
        ssize_t done = write(fd, p, n);
        if (done <= 0)
            die("write: %s", strerror(errno));
        p += done;
        n -= (size_t)done;
    }
}

static void refill(struct connection *c) {
    if (c->at && c->at == c->have)
        c->at = c->have = 0;
    if (c->have == INPUT) {
        memmove(c->in, c->in + c->at, c->have - c->at);
        c->have -= c->at;
        c->at = 0;
    }
    ssize_t n = read(c->fd, c->in + c->have, INPUT - c->have);
    if (n <= 0)
        die("the server closed the connection: %s", n ? strerror(errno) : "end of file");
    c->have += (size_t)n;
}

/* The next line without its CR LF; valid until the next read. */
static char *line(struct connection *c) {
    size_t from = c->at;
    for (;;) {
        unsigned char *end = memchr(c->in + from, '\n', c->have - from);
        if (end) {
            char *start = (char *)c->in + c->at;
            end[-1] = 0;
            c->at = (size_t)(end - c->in) + 1;
            return start;
        }
        size_t scanned = c->have - c->at;
        refill(c);
        from = c->at + scanned;
    }
}

static unsigned char *bytes(struct connection *c, size_t n) {
    while (c->have - c->at < n)
        refill(c);
    unsigned char *p = c->in + c->at;
    c->at += n;
    return p;
}

/* A value: key, version, then a template's bytes. */
static void value_make(unsigned char *p, uint64_t key, uint64_t version) {
    memcpy(p, &key, 8);
    memcpy(p + 8, &version, 8);
    memcpy(p + 16, templates[(key + version) % TEMPLATES], value_bytes - 16);
}

static void value_check(const unsigned char *p, size_t n, uint64_t key) {
    uint64_t got, version;
    memcpy(&got, p, 8);
    memcpy(&version, p + 8, 8);
    if (n != value_bytes || got != key || memcmp(p + 16, templates[(key + version) % TEMPLATES], value_bytes - 16))
        die("the value of key %lu is wrong (%zu bytes, stamp %lu)", (unsigned long)key, n, (unsigned long)got);
}

static size_t put_set(unsigned char *p, uint64_t key, uint64_t version) {
    char name[32];
    int len = snprintf(name, sizeof name, "key:%012lu", (unsigned long)key);
    int n = memcached ? sprintf((char *)p, "set %s 0 0 %zu\r\n", name, value_bytes)
                      : sprintf((char *)p, "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%zu\r\n", len, name, value_bytes);
    value_make(p + n, key, version);
    memcpy(p + n + value_bytes, "\r\n", 2);
    return (size_t)n + value_bytes + 2;
}

static size_t put_get(unsigned char *p, uint64_t key) {
    char name[32];
    int len = snprintf(name, sizeof name, "key:%012lu", (unsigned long)key);
    return (size_t)(memcached ? sprintf((char *)p, "get %s\r\n", name)
                              : sprintf((char *)p, "*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n", len, name));
}

static void take_set(struct connection *c) {
    char *l = line(c);
    if (strcmp(l, memcached ? "STORED" : "+OK"))
        die("SET answered: %s", l);
}

static void take_get(struct connection *c, uint64_t key) {
    char *l = line(c);
    size_t n;
    if (memcached) {
        if (!strcmp(l, "END")) {
            missing++;
            return;
        }
        char *last = strrchr(l, ' ');
        if (strncmp(l, "VALUE ", 6) || !last)
            die("GET answered: %s", l);
        n = strtoul(last, NULL, 10);
    } else {
        if (!strcmp(l, "$-1")) {
            missing++;
            return;
        }
        if (*l != '$')
            die("GET answered: %s", l);
        n = strtoul(l + 1, NULL, 10);
    }
    value_check(bytes(c, n + 2), n, key);
    if (memcached && strcmp(line(c), "END"))
        die("GET: no END");
}

static void zipf_make(size_t n) {
    for (size_t i = 1; i <= n; i++)
        zetan += 1 / __builtin_pow((double)i, THETA);
    alpha = 1 / (1 - THETA);
    eta = (1 - __builtin_pow(2.0 / (double)n, 1 - THETA)) / (1 - (1 + __builtin_pow(0.5, THETA)) / zetan);
}

static uint64_t zipf_next(struct rng *r) {
    double u = (double)(rng_next(r) >> 11) / 9007199254740992.0, uz = u * zetan;
    uint64_t rank = uz < 1                                      ? 0
                    : uz < 1 + __builtin_pow(0.5, THETA)        ? 1
                                                                : (uint64_t)((double)key_count * __builtin_pow(eta * u - eta + 1, alpha));
    return mix64(rank) % key_count;
}

static void load(struct connection *c) {
    size_t batch = 64;
    unsigned char *out = malloc(batch * (value_bytes + 128));
    uint64_t began = now_ns();
    for (uint64_t k = 0; k < key_count; k += batch) {
        size_t n = 0, count = 0;
        for (uint64_t j = k; j < key_count && j < k + batch; j++, count++)
            n += put_set(out + n, j, 0);
        send_all(c->fd, out, n);
        while (count--)
            take_set(c);
    }
    double s = (double)(now_ns() - began) / 1e9;
    printf("{\"keys\": %zu, \"seconds\": %.3f, \"ops_per_s\": %.0f}\n", key_count, s, (double)key_count / s);
}

int main(int argc, char **argv) {
    if (argc < 6)
        die("usage: see the head of kvload.c");
    memcached = !strcmp(argv[1], "memcached");
    key_count = strtoul(argv[4], NULL, 10);
    value_bytes = strtoul(argv[5], NULL, 10);
    if (value_bytes < 24 || value_bytes > PAGE)
        die("value size must be 24 to 4096");
    templates_make(7);
    int is_load = !strcmp(argv[3], "load"), is_zipf = !strcmp(argv[3], "zipf");
    if (!is_load && argc != 11)
        die("usage: see the head of kvload.c");
    size_t connections = is_load ? 1 : strtoul(argv[7], NULL, 10), depth = is_load ? 64 : strtoul(argv[8], NULL, 10);
    struct connection *c = calloc(connections, sizeof *c);
    for (size_t i = 0; i < connections; i++) {
        c[i].fd = connect_to(argv[2]);
        c[i].in = malloc(INPUT);
        c[i].keys = calloc(depth, sizeof(uint64_t));
    }
    if (is_load) {
        load(c);
        return 0;
    }
    double seconds = strtod(argv[6], NULL);
    unsigned set_percent = (unsigned)atoi(argv[9]);
    struct rng r = {strtoul(argv[10], NULL, 10)};
    if (is_zipf)
        zipf_make(key_count);
    unsigned char *out = malloc(depth * (value_bytes + 128));
    struct histogram *h = calloc(1, sizeof *h);
    uint64_t began = now_ns(), measure = began + (uint64_t)(seconds * 0.25e9), end = measure + (uint64_t)(seconds * 1e9);
    uint64_t ops = 0, first_ns = 0, now = began;
    for (int warm = 1; now < end;) {
        for (size_t i = 0; i < connections; i++) {
            size_t n = 0;
            for (size_t d = 0; d < depth; d++) {
                uint64_t key = is_zipf ? zipf_next(&r) : rng_below(&r, key_count);
                int set = rng_below(&r, 100) < set_percent;
                c[i].keys[d] = key | (set ? 1ULL << 63 : 0);
                n += set ? put_set(out + n, key, rng_next(&r)) : put_get(out + n, key);
            }
            c[i].sent_ns = now_ns();
            send_all(c[i].fd, out, n);
        }
        for (size_t i = 0; i < connections; i++) {
            for (size_t d = 0; d < depth; d++) {
                if (c[i].keys[d] >> 63)
                    take_set(&c[i]);
                else
                    take_get(&c[i], c[i].keys[d]);
            }
            now = now_ns();
            if (!warm) {
                histogram_add(h, now - c[i].sent_ns);
                ops += depth;
            }
        }
        if (warm && now >= measure) {
            warm = 0;
            first_ns = now;
        }
    }
    double span_s = (double)(now - first_ns) / 1e9;
    if (missing)
        die("%lu keys were missing", (unsigned long)missing);
    printf("{\"ops\": %lu, \"ops_per_s\": %.0f, \"batch_p50_ns\": %lu, \"batch_p99_ns\": %lu}\n", (unsigned long)ops,
           (double)ops / span_s, (unsigned long)histogram_at(h, 0.5), (unsigned long)histogram_at(h, 0.99));
    return 0;
}
