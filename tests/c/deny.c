/* Runs a command under a seccomp filter that makes some calls fail. usage: deny WHAT COMMAND...
 *
 * close-code: large writable code cannot be made read-only.
 */
#include "common.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define NR BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))
#define ARG(i) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[i]))
#define IS(k, skip) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (k), 0, (skip))
#define AT_LEAST(k, skip) BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, (k), 0, (skip))
#define ANSWER(k) BPF_STMT(BPF_RET | BPF_K, (k))

static struct sock_filter close_code[] = {
    NR,
    IS(SYS_mprotect, 5),
    ARG(2),
    IS(PROT_READ | PROT_EXEC, 3),
    ARG(1),
    AT_LEAST(1 << 20, 1),
    ANSWER(SECCOMP_RET_ERRNO | EACCES),
    ANSWER(SECCOMP_RET_ALLOW),
};

int main(int argc, char **argv) {
    CHECK(argc > 2, "usage: deny WHAT COMMAND...");
    CHECK(!strcmp(argv[1], "close-code"), "unknown: %s", argv[1]);
    struct sock_fprog prog = {.len = sizeof close_code / sizeof *close_code, .filter = close_code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs: %s", strerror(errno));
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) == 0, "seccomp: %s", strerror(errno));
    execvp(argv[2], argv + 2);
    fail("%s: %s", argv[2], strerror(errno));
}
