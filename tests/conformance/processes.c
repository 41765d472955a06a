/* Processes: of fork(2), clone(2), execve(2), wait(2), prctl(2), getrlimit(2), ptrace(2), unshare(2), ids. */
#include "conformance.h"

#include <grp.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <sys/personality.h>
#include <sys/ptrace.h>

static char *stack(void) { return (char *)OK(mmap(NULL, 64 * PAGE, RW, PRIVATE | MAP_STACK, -1, 0)) + 64 * PAGE; }
static char *text(const char *s) {
    char *p = astride(strlen(s) / 2 + 1);
    strcpy(p, s);
    away(p, strlen(s) + 1);
    return p;
}
/* A vector of words on absent pages; the words are on absent pages, too. */
static char **words(const char *a, const char *b, const char *c) {
    char **v = astride(12);
    v[0] = text(a), v[1] = text(b), v[2] = c ? text(c) : NULL, v[3] = NULL;
    away(v, 4 * sizeof *v);
    return v;
}

CASE(fork_has_all_memory) {
    char *p = absent(64);
    EXPECT_EXIT(CHILD({
                    EXPECT(is_filled(p, 64 * PAGE));
                    p[0] = 9;
                    away(p, 64 * PAGE);
                    EXPECT_EQ(p[0], 9);
                }),
                0);
    EXPECT(is_filled(p, 64 * PAGE));
}
CASE(fork_of_a_fork) {
    char *p = absent(8);
    EXPECT_EXIT(CHILD(EXPECT_EXIT(CHILD(EXPECT_EXIT(CHILD(EXPECT(is_filled(p, 8 * PAGE))), 0)), 0)), 0);
}
CASE(fork_whose_parent_ends) {
    char *p = absent(8);
    int fd[2];
    OK(pipe(fd));
    EXPECT_EXIT(CHILD(CHILD({
                    sleep_ms(30);
                    EXPECT(is_filled(p, 8 * PAGE));
                    EXPECT_EQ(write(fd[1], "x", 1), 1);
                })),
                0);
    close(fd[1]);
    EXPECT_EQ(read(fd[0], absent(1), 1), 1);
}
USER_CASE(fork_past_rlimit_nproc) {
    struct rlimit r = {1, 1};
    OK(setrlimit(RLIMIT_NPROC, &r));
    EXPECT_ERROR(fork(), EAGAIN);
    EXPECT(is_filled(absent(4), 4 * PAGE));
}
CASE(fork_without_descriptors) {
    struct rlimit r = {3, 3};
    OK(setrlimit(RLIMIT_NOFILE, &r));
    char *p = absent(4);
    EXPECT_EXIT(CHILD(EXPECT(is_filled(p, 4 * PAGE))), 0);
}
CASE(fork_with_all_descriptors_open) {
    struct rlimit r = {64, 64};
    OK(setrlimit(RLIMIT_NOFILE, &r));
    while (open("/dev/null", O_RDONLY) != -1)
        ;
    char *p = absent(4);
    EXPECT_EXIT(CHILD(EXPECT(is_filled(p, 4 * PAGE))), 0);
}
CASE(fork_raw) {
    char *p = absent(4);
    long pid = RAW(SYS_fork);
    if (pid == 0)
        _exit(is_filled(p, 4 * PAGE) ? 42 : 1);
    EXPECT_EXIT(pid, 42);
}
CASE(clone_raw_without_vm) {
    char *p = absent(4);
    long pid = RAW(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (pid == 0)
        _exit(is_filled(p, 4 * PAGE) ? 42 : 1);
    EXPECT_EXIT(pid, 42);
}
CASE(clone_by_syscall_with_tids_away) {
    int *parent = astride(2), *child = astride(2);
    *parent = *child = 0;
    away(parent, 4);
    away(child, 4);
    long pid = OK(syscall(SYS_clone, SIGCHLD | CLONE_PARENT_SETTID | CLONE_CHILD_SETTID, 0, parent, child, 0));
    if (pid == 0)
        _exit(*child == getpid() ? 42 : 1);
    EXPECT_EQ(*parent, pid);
    EXPECT_EXIT(pid, 42);
}
static int looks(void *p) { return is_filled(p, 4 * PAGE) ? 42 : 1; }
CASE(clone_by_libc) { EXPECT_EXIT(OK(clone(looks, stack(), SIGCHLD, absent(4))), 42); }
CASE(clone_by_libc_with_a_pidfd) {
    int *fd = astride(2);
    pid_t pid = OK(clone(looks, stack(), SIGCHLD | CLONE_PIDFD, absent(4), fd));
    EXPECT(fcntl(*fd, F_GETFD) == FD_CLOEXEC);
    EXPECT_EXIT(pid, 42);
}
CASE(clone_vfork_shares) {
    char *p = absent(4);
    EXPECT_EXIT(OK(clone(looks, stack(), SIGCHLD | CLONE_VM | CLONE_VFORK, p)), 42);
    EXPECT(is_filled(p, 4 * PAGE));
}
static int writes(void *p) {
    *(char *)p = 77;
    return 0;
}
CASE(clone_vm_shares) {
    char *p = absent(4);
    EXPECT_EXIT(OK(clone(writes, stack(), SIGCHLD | CLONE_VM, p)), 0);
    EXPECT_EQ(*p, 77);
}
CASE(clone_thread_without_vm) { EXPECT_ERROR(clone(looks, stack(), CLONE_THREAD, NULL), EINVAL); }
CASE(clone_fs_and_newns) { EXPECT_ERROR(clone(looks, stack(), SIGCHLD | CLONE_FS | CLONE_NEWNS, NULL), EINVAL); }
CASE(clone3_away) {
    struct clone_args *a = astride(40);
    memset(a, 0, sizeof *a);
    a->exit_signal = SIGCHLD;
    char *p = absent(4);
    away(a, sizeof *a);
    long pid = NEEDS(syscall(SYS_clone3, a, sizeof *a));
    if (pid == 0)
        _exit(looks(p));
    EXPECT_EXIT(pid, 42);
}
CASE(clone3_with_a_pidfd_away) {
    struct clone_args *a = astride(40);
    int *fd = astride(2);
    memset(a, 0, sizeof *a);
    a->exit_signal = SIGCHLD, a->flags = CLONE_PIDFD, a->pidfd = (uintptr_t)fd;
    away(a, sizeof *a);
    away(fd, 4);
    long pid = NEEDS(syscall(SYS_clone3, a, sizeof *a));
    if (pid == 0)
        _exit(42);
    EXPECT(fcntl(*fd, F_GETFD) == FD_CLOEXEC);
    EXPECT_EXIT(pid, 42);
}
CASE(clone3_in_a_hole) { EXPECT_ERROR(syscall(SYS_clone3, hole(), sizeof(struct clone_args)), EFAULT); }
CASE(clone3_too_small) { EXPECT_ERROR(syscall(SYS_clone3, pages(1), 8), EINVAL); }
CASE(clone3_unknown_flag) {
    struct clone_args *a = (void *)pages(1);
    a->flags = 1UL << 60;
    EXPECT_ERROR(syscall(SYS_clone3, a, sizeof *a), EINVAL);
}
CASE(vfork_runs_on_our_memory) {
    char *volatile p = absent(4);
    pid_t pid = OK(vfork());
    if (pid == 0) {
        p[1] = 66;
        _exit(0);
    }
    EXPECT_EXIT(pid, 0);
    EXPECT_EQ(p[1], 66);
}
CASE(exec_with_everything_away) {
    EXPECT_EXIT(CHILD(execve(text("/bin/sh"), words("sh", "-c", "test \"$A\" = 5 && exit 42"), words("A=5", "B=6", NULL))),
                42);
}
CASE(exec_raw_with_everything_away) {
    EXPECT_EXIT(CHILD(RAW(SYS_execve, text("/bin/sh"), words("sh", "-c", "exit 42"), words("A=5", "B=6", NULL))), 42);
}
CASE(execveat_with_everything_away) {
    int dir = OK(open("/bin", O_PATH));
    EXPECT_EXIT(CHILD(syscall(SYS_execveat, dir, text("sh"), words("sh", "-c", "exit 42"), words("A=5", "B", NULL), 0)),
                42);
}
CASE(fexecve_of_a_descriptor) {
    int fd = OK(open("/bin/sh", O_RDONLY));
    EXPECT_EXIT(CHILD(fexecve(fd, words("sh", "-c", "exit 42"), words("A=5", "B", NULL))), 42);
}
CASE(exec_of_nothing) { EXPECT_ERROR(execve(text("./none"), words("a", "b", NULL), words("a", "b", NULL)), ENOENT); }
CASE(exec_of_a_directory) { EXPECT_ERROR(execve(text("/tmp"), words("a", "b", NULL), words("a", "b", NULL)), EACCES); }
CASE(exec_of_no_program) {
    int fd = OK(open("x", O_CREAT | O_WRONLY, 0700));
    EXPECT_EQ(write(fd, "\177NO", 3), 3);
    close(fd);
    EXPECT_ERROR(execve(text("./x"), words("a", "b", NULL), words("a", "b", NULL)), ENOEXEC);
}
CASE(exec_path_in_a_hole) { EXPECT_ERROR(execve(hole(), words("a", "b", NULL), words("a", "b", NULL)), EFAULT); }
CASE(exec_vector_in_a_hole) { EXPECT_ERROR(execve("/bin/sh", (void *)hole(), words("a", "b", NULL)), EFAULT); }
CASE(exec_word_in_a_hole) {
    char **v = words("sh", "-c", "x");
    v[2] = hole();
    EXPECT_ERROR(execve("/bin/sh", v, words("a", "b", NULL)), EFAULT);
}
CASE(exec_environment_in_a_hole) { EXPECT_ERROR(execve("/bin/sh", words("sh", "-c", "x"), (void *)hole()), EFAULT); }
CASE(exec_too_long) {
    char **v = (char **)pages(1);
    char *p = absent(20);
    memset(p, 'a', 20 * PAGE - 1);
    p[20 * PAGE - 1] = 0;
    for (int i = 0; i < 100; i++)
        v[i] = p;
    EXPECT_ERROR(execve("/bin/true", v, NULL), E2BIG);
}
CASE(exec_with_an_empty_environment) {
    char *none[] = {NULL};
    EXPECT_EXIT(CHILD(execve("/bin/sh", words("sh", "-c", "exit 42"), none)), 42);
}
static void *runs(void *unused) {
    (void)unused;
    execl("/bin/sh", "sh", "-c", "exit 42", NULL);
    return NULL;
}
CASE(exec_by_a_thread) {
    EXPECT_EXIT(CHILD({
                    pthread_t t;
                    pthread_create(&t, NULL, runs, NULL);
                    for (;;)
                        pause();
                }),
                42);
}
CASE(no_descriptor_is_left_over_exec) {
    /* The shell sees 0, 1, 2 and the descriptor by which it reads its directory. */
    EXPECT_EXIT(CHILD(execl("/bin/sh", "sh", "-c", "set -- /proc/self/fd/*; [ $# -le 4 ] && exit 42", NULL)), 42);
}
CASE(no_descriptor_is_seen) {
    DIR *d = opendir("/proc/self/fd");
    for (struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.' && atoi(e->d_name) > 3)
            FAIL("descriptor %s is there", e->d_name);
}

CASE(wait_with_everything_away) {
    pid_t child = CHILD(_exit(5));
    int *status = astride(2);
    struct rusage *u = astride(70);
    EXPECT_EQ(wait4(child, status, 0, u), child);
    EXPECT_EQ(WEXITSTATUS(*status), 5);
    EXPECT(u->ru_maxrss > 0);
}
CASE(wait_status_in_a_hole) {
    CHILD();
    EXPECT_ERROR(wait4(-1, (void *)hole(), 0, NULL), EFAULT);
}
CASE(wait_of_nobody) { EXPECT_ERROR(waitpid(-1, (void *)absent(1), 0), ECHILD); }
CASE(wait_unknown_option) { EXPECT_ERROR(waitpid(-1, NULL, 0x40), EINVAL); }
CASE(waitid_with_everything_away) {
    pid_t child = CHILD(_exit(7));
    siginfo_t *info = astride(60);
    OK(waitid(P_PID, child, info, WEXITED));
    EXPECT_EQ(info->si_status, 7);
    EXPECT_EQ(info->si_pid, child);
}
CASE(waitid_to_a_hole) {
    pid_t child = CHILD();
    EXPECT_ERROR(waitid(P_PID, child, (void *)hole(), WEXITED), EFAULT);
}
CASE(no_child_that_is_not_ours) {
    EXPECT_ERROR(waitpid(-1, NULL, WNOHANG | __WALL), ECHILD);
    EXPECT(is_filled(absent(32), 32 * PAGE));
    EXPECT_ERROR(waitpid(-1, NULL, WNOHANG | __WALL), ECHILD);
}
CASE(child_times) {
    EXPECT_EXIT(CHILD(), 0);
    struct rusage *u = astride(70);
    OK(getrusage(RUSAGE_CHILDREN, u));
    EXPECT_ERROR(syscall(SYS_getrusage, RUSAGE_SELF, hole()), EFAULT);
    EXPECT_ERROR(getrusage(77, u), EINVAL);
    OK(syscall(SYS_times, astride(16)));
}

CASE(limits_away) {
    struct rlimit *r = astride(8), *old = astride(8);
    for (int i = 0; i < RLIM_NLIMITS; i++) {
        OK(getrlimit(i, r));
        OK(prlimit(0, i, NULL, old));
        EXPECT(r->rlim_cur == old->rlim_cur && r->rlim_max == old->rlim_max);
        away(r, sizeof *r);
        OK(setrlimit(i, r));
    }
}
CASE(limits_in_a_hole) {
    for (int i = 0; i < RLIM_NLIMITS; i++) {
        EXPECT_ERROR(syscall(SYS_getrlimit, i, hole()), EFAULT);
        EXPECT_ERROR(syscall(SYS_setrlimit, i, hole()), EFAULT);
        EXPECT_ERROR(syscall(SYS_prlimit64, 0, i, hole(), NULL), EFAULT);
        EXPECT_ERROR(syscall(SYS_prlimit64, 0, i, NULL, hole()), EFAULT);
    }
}
CASE(limit_of_a_wrong_number) { EXPECT_ERROR(getrlimit(99, (void *)absent(1)), EINVAL); }
CASE(limit_soft_above_hard) {
    struct rlimit r = {10, 5};
    for (int i = 0; i < RLIM_NLIMITS; i++)
        EXPECT_ERROR(setrlimit(i, &r), EINVAL);
}
USER_CASE(limit_raised) {
    struct rlimit r = {100 << 20, 100 << 20};
    OK(setrlimit(RLIMIT_AS, &r));
    r.rlim_cur = r.rlim_max = 200 << 20;
    EXPECT_ERROR(setrlimit(RLIMIT_AS, &r), EPERM);
}
CASE(limit_of_addresses_read_back) {
    struct rlimit r = {100 << 20, 200 << 20}, got;
    OK(setrlimit(RLIMIT_AS, &r));
    OK(getrlimit(RLIMIT_AS, &got));
    EXPECT(got.rlim_cur == r.rlim_cur && got.rlim_max == r.rlim_max);
    EXPECT_EXIT(CHILD({
                    OK(getrlimit(RLIMIT_AS, &got));
                    EXPECT(got.rlim_cur == r.rlim_cur && got.rlim_max == r.rlim_max);
                }),
                0);
}
USER_CASE(limit_of_descriptors_raised) {
    struct rlimit r = {50, 50}, got;
    OK(setrlimit(RLIMIT_NOFILE, &r));
    OK(getrlimit(RLIMIT_NOFILE, &got));
    EXPECT(got.rlim_cur == 50 && got.rlim_max == 50);
    r.rlim_max = 60;
    EXPECT_ERROR(setrlimit(RLIMIT_NOFILE, &r), EPERM);
    r = (struct rlimit){60, 50};
    EXPECT_ERROR(setrlimit(RLIMIT_NOFILE, &r), EINVAL);
}
CASE(limit_of_descriptors_over_exec) {
    struct rlimit r = {50, 60};
    OK(setrlimit(RLIMIT_NOFILE, &r));
    const char *asks = "[ $(ulimit -Sn) = 50 ] && [ $(ulimit -Hn) = 60 ] && exit 42";
    EXPECT_EXIT(CHILD(execl("/bin/sh", "sh", "-c", asks, NULL)), 42);
}
/* No number from 64 on is open: the cases open none there. */
static void none_is_open(void) {
    struct stat s;
    struct statx x;
    for (int fd = 64; fd < 4400; fd++) {
        EXPECT_ERROR(fcntl(fd, F_GETFD), EBADF);
        EXPECT_ERROR(fcntl(fd, F_DUPFD, 0), EBADF);
        EXPECT_ERROR(dup(fd), EBADF);
        EXPECT_ERROR(fstat(fd, &s), EBADF);
        EXPECT_ERROR(fstatat(fd, "", &s, AT_EMPTY_PATH), EBADF);
        EXPECT_ERROR(statx(fd, "", AT_EMPTY_PATH, STATX_ALL, &x), EBADF);
    }
}
CASE(no_descriptors_but_the_programs) {
    none_is_open();
    EXPECT_EXIT(CHILD(none_is_open()), 0);
}
CASE(no_descriptors_below_a_limit_that_was_lowered) {
    struct rlimit r;
    OK(getrlimit(RLIMIT_NOFILE, &r));
    r.rlim_cur = 200;
    OK(setrlimit(RLIMIT_NOFILE, &r));
    EXPECT_EXIT(CHILD(none_is_open()), 0);
}
CASE(no_descriptors_below_a_limit_that_was_raised) {
    struct rlimit r;
    OK(getrlimit(RLIMIT_NOFILE, &r));
    r.rlim_cur = r.rlim_max;
    OK(setrlimit(RLIMIT_NOFILE, &r));
    EXPECT_EXIT(CHILD(none_is_open()), 0);
}
CASE(limit_of_addresses_over_exec) {
    struct rlimit r = {1 << 30, 2UL << 30};
    OK(setrlimit(RLIMIT_AS, &r));
    EXPECT_EXIT(CHILD(execl("/bin/sh", "sh", "-c", "[ $(ulimit -Sv) = 1048576 ] && exit 42", NULL)), 42);
}
CASE(limit_of_data_over_exec) {
    struct rlimit r = {1 << 30, 2UL << 30};
    OK(setrlimit(RLIMIT_DATA, &r));
    EXPECT_EXIT(CHILD(execl("/bin/sh", "sh", "-c", "[ $(ulimit -Sd) = 1048576 ] && exit 42", NULL)), 42);
}

CASE(prctl_name) {
    char *p = text("my-name");
    OK(prctl(PR_SET_NAME, p));
    char *q = astride(8);
    OK(prctl(PR_GET_NAME, q));
    EXPECT(!strcmp(q, "my-name"));
    EXPECT_ERROR(prctl(PR_SET_NAME, hole()), EFAULT);
    EXPECT_ERROR(prctl(PR_GET_NAME, hole()), EFAULT);
}
CASE(prctl_numbers) {
    int *n = astride(2);
    OK(prctl(PR_SET_PDEATHSIG, SIGUSR1));
    OK(prctl(PR_GET_PDEATHSIG, n));
    EXPECT_EQ(*n, SIGUSR1);
    OK(prctl(PR_GET_CHILD_SUBREAPER, n));
    EXPECT_ERROR(prctl(PR_GET_PDEATHSIG, hole()), EFAULT);
    EXPECT_ERROR(prctl(123456, 0, 0, 0, 0), EINVAL);
}
CASE(prctl_dumpable) {
    EXPECT_EQ(prctl(PR_GET_DUMPABLE), 1);
    OK(prctl(PR_SET_DUMPABLE, 0));
    EXPECT_EQ(prctl(PR_GET_DUMPABLE), 0);
    EXPECT(is_filled(absent(4), 4 * PAGE));
}
CASE(parent_death_signal) {
    int fd[2];
    OK(pipe(fd));
    EXPECT_EXIT(CHILD({
                    CHILD({
                        OK(prctl(PR_SET_PDEATHSIG, SIGKILL));
                        EXPECT_EQ(write(fd[1], "x", 1), 1);
                        pause();
                    });
                    EXPECT_EQ(read(fd[0], absent(1), 1), 1);
                }),
                0);
    close(fd[1]);
    EXPECT_EQ(OK(read(fd[0], absent(1), 1)), 0);
}
CASE(seccomp_filter_away) {
    OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    struct sock_filter *code = astride(12);
    code[0] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0);
    code[1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1);
    code[2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 77);
    code[3] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog *program = astride(8);
    program->len = 4, program->filter = code;
    away(code, 4 * sizeof *code);
    away(program, sizeof *program);
    OK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, program));
    EXPECT_ERROR(syscall(SYS_getppid), 77);
    EXPECT(is_filled(absent(8), 8 * PAGE));
    EXPECT_EXIT(CHILD(EXPECT_ERROR(syscall(SYS_getppid), 77)), 0);
}
CASE(seccomp_in_a_hole) { EXPECT_ERROR(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, hole()), EFAULT); }
CASE(seccomp_by_prctl_in_a_hole) { EXPECT_ERROR(prctl(PR_SET_SECCOMP, 2, hole()), EFAULT); }
CASE(seccomp_strict) {
    char *p = absent(8);
    EXPECT_EXIT(CHILD({
                    OK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT));
                    RAW(SYS_exit, is_filled(p, 8 * PAGE) ? 42 : 1);
                }),
                42);
}
CASE(personality_read) { EXPECT_EQ(personality(0xffffffff), 0); }
CASE(affinity_away) {
    cpu_set_t *s = astride(60);
    OK(sched_getaffinity(0, sizeof *s, s));
    EXPECT(CPU_COUNT(s) >= 1);
    away(s, sizeof *s);
    OK(sched_setaffinity(0, sizeof *s, s));
    EXPECT_ERROR(syscall(SYS_sched_getaffinity, 0, 128, hole()), EFAULT);
}
CASE(scheduling_away) {
    struct sched_param *p = astride(2);
    OK(sched_getparam(0, p));
    EXPECT_EQ(p->sched_priority, 0);
    away(p, sizeof *p);
    OK(sched_setscheduler(0, SCHED_BATCH, p));
    EXPECT_EQ(sched_getscheduler(0), SCHED_BATCH);
    OK(syscall(SYS_sched_getattr, 0, astride(20), 56, 0));
    OK(syscall(SYS_sched_rr_get_interval, 0, astride(8)));
}
CASE(ids_away) {
    unsigned *a = astride(2), *b = astride(2), *c = astride(2);
    OK(syscall(SYS_getresuid, a, b, c));
    EXPECT(*a == getuid() && *b == geteuid());
    EXPECT_ERROR(syscall(SYS_getresgid, a, b, hole()), EFAULT);
    gid_t *groups = astride(2);
    EXPECT(getgroups(0, NULL) >= 0);
    OK(getgroups(500, groups));
    OK(syscall(SYS_getcpu, a, b, NULL));
}
ROOT_CASE(groups_set) {
    gid_t *groups = astride(4);
    groups[0] = 1234, groups[1] = 5678;
    away(groups, 8);
    OK(setgroups(2, groups));
    EXPECT_EQ(getgroups(0, NULL), 2);
    EXPECT_ERROR(syscall(SYS_setgroups, 2, hole()), EFAULT);
}
ROOT_CASE(user_given_up) {
    char *p = absent(8);
    OK(setresgid(65534, 65534, 65534));
    OK(setresuid(65534, 65534, 65534));
    EXPECT(is_filled(p, 8 * PAGE));
    EXPECT_EXIT(CHILD(EXPECT(is_filled(p, 8 * PAGE))), 0);
    EXPECT_EXIT(CHILD(execl("/bin/sh", "sh", "-c", "exit 42", NULL)), 42);
}
CASE(unshare_user_namespace) {
    char *p = absent(8);
    if (access("/proc/self/ns/user", F_OK))
        SKIP("no user namespaces");
    OK(unshare(CLONE_NEWUSER));
    EXPECT(is_filled(p, 8 * PAGE));
    EXPECT_EXIT(CHILD(EXPECT(is_filled(p, 8 * PAGE))), 0);
}
CASE(unshare_pid_namespace) {
    char *p = absent(8);
    OK(unshare(CLONE_NEWUSER | CLONE_NEWPID));
    EXPECT_EXIT(CHILD({
                    EXPECT_EQ(getpid(), 1);
                    EXPECT(is_filled(p, 8 * PAGE));
                    EXPECT_EXIT(CHILD(EXPECT(is_filled(p, 8 * PAGE))), 0);
                }),
                0);
    sleep_ms(300);
    fill(p, 8 * PAGE);
    away(p, 8 * PAGE);
    EXPECT(is_filled(p, 8 * PAGE));
}
CASE(unshare_files) { OK(unshare(CLONE_FILES | CLONE_FS)); }
CASE(unshare_unknown_flag) { EXPECT_ERROR(unshare(0xff), EINVAL); }
CASE(unshare_vm_of_one_thread) { OK(unshare(CLONE_VM)); }
ROOT_CASE(setns_of_our_own) { OK(setns(OK(open("/proc/self/ns/net", O_RDONLY)), CLONE_NEWNET)); }
CASE(setns_of_no_namespace) { EXPECT_ERROR(setns(OK(open("/dev/null", O_RDONLY)), 0), EINVAL); }

