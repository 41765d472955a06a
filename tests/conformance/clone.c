/* Children by clone and clone3: own stacks, namespaces, what the parent and the child are told. */
#include "conformance.h"

#include <linux/sched.h>

#define STACK (64 * 1024)

static int reads_its_argument(void *text) { return strcmp(text, "x") == 0 ? 7 : 1; }

/* A child's memory is its parent's of the moment, and its own from then on. */
static char *shared_pages;
static int has_its_own_memory(void *unused) {
    (void)unused;
    if (!is_filled(shared_pages, 64 * PAGE))
        return 1;
    memset(shared_pages, 0, 64 * PAGE);
    char *more = malloc(1 << 20);
    fill(more, 1 << 20);
    return is_filled(more, 1 << 20) ? 7 : 2;
}

CASE(a_child_on_a_stack_of_malloc) {
    char *stack = malloc(STACK);
    EXPECT_EXIT(OK(clone(reads_its_argument, stack + STACK, SIGCHLD, strdup("x"))), 7);
}

CASE(a_child_has_its_own_memory) {
    shared_pages = absent(64);
    char *stack = malloc(STACK);
    EXPECT_EXIT(OK(clone(has_its_own_memory, stack + STACK, SIGCHLD, NULL)), 7);
    EXPECT(is_filled(shared_pages, 64 * PAGE));
}

CASE(a_child_on_an_absent_stack) {
    shared_pages = absent(64);
    char *stack = absent(STACK / PAGE);
    EXPECT_EXIT(OK(clone(has_its_own_memory, stack + STACK, SIGCHLD, NULL)), 7);
}

static int forks(void *depth) {
    long left = (long)depth;
    if (!is_filled(shared_pages, 64 * PAGE))
        return 1;
    if (left == 0)
        return 7;
    char *stack = malloc(STACK);
    pid_t pid = clone(forks, stack + STACK, SIGCHLD, (void *)(left - 1));
    int status;
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : 3;
}

CASE(children_of_children) {
    shared_pages = absent(64);
    char *stack = malloc(STACK);
    EXPECT_EXIT(OK(clone(forks, stack + STACK, SIGCHLD, (void *)3)), 7);
}

static int seven_later(void *told) {
    sleep_ms(100);
    OK(pwrite((int)(long)told, "x", 1, 0));
    return 7;
}

CASE(vfork_without_shared_memory_waits_for_the_end) {
    char *stack = malloc(STACK), byte = 0;
    int fd = OK(memfd_create("told", 0));
    pid_t pid = OK(clone(seven_later, stack + STACK, CLONE_VFORK | SIGCHLD, (void *)(long)fd));
    EXPECT_EQ(pread(fd, &byte, 1, 0), 1);
    EXPECT_EXIT(pid, 7);
}

static int execs(void *unused) {
    (void)unused;
    sleep_ms(100);
    execl("/bin/sh", "sh", "-c", "sleep 0.2; exit 7", NULL);
    return 1;
}

CASE(vfork_without_shared_memory_goes_on_at_exec) {
    char *stack = malloc(STACK);
    pid_t pid = OK(clone(execs, stack + STACK, CLONE_VFORK | SIGCHLD, NULL));
    EXPECT_EXIT(pid, 7);
}

static pid_t *child_tid;
static int finds_its_tid(void *unused) {
    (void)unused;
    return *child_tid == (pid_t)syscall(SYS_gettid) ? 7 : 1;
}

CASE(numbers_are_written_to_parent_and_child) {
    char *stack = malloc(STACK);
    pid_t *parent_tid = (pid_t *)absent(1);
    child_tid = (pid_t *)absent(1);
    pid_t pid = OK(clone(finds_its_tid, stack + STACK,
                         CLONE_PARENT_SETTID | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | SIGCHLD, NULL,
                         parent_tid, NULL, child_tid));
    EXPECT_EQ(*parent_tid, pid);
    EXPECT_EXIT(pid, 7);
}

CASE(a_pidfd_of_a_child) {
    char *stack = malloc(STACK);
    int *pidfd = (int *)absent(1);
    pid_t pid = OK(clone(reads_its_argument, stack + STACK, CLONE_PIDFD | SIGCHLD, strdup("x"), pidfd));
    siginfo_t ended;
    OK(waitid(P_PIDFD, *pidfd, &ended, WEXITED | WNOWAIT));
    EXPECT_EQ(ended.si_pid, pid);
    EXPECT_EXIT(pid, 7);
}

static int parent_is_mine(void *parent) { return getppid() == (pid_t)(long)parent ? 7 : 1; }

