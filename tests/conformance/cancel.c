/* Threads that are cancelled: of pthread_cancel(3), pthread_setcancelstate(3), pthread_cleanup_push(3) and pthreads(7). */
#include "conformance.h"

#include <semaphore.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/select.h>

static int pipe_of[2];
static _Atomic int begun, cleaned;
static void cleans(void *arg) {
    (void)arg;
    cleaned++;
}

/* Cancels `f` when it waits, or just before; it must not return. */
static void cancelled(void *(*f)(void *), void *arg) {
    pthread_t t;
    void *result = NULL;
    begun = cleaned = 0;
    EXPECT_EQ(pthread_create(&t, NULL, f, arg), 0);
    while (!begun)
        sched_yield();
    usleep(20000);
    EXPECT_EQ(pthread_cancel(t), 0);
    EXPECT_EQ(pthread_join(t, &result), 0);
    EXPECT(result == PTHREAD_CANCELED);
    EXPECT_EQ(cleaned, 1);
}

#define WAITS(name, call)                                                                                              \
    static void *waits_##name(void *arg) {                                                                             \
        (void)arg;                                                                                                     \
        pthread_cleanup_push(cleans, NULL);                                                                            \
        begun = 1;                                                                                                     \
        for (;;)                                                                                                       \
            call;                                                                                                      \
        pthread_cleanup_pop(0);                                                                                        \
        return NULL;                                                                                                   \
    }                                                                                                                  \
    CASE(name) {                                                                                                       \
        OK(pipe(pipe_of));                                                                                             \
        OK(mkfifo("fifo", 0600));                                                                                      \
        cancelled(waits_##name, NULL);                                                                                 \
    }

static char here[4096];
WAITS(in_read, read(pipe_of[0], here, 1))
WAITS(in_read_to_absent_memory, read(pipe_of[0], absent(1), 1))
WAITS(in_write, write(pipe_of[1], here, sizeof here))
WAITS(in_a_long_write, write(pipe_of[1], absent(512), 512 * PAGE))
WAITS(in_pause, pause())
WAITS(in_nanosleep, sleep(100))
WAITS(in_poll, poll(&(struct pollfd){.fd = pipe_of[0], .events = POLLIN}, 1, -1))
WAITS(in_ppoll, ppoll(&(struct pollfd){.fd = pipe_of[0], .events = POLLIN}, 1, NULL, &(sigset_t){0}))
WAITS(in_select, select(0, NULL, NULL, NULL, NULL))
WAITS(in_sigsuspend, sigsuspend(&(sigset_t){0}))
WAITS(in_open_of_a_fifo, open("fifo", O_RDONLY))
WAITS(in_a_loop_of_short_calls, fsync(pipe_of[0]))

static void *accepts(void *socket) {
    pthread_cleanup_push(cleans, NULL);
    begun = 1;
    accept(*(int *)socket, NULL, NULL);
    pthread_cleanup_pop(0);
    return NULL;
}
CASE(in_accept) {
    int s = OK(socket(AF_UNIX, SOCK_STREAM, 0));
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "s"};
    OK(bind(s, (struct sockaddr *)&name, sizeof name));
    OK(listen(s, 1));
    cancelled(accepts, &s);
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static void *waits_for_condition(void *arg) {
    (void)arg;
    pthread_mutex_lock(&mutex);
    pthread_cleanup_push(cleans, NULL);
    begun = 1;
    for (;;)
        pthread_cond_wait(&condition, &mutex);
    pthread_cleanup_pop(0);
    return NULL;
}
CASE(in_cond_wait_which_has_the_mutex_again) {
    cancelled(waits_for_condition, NULL);
    EXPECT_EQ(pthread_mutex_trylock(&mutex), EBUSY);
}

static void *waits_for_semaphore(void *semaphore) {
    pthread_cleanup_push(cleans, NULL);
    begun = 1;
    sem_wait(semaphore);
    pthread_cleanup_pop(0);
    return NULL;
}
CASE(in_sem_wait) {
    sem_t *s = (sem_t *)absent(1);
    sem_init(s, 0, 0);
    cancelled(waits_for_semaphore, s);
}

/* Cancelled while that is disabled: the call continues to wait, and the thread ends at the next cancellation point. */
static void *waits_undisturbed(void *arg) {
    (void)arg;
    char c = 0;
    pthread_cleanup_push(cleans, NULL);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    begun = 1;
    if (read(pipe_of[0], &c, 1) == 1 && c == 'x')
        begun = 2;
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    pthread_testcancel();
    pthread_cleanup_pop(0);
    return NULL;
}
CASE(disabled_the_call_goes_on) {
    pthread_t t;
    void *result;
    OK(pipe(pipe_of));
    EXPECT_EQ(pthread_create(&t, NULL, waits_undisturbed, NULL), 0);
    while (!begun)
        sched_yield();
    usleep(20000);
    EXPECT_EQ(pthread_cancel(t), 0);
    usleep(20000);
    EXPECT_EQ(begun, 1);
    OK(write(pipe_of[1], "x", 1));
    EXPECT_EQ(pthread_join(t, &result), 0);
    EXPECT(result == PTHREAD_CANCELED);
    EXPECT_EQ(begun, 2);
    EXPECT_EQ(cleaned, 1);
}

static void *reads_for_ever(void *arg) {
    char *to = arg;
    for (;;)
        read(pipe_of[0], to, 1);
    return NULL;
}
/* At any moment, also on the way into the call: no thread continues to wait. */
CASE(at_any_moment) {
    OK(pipe(pipe_of));
    char *to = absent(64);
    for (int i = 0; i < 300; i++) {
        pthread_t t;
        void *result;
        EXPECT_EQ(pthread_create(&t, NULL, reads_for_ever, to + i % 64 * PAGE), 0);
        for (volatile int spin = 0; spin < i * 200; spin++)
            ;
        EXPECT_EQ(pthread_cancel(t), 0);
        EXPECT_EQ(pthread_join(t, &result), 0);
        EXPECT(result == PTHREAD_CANCELED);
    }
}

/* A program's handler that interrupts the call has the usual result: EINTR, or none. */
static void nothing(int number) {
    (void)number;
}
CASE(other_signals_are_as_before) {
    struct sigaction a = {.sa_handler = nothing};
    OK(pipe(pipe_of));
    OK(sigaction(SIGALRM, &a, NULL));
    ualarm(20000, 0);
    EXPECT_ERROR(read(pipe_of[0], here, 1), EINTR);
    a.sa_flags = SA_RESTART;
    OK(sigaction(SIGALRM, &a, NULL));
    ualarm(20000, 0);
    pid_t child = OK(fork());
    if (child == 0) {
        usleep(60000);
        _exit(write(pipe_of[1], "x", 1) != 1);
    }
    EXPECT_EQ(read(pipe_of[0], here, 1), 1);
}