CASE(own_memory_by_process_vm_readv) {
    char *p = absent(2), *q = absent(2);
    memset(q, 0, 2 * PAGE);
    away(q, 2 * PAGE);
    struct iovec *local = astride(8), *remote = astride(8);
    local->iov_base = q, local->iov_len = 2 * PAGE, remote->iov_base = p, remote->iov_len = 2 * PAGE;
    away(local, sizeof *local);
    away(remote, sizeof *remote);
    EXPECT_EQ(OK(process_vm_readv(getpid(), local, 1, remote, 1, 0)), 2 * PAGE);
    EXPECT(is_filled(q, 2 * PAGE));
    EXPECT_ERROR(process_vm_readv(getpid(), (void *)hole(), 1, remote, 1, 0), EFAULT);
}
CASE(own_memory_by_process_vm_writev) {
    char *p = absent(2), *q = absent(2);
    memset(q, 0, 2 * PAGE);
    away(q, 2 * PAGE);
    struct iovec local = {p, 2 * PAGE}, remote = {q, 2 * PAGE};
    EXPECT_EQ(OK(process_vm_writev(getpid(), &local, 1, &remote, 1, 0)), 2 * PAGE);
    EXPECT(is_filled(q, 2 * PAGE));
}
CASE(own_memory_by_proc_mem) {
    char *p = absent(2), *q = absent(2);
    memset(q, 0, 2 * PAGE);
    away(q, 2 * PAGE);
    EXPECT_EQ(OK(pread(OK(open("/proc/self/mem", O_RDONLY)), q, 2 * PAGE, (off_t)(uintptr_t)p)), 2 * PAGE);
    EXPECT(is_filled(q, 2 * PAGE));
}
/* A child that waits, and whose copy of `p` is evicted. */
static pid_t child_with(char *p, size_t bytes) {
    int fd[2];
    char ready;
    OK(pipe(fd));
    pid_t child = CHILD({
        away(p, bytes);
        EXPECT_EQ(write(fd[1], "x", 1), 1);
        pause();
        _exit(is_filled(p, bytes) ? 42 : 1);
    });
    EXPECT_EQ(read(fd[0], &ready, 1), 1);
    return child;
}
static void ended(pid_t child) {
    kill(child, SIGKILL);
    status_of(child);
}
CASE(memory_of_a_child_by_process_vm_readv) {
    char *p = absent(2), *q = absent(2);
    pid_t child = child_with(p, 2 * PAGE);
    memset(q, 0, 2 * PAGE);
    struct iovec local = {q, 2 * PAGE}, remote = {p, 2 * PAGE};
    EXPECT_EQ(OK(process_vm_readv(child, &local, 1, &remote, 1, 0)), 2 * PAGE);
    EXPECT(is_filled(q, 2 * PAGE));
    ended(child);
}
CASE(memory_of_a_child_by_vectors) {
    char *p = absent(700), *q = absent(700);
    pid_t child = child_with(p, 700 * PAGE);
    memset(q, 0, 700 * PAGE);
    away(q, 700 * PAGE);
    /* Ends of either vector lie within the other's ranges. */
    struct iovec local[] = {{q, 100}, {q + 100, 699 * PAGE}, {q + 699 * PAGE + 100, PAGE - 100}};
    struct iovec remote[] = {{p, 300 * PAGE + 7}, {p + 300 * PAGE + 7, 400 * PAGE - 7}};
    EXPECT_EQ(OK(process_vm_readv(child, local, 3, remote, 2, 0)), 700 * PAGE);
    EXPECT(is_filled(q, 700 * PAGE));
    ended(child);
}
CASE(memory_of_a_child_by_process_vm_writev) {
    char *p = pages(4), *q = absent(4);
    memset(p, 1, 4 * PAGE);
    pid_t child = child_with(p, 4 * PAGE);
    struct iovec local = {q, 4 * PAGE}, remote = {p, 4 * PAGE};
    EXPECT_EQ(OK(process_vm_writev(child, &local, 1, &remote, 1, 0)), 4 * PAGE);
    /* Read back: what was written is there. */
    memset(q, 0, 4 * PAGE);
    local.iov_base = q;
    EXPECT_EQ(OK(process_vm_readv(child, &local, 1, &remote, 1, 0)), 4 * PAGE);
    EXPECT(is_filled(q, 4 * PAGE));
    EXPECT(p[0] == 1 && p[4 * PAGE - 1] == 1);
    ended(child);
}
CASE(memory_of_a_child_up_to_a_hole) {
    char *p = absent(2), *q = absent(4);
    pid_t child = child_with(p, 2 * PAGE);
    struct iovec local = {q, 4 * PAGE}, remote = {p + 2 * PAGE, PAGE};
    EXPECT_ERROR(process_vm_readv(child, &local, 1, &remote, 1, 0), EFAULT);
    remote.iov_base = p, remote.iov_len = 3 * PAGE;
    EXPECT_EQ(OK(process_vm_readv(child, &local, 1, &remote, 1, 0)), 2 * PAGE);
    EXPECT(is_filled(q, 2 * PAGE));
    ended(child);
}
CASE(memory_of_a_child_by_proc_mem) {
    char *p = absent(4), *q = absent(4), path[64];
    pid_t child = child_with(p, 4 * PAGE);
    memset(q, 0, 4 * PAGE);
    snprintf(path, sizeof path, "/proc/%d/mem", child);
    int fd = OK(open(path, O_RDWR));
    EXPECT_EQ(OK(pread(fd, q, 4 * PAGE, (off_t)(uintptr_t)p)), 4 * PAGE);
    EXPECT(is_filled(q, 4 * PAGE));
    memset(q, 0, 4 * PAGE);
    OK(lseek(fd, (off_t)(uintptr_t)p, SEEK_SET));
    EXPECT_EQ(OK(read(fd, q, PAGE)), PAGE);
    EXPECT(is_filled(q, PAGE));
    EXPECT_ERROR(pread(fd, q, PAGE, (off_t)(uintptr_t)p + 4 * PAGE), EIO);
    ended(child);
}
CASE(memory_of_the_parent_by_process_vm_readv) {
    char *p = absent(4);
    /* If Yama requires it. */
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    pid_t parent = getpid();
    EXPECT_EXIT(CHILD({
                    char *q = absent(4);
                    memset(q, 0, 4 * PAGE);
                    struct iovec local = {q, 4 * PAGE}, remote = {p, 4 * PAGE};
                    EXPECT_EQ(OK(process_vm_readv(parent, &local, 1, &remote, 1, 0)), 4 * PAGE);
                    _exit(is_filled(q, 4 * PAGE) ? 42 : 1);
                }),
                42);
}
/* It is refused, as by kernels without it; or memory is present while the program catches all calls. */
CASE(syscall_user_dispatch) {
    static volatile char blocked;
    char *p = absent(16);
    int on = prctl(59, 1, 0, 0, &blocked), why = errno;
    EXPECT(on == 0 || why == EINVAL);
    blocked = 1;
    int same = is_filled(p, 16 * PAGE);
    blocked = 0;
    EXPECT(same);
    if (on == 0)
        OK(prctl(59, 0, 0, 0, 0));
    EXPECT(is_filled(absent(16), 16 * PAGE));
}
CASE(ptrace_of_a_child) {
    char *p = absent(1);
    pid_t child = CHILD({
        OK(ptrace(PTRACE_TRACEME, 0, NULL, NULL));
        raise(SIGSTOP);
        _exit(is_filled(p, PAGE) ? 42 : 1);
    });
    int status;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT(WIFSTOPPED(status));
    siginfo_t *info = astride(60);
    OK(ptrace(PTRACE_GETSIGINFO, child, NULL, info));
    EXPECT_EQ(info->si_signo, SIGSTOP);
    for (;;) {
        OK(ptrace(PTRACE_CONT, child, NULL, NULL));
        EXPECT_EQ(waitpid(child, &status, 0), child);
        if (!WIFSTOPPED(status))
            break;
        FAIL("signal %d at a debugger", WSTOPSIG(status));
    }
    EXPECT_EQ(WEXITSTATUS(status), 42);
}