CASE(a_sibling_by_clone_parent) {
    pid_t pid = CHILD({
        char *stack = malloc(STACK);
        OK(clone(parent_is_mine, stack + STACK, CLONE_PARENT | SIGCHLD, (void *)(long)getppid()));
    });
    EXPECT_EXIT(pid, 0);
    EXPECT_EXIT(-1, 7);
}

static int is_pid_one(void *unused) {
    (void)unused;
    return getpid() == 1 && has_its_own_memory(NULL) == 7 ? 7 : 1;
}

CASE(a_child_in_a_user_and_pid_namespace) {
    shared_pages = absent(64);
    char *stack = malloc(STACK);
    pid_t pid = clone(is_pid_one, stack + STACK, CLONE_NEWUSER | CLONE_NEWPID | SIGCHLD, NULL);
    if (pid == -1 && (errno == EPERM || errno == ENOSPC))
        SKIP("no user namespaces here");
    OK(pid);
    EXPECT_EXIT(pid, 7);
}

CASE(a_child_that_shares_descriptors) {
    shared_pages = absent(64);
    char *stack = malloc(STACK);
    EXPECT_EXIT(OK(clone(has_its_own_memory, stack + STACK, CLONE_FILES | SIGCHLD, NULL)), 7);
    EXPECT(is_filled(shared_pages, 64 * PAGE));
    away(shared_pages, 64 * PAGE);
    EXPECT(is_filled(shared_pages, 64 * PAGE));
}

static volatile int stored;
static int stores(void *unused) {
    (void)unused;
    stored = 7;
    return 3;
}

CASE(a_child_in_the_same_memory_that_returns) {
    for (int i = 0; i < 3; i++) {
        char *stack = absent(STACK / PAGE);
        stored = 0;
        EXPECT_EXIT(OK(clone(stores, stack + STACK, CLONE_VM | SIGCHLD, NULL)), 3);
        EXPECT_EQ(stored, 7);
        OK(munmap(stack, STACK));
    }
}

CASE(a_child_by_vfork_flags_in_the_same_memory) {
    char *stack = malloc(STACK);
    stored = 0;
    EXPECT_EXIT(OK(clone(stores, stack + STACK, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL)), 3);
    EXPECT_EQ(stored, 7);
}

CASE(vfork_by_a_system_call) {
    volatile int seen = 0;
    long pid = syscall(SYS_clone, CLONE_VM | CLONE_VFORK | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) {
        seen = 1;
        syscall(SYS_exit_group, 7);
    }
    OK(pid);
    EXPECT_EXIT(pid, 7);
    EXPECT_EQ(seen, 1);
}

CASE(clone3_is_a_fork) {
    shared_pages = absent(64);
    struct clone_args *args = astride(16);
    memset(args, 0, sizeof *args);
    args->exit_signal = SIGCHLD;
    away(args, sizeof *args);
    long pid = syscall(SYS_clone3, args, sizeof *args);
    if (pid == 0)
        _exit(has_its_own_memory(NULL));
    OK(pid);
    EXPECT_EXIT(pid, 7);
    EXPECT(is_filled(shared_pages, 64 * PAGE));
}

static void on_usr1(int signal) { (void)signal; }

CASE(clone3_clears_handlers) {
    shared_pages = absent(64);
    signal(SIGUSR1, on_usr1);
    struct clone_args args = {.flags = 1ULL << 32, .exit_signal = SIGCHLD};
    long pid = syscall(SYS_clone3, &args, sizeof args);
    if (pid == -1 && errno == EINVAL)
        SKIP("no CLONE_CLEAR_SIGHAND");
    if (pid == 0) {
        struct sigaction now;
        sigaction(SIGUSR1, NULL, &now);
        _exit(now.sa_handler == SIG_DFL ? has_its_own_memory(NULL) : 3);
    }
    OK(pid);
    EXPECT_EXIT(pid, 7);
}

CASE(clone3_with_a_bad_size) {
    struct clone_args args = {.exit_signal = SIGCHLD};
    EXPECT_ERROR(syscall(SYS_clone3, &args, 8), EINVAL);
    EXPECT_ERROR(syscall(SYS_clone3, hole(), sizeof args), EFAULT);
    args.stack = (uintptr_t)pages(1);
    EXPECT_ERROR(syscall(SYS_clone3, &args, sizeof args), EINVAL);
}

CASE(clone_of_bad_flags) {
    EXPECT_ERROR(syscall(SYS_clone, CLONE_NEWNS | CLONE_FS, 0, 0, 0, 0), EINVAL);
    EXPECT_ERROR(syscall(SYS_clone, CLONE_THREAD, 0, 0, 0, 0), EINVAL);
    EXPECT_ERROR(clone(NULL, pages(1) + PAGE, SIGCHLD, NULL), EINVAL);
}

