/* Attacks of a child that gave up its rights on other processes of its run. usage: door WHAT
 *
 * write: tries to write to the code that all processes share, through every descriptor that it has. users: changes
 * its user, twice. vfork: a child of vfork is killed while it waits for a page that never arrives; then the parent
 * forks.
 */
#include "common.h"

#define NOBODY 65534

static int tries, successes;

static void try_fd(int fd) {
    char was[16], is[16];
    if (pread(fd, was, sizeof was, 0) != (ssize_t)sizeof was)
        return;
    for (size_t i = 0; i < sizeof was; i++)
        is[i] = (char)~was[i];
    tries++;
    if (pwrite(fd, is, sizeof is, 0) > 0) {
        fprintf(stderr, "descriptor %d can be written to\n", fd);
        successes++;
        CHECK(pwrite(fd, was, sizeof was, 0) == (ssize_t)sizeof was, "put back");
    }
    char *map = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED) {
        fprintf(stderr, "descriptor %d can be mapped for writing\n", fd);
        successes++;
    }
}

/* Whether the descriptor is a memory file with a program: the library. */
static int is_code(int fd) {
    char magic[4];
    return pread(fd, magic, 4, 0) == 4 && !memcmp(magic, "\177ELF", 4);
}

static void write_to_code(void) {
    for (int fd = 3; fd < 2048; fd++) {
        // fcntl would not find what canvas hides.
        if (!is_code(fd))
            continue;
        try_fd(fd);
        char path[64];
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        int again = open(path, O_RDWR | O_CLOEXEC);
        if (again >= 0) {
            try_fd(again);
            if (ftruncate(again, 64) == 0)
                successes++;
            close(again);
        }
    }
}

static void child(const char *what) {
    CHECK(setgid(NOBODY) == 0 && setuid(NOBODY) == 0, "giving up rights: %s", strerror(errno));
    if (!strcmp(what, "write"))
        write_to_code();
    printf("child: tries %d, successes %d\n", tries, successes);
    fflush(stdout);
    _exit(successes != 0);
}

static struct ballast ballast;
static volatile pid_t vforked;

static void *kill_it(void *arg) {
    while (!vforked)
        usleep(1000);
    usleep(300 * 1000);
    CHECK(kill(vforked, SIGKILL) == 0, "kill: %s", strerror(errno));
    return arg;
}

static void killed_in_vfork(void) {
    ballast_make(&ballast, 48, 5);
    ballast_sweep(&ballast);
    printf("ready\n");
    fflush(stdout);
    char go;
    CHECK(read(0, &go, 1) == 1, "read: %s", strerror(errno));
    pthread_t killer;
    CHECK(pthread_create(&killer, NULL, kill_it, NULL) == 0, "pthread_create");
    pid_t pid = vfork();
    if (pid == 0) {
        vforked = getpid();
        uint64_t sum = 0;
        for (;;)
            for (size_t p = 0; p < ballast.pages; p++)
                sum += ballast.base[p * WORDS];
    }
    int status;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid, "waitpid");
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "status %#x", status);
    pthread_join(killer, NULL);
    pid = fork();
    if (pid == 0)
        _exit(0);
    printf("fork: %s\n", pid < 0 ? strerrorname_np(errno) : "a child");
}

int main(int argc, char **argv) {
    CHECK(argc == 2, "usage: door WHAT");
    if (!strcmp(argv[1], "vfork")) {
        killed_in_vfork();
        return 0;
    }
    for (int i = 0; i < 2; i++) {
        pid_t pid = fork();
        CHECK(pid >= 0, "fork: %s", strerror(errno));
        if (pid == 0)
            child(argv[1]);
        int status;
        CHECK(waitpid(pid, &status, 0) == pid, "waitpid");
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child %d: status %#x", i, status);
    }
    printf("door %s: right\n", argv[1]);
    return 0;
}
