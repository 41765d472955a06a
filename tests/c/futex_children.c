/* Children that all wait on one futex, and that end when it opens. usage: futex_children COUNT */
#include "common.h"
#include <linux/futex.h>
#include <sys/syscall.h>

int main(int argc, char **argv) {
    CHECK(argc == 2, "usage: futex_children COUNT");
    int count = atoi(argv[1]), right = 0, status;
    volatile int *shut = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shut != MAP_FAILED, "mmap: %s", strerror(errno));
    shut[0] = 1;
    char *own = malloc(PAGE);
    for (int i = 0; i < count; i++) {
        own[0] = (char)i;
        pid_t pid = fork();
        CHECK(pid >= 0, "fork %d: %s", i, strerror(errno));
        if (pid == 0) {
            __atomic_fetch_add(&shut[1], 1, __ATOMIC_SEQ_CST);
            while (shut[0])
                syscall(SYS_futex, shut, FUTEX_WAIT, 1, NULL, NULL, 0);
            _exit(own[0] == (char)i ? 0 : 1);
        }
    }
    while (shut[1] < count)
        usleep(1000);
    shut[0] = 0;
    syscall(SYS_futex, shut, FUTEX_WAKE, count, NULL, NULL, 0);
    while (wait(&status) > 0)
        right += status == 0;
    CHECK(right == count, "%d of %d", right, count);
    printf("all are back\n");
    return 0;
}
