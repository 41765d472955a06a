/* Writes into another process's memory, of process_vm_writev(2) and proc_pid_mem(5): all bytes are there when the
 * call has ended, whatever else happens to the pages meanwhile. */
#include "conformance.h"

#include <pthread.h>
#include <sys/uio.h>

#define WRITTEN 128
#define ROUNDS 1500
#define TIME_MS (is_slow() ? 4000 : 500)

/* The last byte of each page is the child's own. */
static void *makes_pages_leave(void *at) {
    char *p = at;
    for (char i = 0;; i++) {
        for (size_t page = 0; page < WRITTEN; page++)
            ((volatile char *)p)[page * PAGE + PAGE - 1] = i;
        madvise(p, WRITTEN * PAGE, MADV_PAGEOUT);
        if (i % 4 == 0)
            sched_yield();
    }
    return NULL;
}
static void has_all(const char *p, char want) {
    for (size_t i = 0; i < WRITTEN * PAGE; i++)
        if (i % PAGE != PAGE - 1 && p[i] != want)
            FAIL("byte %zu of page %zu is %d, and not %d", i % PAGE, i / PAGE, p[i], want);
}
static long now_ms(void) {
    struct timespec t;
    OK(clock_gettime(CLOCK_MONOTONIC, &t));
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* `write_to` writes into a child whose pages are evicted and faulted in all the time, round by round; after each
 * round the child checks all bytes. The bytes come from a file's mapping without its pages, which takes a while. */
static void writes_into_a_child(ssize_t (*write_to)(pid_t, char *from, char *to, size_t bytes)) {
    char *p = absent(WRITTEN), round = 1, answer;
    int there[2], back[2];
    OK(pipe(there));
    OK(pipe(back));
    pid_t child = CHILD({
        pthread_t thread;
        char want;
        /* A process keeps its last pages. */
        away(p, WRITTEN * PAGE);
        EXPECT_EQ(pthread_create(&thread, NULL, makes_pages_leave, p), 0);
        while (read(there[0], &want, 1) == 1) {
            has_all(p, want);
            EXPECT_EQ(write(back[1], &want, 1), 1);
        }
    });
    close(back[1]);
    int file = OK(memfd_create("from", MFD_CLOEXEC));
    OK(ftruncate(file, WRITTEN * PAGE));
    char *from = OK((char *)mmap(NULL, WRITTEN * PAGE, RW, MAP_SHARED, file, 0));
    long begun = now_ms();
    for (int i = 0; i < ROUNDS && now_ms() - begun < TIME_MS; i++) {
        round = (char)(i % 100 + 1);
        memset(from, round, WRITTEN * PAGE);
        madvise(from, WRITTEN * PAGE, MADV_DONTNEED);
        for (size_t done = 0; done < WRITTEN * PAGE;)
            done += OK(write_to(child, from + done, p + done, WRITTEN * PAGE - done));
        EXPECT_EQ(write(there[1], &round, 1), 1);
        if (read(back[0], &answer, 1) != 1)
            FAIL("round %d: not all that was written is there (exit status %#x)", i, status_of(child));
    }
    kill(child, SIGKILL);
    status_of(child);
}

static ssize_t by_vector(pid_t child, char *from, char *to, size_t bytes) {
    struct iovec local = {from, bytes}, remote = {to, bytes};
    return process_vm_writev(child, &local, 1, &remote, 1, 0);
}
CASE(vm_writev_while_pages_leave) { writes_into_a_child(by_vector); }

static int memory_of(pid_t child) {
    static int fd;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/mem", child);
    if (fd == 0)
        fd = OK(open(path, O_RDWR | O_CLOEXEC));
    return fd;
}
static ssize_t by_pwrite(pid_t child, char *from, char *to, size_t bytes) {
    return pwrite(memory_of(child), from, bytes, (off_t)(uintptr_t)to);
}
CASE(mem_pwrite_while_pages_leave) { writes_into_a_child(by_pwrite); }

static ssize_t by_write(pid_t child, char *from, char *to, size_t bytes) {
    OK(lseek(memory_of(child), (off_t)(uintptr_t)to, SEEK_SET));
    return write(memory_of(child), from, bytes);
}
CASE(mem_write_while_pages_leave) { writes_into_a_child(by_write); }

/* None of it was evicted, and no thread of the child can answer. */
CASE(vm_writev_into_a_child_that_is_stopped) {
    char *p = pages(4), *q = pages(4);
    memset(p, 1, 4 * PAGE);
    fill(q, 4 * PAGE);
    int fd[2];
    char ready;
    OK(pipe(fd));
    pid_t child = CHILD({
        memset(p, 2, 4 * PAGE);
        EXPECT_EQ(write(fd[1], "x", 1), 1);
        raise(SIGSTOP);
        EXPECT(is_filled(p, 4 * PAGE));
    });
    EXPECT_EQ(read(fd[0], &ready, 1), 1);
    EXPECT(waitpid(child, NULL, WUNTRACED) == child);
    struct iovec local = {q, 4 * PAGE}, remote = {p, 4 * PAGE};
    EXPECT_EQ(OK(process_vm_writev(child, &local, 1, &remote, 1, 0)), 4 * PAGE);
    kill(child, SIGCONT);
    EXPECT_EXIT(child, 0);
}
/* Ranges of both kinds, including the child's stack; an unwritable one ends the call there. */
CASE(vm_writev_by_vectors) {
    char *p = absent(700), *q = absent(700), *reads = pages(1);
    OK(mprotect(reads, PAGE, PROT_READ));
    static char plain[1000];
    int fd[2];
    char ready;
    OK(pipe(fd));
    char on_stack[100] = {0};
    pid_t child = CHILD({
        memset(p, 0, 700 * PAGE);
        away(p, 700 * PAGE);
        EXPECT_EQ(write(fd[1], "x", 1), 1);
        pause();
        _exit(1);
    });
    EXPECT_EQ(read(fd[0], &ready, 1), 1);
    struct iovec local[] = {{q, 100}, {q + 100, 600 * PAGE}, {q + 600 * PAGE + 100, 100 * PAGE - 100}};
    struct iovec remote[] = {{p, 300 * PAGE + 7}, {plain, 1000}, {on_stack, 100}, {p + 300 * PAGE + 1107, 399 * PAGE - 7},
                             {reads, 10}};
    ssize_t most = (300 + 399) * PAGE + 1100;
    EXPECT_EQ(OK(process_vm_writev(child, local, 3, remote, 5, 0)), most);
    char *again = pages(700);
    struct iovec back = {again, 700 * PAGE};
    EXPECT_EQ(OK(process_vm_readv(child, &back, 1, remote, 4, 0)), most);
    EXPECT(is_filled(again, most));
    EXPECT_ERROR(process_vm_writev(child, local, 3, remote, 5, 1), EINVAL);
    EXPECT_ERROR(process_vm_writev(child, local, 3, remote, 5000, 0), EINVAL);
    EXPECT_ERROR(process_vm_writev(child, local, 1, remote + 4, 1, 0), EFAULT);
    EXPECT_EQ(process_vm_writev(child, local, 1, remote, 0, 0), 0);
    kill(child, SIGKILL);
    status_of(child);
}