static void *thread(void *text) { return (void *)(long)reads_its_argument(text); }

CASE(a_thread_on_an_absent_stack) {
    for (int i = 0; i < 3; i++) {
        pthread_attr_t attributes;
        pthread_t id;
        void *result;
        pthread_attr_init(&attributes);
        EXPECT_EQ(pthread_attr_setstack(&attributes, absent(32), 32 * PAGE), 0);
        EXPECT_EQ(pthread_create(&id, &attributes, thread, "x"), 0);
        EXPECT_EQ(pthread_join(id, &result), 0);
        EXPECT_EQ((long)result, 7);
    }
}

/* Namespaces of the calling program, which has one thread. */
static void unshares(int flags) {
    shared_pages = absent(64);
    if (unshare(flags) == -1) {
        if (errno == EPERM || errno == ENOSPC)
            SKIP("unshare: %s", strerror(errno));
        FAIL("unshare: %s", strerror(errno));
    }
    EXPECT(is_filled(shared_pages, 64 * PAGE));
    away(shared_pages, 64 * PAGE);
    EXPECT(is_filled(shared_pages, 64 * PAGE));
    EXPECT_EXIT(CHILD(_exit(has_its_own_memory(NULL))), 7);
}

CASE(unshare_of_the_user_namespace) { unshares(CLONE_NEWUSER); }
CASE(unshare_of_user_and_mount_namespaces) { unshares(CLONE_NEWUSER | CLONE_NEWNS); }
CASE(unshare_of_user_and_pid_namespaces) { unshares(CLONE_NEWUSER | CLONE_NEWPID); }
CASE(unshare_of_files_and_directories) { unshares(CLONE_FILES | CLONE_FS); }
CASE(unshare_of_memory) { unshares(CLONE_VM | CLONE_SIGHAND | CLONE_THREAD); }

/* A child in namespaces of its own, until a byte is written to `done`. */
static pid_t child_in(int namespaces, int *done) {
    int ready[2], end[2];
    char byte;
    OK(pipe(ready));
    OK(pipe(end));
    pid_t pid = OK(fork());
    if (pid == 0) {
        byte = unshare(namespaces) == 0 ? 'y' : 'n';
        OK(write(ready[1], &byte, 1));
        OK(read(end[0], &byte, 1));
        _exit(0);
    }
    OK(read(ready[0], &byte, 1));
    if (byte != 'y')
        SKIP("no user namespaces here");
    *done = end[1];
    return pid;
}

CASE(setns_of_a_user_namespace) {
    int done;
    pid_t pid = child_in(CLONE_NEWUSER, &done);
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/user", pid);
    int fd = OK(open(path, O_RDONLY));
    OK(setns(fd, CLONE_NEWUSER));
    EXPECT_ERROR(setns(fd, CLONE_NEWUSER), EINVAL);
    OK(write(done, "", 1));
    EXPECT_EXIT(pid, 0);
}

CASE(setns_of_namespaces_by_a_pidfd) {
    int done;
    pid_t pid = child_in(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWUTS, &done);
    int fd = OK(syscall(SYS_pidfd_open, pid, 0));
    shared_pages = absent(64);
    OK(setns(fd, CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWUTS));
    OK(sethostname("x", 1));
    EXPECT(is_filled(shared_pages, 64 * PAGE));
    OK(write(done, "", 1));
    EXPECT_EXIT(pid, 0);
    EXPECT_EXIT(CHILD(_exit(has_its_own_memory(NULL))), 7);
}

ROOT_CASE(setns_of_a_mount_namespace) {
    int fd = OK(open("/proc/self/ns/mnt", O_RDONLY));
    OK(unshare(CLONE_NEWNS));
    shared_pages = absent(64);
    OK(setns(fd, 0));
    EXPECT(is_filled(shared_pages, 64 * PAGE));
}

/* The end of a process is that of its last thread, whoever it is. */
CASE(exit_of_the_only_thread) {
    shared_pages = absent(64);
    EXPECT_EXIT(CHILD(syscall(SYS_exit, has_its_own_memory(NULL))), 7);
}

static void *exits_later(void *unused) {
    (void)unused;
    sleep_ms(50);
    syscall(SYS_exit, is_filled(shared_pages, 64 * PAGE) ? 5 : 6);
    return NULL;
}

CASE(exit_of_the_first_thread_before_the_last) {
    shared_pages = absent(64);
    pid_t pid = CHILD({
        pthread_t id;
        EXPECT_EQ(pthread_create(&id, NULL, exits_later, NULL), 0);
        /* Of which of the two the code is depends on the kernel's version. */
        syscall(SYS_exit, 5);
    });
    EXPECT_EXIT(pid, 5);
}
